"""What a rank tells the others of an operation that it has submitted, and whether the ranks mean the same. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import torch

from unisono.comm.calls import DTYPES


class ReduceOp(IntEnum):
    """The numbers are part of the interface: programs store and pass them as integers."""

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5


ALLREDUCE, ALLGATHER, BROADCAST, ALLTOALL, REDUCESCATTER, BARRIER, JOIN = KINDS = (
    "allreduce",
    "allgather",
    "broadcast",
    "alltoall",
    "reducescatter",
    "barrier",
    "join",
)

UNNAMED = "noname"
"""Between the kind and the number of an operation that its user did not name."""

MOVED: tuple[torch.dtype, ...] = (*DTYPES, torch.bool)
"""Types that travel as they are."""

Part = tuple[torch.dtype, tuple[int, ...]]
"""Type and shape of one tensor."""


class Request(NamedTuple):
    """One operation as one rank has submitted it. A group of tensors is one operation.

    One is made and compared for every tensor of every step, and no other class is as quick at that.
    """

    name: str
    """With its kind in front, so that an all-reduce and a broadcast of one name are different operations."""
    kind: str
    parts: tuple[Part, ...] = ()
    op: int = ReduceOp.SUM
    root: int = 0
    """A rank of the whole job, as users name it."""
    prescale: float = 1.0
    postscale: float = 1.0
    splits: tuple[int, ...] = ()
    """Rows that go to each rank of the set."""
    device: str = "cpu"
    comes_again: bool = True
    """Whether the name will be used again, so that it is worth remembering; a number is used once."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all its tensors together."""
        return sum(math.prod(shape) * dtype.itemsize for dtype, shape in self.parts)

    def as_plain(self) -> tuple[Any, ...]:
        """Returns the request as plain data, to be sent."""
        parts = tuple((MOVED.index(dtype), shape) for dtype, shape in self.parts)
        rest = int(self.op), self.root, self.prescale, self.postscale, self.splits, self.device, self.comes_again
        return (self.name, self.kind, parts, *rest)

    @classmethod
    def from_plain(cls, plain: Sequence[Any]) -> Request:
        """Returns the request that `as_plain` has made plain data of."""
        name, kind, parts, *rest = plain
        return cls(name, kind, tuple((MOVED[dtype], tuple(shape)) for dtype, shape in parts), *rest)


_SAME: Mapping[str, str] = {
    "op": "reduction",
    "root": "root rank",
    "prescale": "prescale factor",
    "postscale": "postscale factor",
    "device": "device",
}
"""What must be alike besides types and shapes, in words."""

_FREE_FIRST = (ALLGATHER, ALLTOALL)
"""Kinds whose first dimension may differ between ranks."""


def disagreement(requests: Mapping[int, Request]) -> str | None:
    """Returns why the requests of one name, by rank, cannot be one operation, in the same words on all ranks; None if they can."""
    first_rank, first = next(iter(requests.items()))
    for rank, other in requests.items():
        difference = None if other is first else _difference(first, other)
        if difference:
            what, mine, theirs = difference
            remedy = f"submit the same {what} under this name on all ranks"
            if what == _SAME["device"]:
                remedy += ": give each rank its own GPU, or hide all GPUs (CUDA_VISIBLE_DEVICES=)"
            who = f"rank {first_rank} has {mine}, rank {rank} has {theirs}"
            return f"{first.name}: the ranks do not agree on the {what}: {who}; {remedy}"
    return None


def _difference(first: Request, other: Request) -> tuple[str, object, object] | None:
    """Returns the first thing in which two requests differ that must be alike, and its value in each; None if they can be one
    operation."""
    if len(first.parts) != len(other.parts):
        return "number of tensors", len(first.parts), len(other.parts)
    for position, ((dtype, shape), (other_dtype, other_shape)) in enumerate(zip(first.parts, other.parts, strict=True)):
        where = f" of tensor {position}" if len(first.parts) > 1 else ""
        if dtype != other_dtype:
            return f"type{where}", _dtype_name(dtype), _dtype_name(other_dtype)
        if first.kind in _FREE_FIRST:
            if len(shape) != len(other_shape):
                return f"number of dimensions{where}", len(shape), len(other_shape)
            if shape[1:] != other_shape[1:]:
                return f"shape after the first dimension{where}", list(shape), list(other_shape)
        elif shape != other_shape:
            return f"shape{where}", list(shape), list(other_shape)
    for field, words in _SAME.items():
        mine, theirs = getattr(first, field), getattr(other, field)
        if mine != theirs:
            return (words, ReduceOp(mine).name.lower(), ReduceOp(theirs).name.lower()) if field == "op" else (words, mine, theirs)
    return None


def on_one_line(name: str) -> str:
    """Returns a user's name as reports show it, which have a line for each."""
    return name.replace("\n", "\\n")


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
