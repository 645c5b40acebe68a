"""The vocabulary of calls: reduction operations, element types, groups, and the text that describes a call in messages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

ANY = -1
"""Source of `recv` that stands for any rank."""

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
)
"""Types that every engine sends and reduces (an engine that lacks one casts it)."""


class Op(Enum):
    """How a reduction combines the values of all members: `un.SUM`, `un.MIN` or `un.MAX`.

    `un.SUM` adds, `un.MIN` and `un.MAX` take the smallest and the largest value, element by element. There is no mean:
    divide the sum by the number of samples, so that uneven parts stay exact. `un.ANY` is no operation, but the source of a
    message that may come from any member: `comm.recv(buf, un.ANY)`.

    Example:
        import torch
        import unisono as un

        with un.connect() as comm:
            largest = torch.tensor([1.0, 7.0])
            comm.allreduce(largest, un.MAX)
            largest.tolist()  # -> [1.0, 7.0]

    Args:
        value: "sum", "min" or "max"; `un.Op("max")` is `un.MAX`.
    """

    SUM = "sum"
    MIN = "min"
    MAX = "max"

    __hash__ = object.__hash__  # that of Enum is written in Python, and every reduction looks something up


SUM, MIN, MAX = Op.SUM, Op.MIN, Op.MAX


@dataclass(frozen=True)
class Envelope:
    """Where a received message came from.

    Attributes:
        source: The rank of the sender.
        tag: The tag of the message.
    """

    source: int
    tag: int


@dataclass(frozen=True)
class Group:
    """The processes of a communicator by rank: `members` are their ranks in the job, `ranks` those in the parent group."""

    name: str
    rank: int
    members: tuple[int, ...]
    ranks: tuple[int, ...]


class Call:
    """One operation with all arguments that must be the same on all members. Its text is made only when needed."""

    __slots__ = ("detail", "kind", "plan", "shapes")

    def __init__(self, kind: str, bufs: Sequence[Tensor] = (), detail: object = "") -> None:
        self.kind = kind
        self.shapes = [(buf.dtype, buf.numel()) for buf in bufs]
        self.detail = detail
        self.plan: Any = None
        """The engine's plan for a call that is repeated with the same buffers."""

    def __str__(self) -> str:
        bufs = " + ".join(f"{str(dtype).removeprefix('torch.')}[{numel}]" for dtype, numel in self.shapes)
        detail = self.detail.value if isinstance(self.detail, Op) else str(self.detail)
        return f"{self.kind}({', '.join(part for part in (bufs, detail) if part)})"


def even_slices(numel: int, parts: int, align: int = 1) -> list[slice]:
    """Divides `numel` elements into `parts` slices as equal as multiples of `align` allow; the last may be shorter or empty."""
    step = math.ceil(math.ceil(numel / parts) / align) * align if numel else 0
    return [slice(min(part * step, numel), min((part + 1) * step, numel)) for part in range(parts)]
