"""Checks of the arguments of a communicator's calls: one clear message for each possible mistake."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from unisono.comm.calls import DTYPES
from unisono.errors import UsageError

Buffers = Tensor | Sequence[Tensor]


def flat_views(bufs: Buffers, device: torch.device, engine: str) -> list[Tensor]:
    """Returns the buffers as flat views; refuses those that cannot be sent."""
    flat = []
    for position, tensor in enumerate((bufs,) if isinstance(bufs, Tensor) else bufs):
        if not tensor.is_contiguous():
            raise UsageError(
                f"buffer {position} (shape {tuple(tensor.shape)}, strides {tensor.stride()}) is not contiguous; "
                "communicate a contiguous tensor, e.g. tensor.contiguous()"
            )
        if tensor.device != device:
            raise UsageError(
                f"buffer {position} is on {tensor.device}, but engine {engine} moves tensors on {device}; "
                f"move it with tensor.to({str(device)!r}) or choose another --engine"
            )
        if tensor.dtype not in DTYPES:
            raise UsageError(
                f"buffer {position} has type {tensor.dtype}, which cannot be communicated; "
                f"use one of {', '.join(str(dtype).removeprefix('torch.') for dtype in DTYPES)}"
            )
        plain = tensor.dim() == 1 and not tensor.requires_grad
        flat.append(tensor if plain else tensor.detach().view(-1))
    return flat


def check_no_overlap(bufs: Sequence[Tensor]) -> None:
    """Refuses buffers of one list that share memory: their content afterwards would depend on the engine and the size."""
    ranges = sorted((buf.data_ptr(), buf.data_ptr() + buf.nbytes, position) for position, buf in enumerate(bufs) if buf.nbytes)
    for (_, end, first), (start, _, second) in pairwise(ranges):
        if start < end:
            raise UsageError(
                f"buffers {min(first, second)} and {max(first, second)} of one all-reduce share memory; give each buffer once"
            )


def check_rank(rank: int, size: int, what: str, group: str) -> None:
    """Raises `UsageError` unless a rank lies in 0..size - 1; `what` and `group` name the argument and its group in the message."""
    if not 0 <= rank < size:
        raise UsageError(f"{what} must lie in 0..{size - 1} of {group}; received {rank}")


def check_tag(tag: int) -> int:
    """Returns the tag; raises `UsageError` unless it lies in 0..32767."""
    # Every MPI promises tags up to 32767; more would work on some engines only.
    if not 0 <= tag <= 32767:
        raise UsageError(f"tag must lie in 0..32767; received {tag}")
    return tag


def check_same_type(kind: str, out: Tensor, buf: Tensor) -> torch.dtype:
    """Returns the common type of both tensors; raises `UsageError` where they differ."""
    if out.dtype != buf.dtype:
        raise UsageError(f"{kind}: out has type {out.dtype} but buf has {buf.dtype}; give both the same type")
    return buf.dtype


def checked_parts(kind: str, long: Tensor, short: Tensor, counts: Sequence[int] | None, rank: int, size: int) -> list[int]:
    """Returns how many elements of `long` each member has, and checks that this rank's `short` has its number."""
    if counts is None and long.numel() != short.numel() * size:
        raise UsageError(
            f"{kind}: the larger buffer has {long.numel()} elements, expected {size} x {short.numel()}; give counts if "
            "the parts differ in size"
        )
    parts = [short.numel()] * size if counts is None else checked_counts(kind, long, counts, "counts", size)
    if parts[rank] != short.numel():
        raise UsageError(f"{kind}: counts[{rank}] is {parts[rank]} but rank {rank} holds {short.numel()}")
    return parts


def checked_counts(kind: str, tensor: Tensor, counts: Sequence[int] | None, name: str, size: int) -> list[int]:
    """Returns the counts by member, equal ones for None; raises `UsageError` unless their sum is the length of the tensor."""
    if counts is None:
        if tensor.numel() % size:
            raise UsageError(f"{kind}: {tensor.numel()} elements cannot be divided equally among {size} members; give {name}")
        return [tensor.numel() // size] * size
    if len(counts) != size or min(counts) < 0 or sum(counts) != tensor.numel():
        raise UsageError(f"{kind}: {name} must be {size} numbers >= 0 with sum {tensor.numel()}; received {list(counts)}")
    return [int(count) for count in counts]
