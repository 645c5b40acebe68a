"""Test values that every rank can compute for every other, and their comparison with numpy's results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unisono.comm.base import Communicator, Op

Array = npt.NDArray[Any]


def expect(condition: bool, otherwise: str) -> None:
    """Asserts a condition, also under `python -O`."""
    if not condition:
        raise AssertionError(otherwise)


def contribution(rank: int, numel: int, salt: int = 0) -> Array:
    """The values of a rank: whole numbers from 0 to 22, so that sums of a few ranks are exact in every type."""
    period = (np.arange(23, dtype=np.int64) * 7 + rank * 13 + salt * 5) % 23
    return np.tile(period, -(-numel // 23))[:numel]


def numpy_reduce(op: Op, arrays: Iterable[Array]) -> Array:
    """Reduces arrays with numpy, in their own type."""
    stacked = np.stack(list(arrays))
    if op is Op.SUM:
        return np.asarray(stacked.sum(axis=0, dtype=stacked.dtype))
    return np.asarray(stacked.min(axis=0) if op is Op.MIN else stacked.max(axis=0))


def tensor_of(comm: Communicator, values: Array, dtype: torch.dtype, mapped: bool = False) -> Tensor:
    """Copies values to the communicator's device, into a plain tensor or one from `comm.empty`."""
    plain = torch.from_numpy(np.ascontiguousarray(values)).to(dtype)
    target = comm.empty(plain.shape, dtype) if mapped else torch.empty(plain.shape, dtype=dtype, device=comm.device)
    return target.copy_(plain)


def array_of(tensor: Tensor) -> Array:
    """Converts a tensor to numpy, widened without loss to a type that numpy has."""
    host = tensor.detach().cpu()
    return np.asarray((host.double() if host.is_floating_point() else host.long()).numpy())


def expect_equal(tensor: Tensor, expected: Array, what: str) -> None:
    """Asserts that a tensor holds the expected whole numbers: exactly, or to the precision of its type where they are too large."""
    got = array_of(tensor).reshape(-1)
    wanted = np.asarray(expected).reshape(-1)
    if np.array_equal(got, wanted):
        return
    expect(got.shape == wanted.shape, f"{what}: {got.size} elements where {wanted.size} were expected")
    if tensor.is_floating_point():
        info = torch.finfo(tensor.dtype)
        exact_to = 2 / info.eps
        tolerance = np.where(np.abs(wanted) <= exact_to, 0.0, np.abs(wanted) * info.eps * 4)
        wrong = np.flatnonzero(~(np.abs(got - wanted) <= tolerance))
    else:
        wrong = np.flatnonzero(got != array_of(torch.from_numpy(wanted.astype(np.int64)).to(tensor.dtype)))
    if wrong.size:
        first = int(wrong[0])
        raise AssertionError(
            f"{what}: {wrong.size} of {got.size} elements differ, first at {first}: got {got[first]!r}, expected {wanted[first]!r}"
        )


def parts_of(counts: Sequence[int]) -> list[slice]:
    """The slice of each rank when parts of `counts` elements follow one another."""
    return [slice(start, end) for start, end in pairwise((0, *accumulate(counts)))]


def uneven_counts(size: int, unit: int = 3) -> list[int]:
    """Counts that differ between ranks; the last rank has none when there are several."""
    return [unit * (r + 1) if r + 1 < size or size == 1 else 0 for r in range(size)]
