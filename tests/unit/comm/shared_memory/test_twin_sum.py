"""The sum into both: the same bits as NumPy's, never a wrong routine, and the same results where there is none."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unisono.comm.calls import DTYPES, MAX, MIN, SUM, Op
from unisono.comm.shared_memory import reduce_slices, twin_sum
from unisono.comm.shared_memory.reduce_slices import reduction, reduction_into
from unisono.comm.shared_memory.twin_sum import TwinSum, twin_sums

_COMBINED: Mapping[Op, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    SUM: lambda a, b: a + b,
    MIN: torch.minimum,
    MAX: torch.maximum,
}


def some_twin_sums() -> Mapping[np.dtype[Any], TwinSum]:
    found = twin_sums()
    if not found:
        pytest.skip("NumPy's BLAS here has no rotation that is right and quicker; use NumPy's own wheels")
    return found


@pytest.mark.parametrize("numel", [1, 5, 64, 1000, 70_001])
def test_both_become_the_bits_of_the_sum(numel: int) -> None:
    for dtype, twin in some_twin_sums().items():
        source = np.random.default_rng(numel)
        x, y = (source.bytes(numel * dtype.itemsize) for _ in range(2))  # any bits at all: NaNs, subnormals, infinities
        first, second = (np.frombuffer(data, dtype).copy() for data in (x, y))
        with np.errstate(all="ignore"):
            right = (first + second).tobytes()
        twin.step(first, second)()
        assert first.tobytes() == right
        assert second.tobytes() == right


def test_long_vectors_are_cut_where_a_library_counts_in_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twin_sum, "_MOST_NUMEL", 1000)
    for dtype, twin in some_twin_sums().items():
        x, y = np.arange(2500, dtype=dtype), np.full(2500, 2, dtype)
        twin.step(x, y)()
        assert np.array_equal(x, np.arange(2500) + 2)
        assert np.array_equal(y, x)


def test_a_routine_that_gives_something_else_is_not_taken() -> None:
    def does_nothing(*_: object) -> None: ...

    assert not twin_sum._is_right(TwinSum(does_nothing, np.float32), np.float32)

    def only_the_first(numel: ctypes.c_int64, x: ctypes.c_void_p, _: object, y: ctypes.c_void_p, *__: object) -> None:
        first, second = (np.ctypeslib.as_array(ctypes.cast(at, ctypes.POINTER(ctypes.c_float)), (numel.value,)) for at in (x, y))
        with np.errstate(all="ignore"):
            first += second

    assert not twin_sum._is_right(TwinSum(only_the_first, np.float32), np.float32)


@pytest.mark.parametrize("without_blas", [False, True])
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("num_parts", [1, 2, 3, 5])
@pytest.mark.parametrize("op", [SUM, MIN, MAX])
def test_every_part_gets_the_reduction_in_order(
    op: Op, num_parts: int, num_threads: int, without_blas: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if without_blas:
        monkeypatch.setattr(reduce_slices, "twin_sums", dict)
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)
    monkeypatch.setattr(reduce_slices, "CHUNK_BYTES", 1)  # so that there are several pieces
    for dtype in DTYPES:
        torch.manual_seed(0)
        parts = [(torch.randn(10_001) * 10).to(dtype) for _ in range(num_parts)]
        right, out = parts[0].clone(), torch.empty_like(parts[0])
        if op is SUM and dtype in (torch.float16, torch.bfloat16):
            right = sum((part.float() for part in parts[1:]), parts[0].float()).to(dtype)
        else:
            for part in parts[1:]:
                right = _COMBINED[op](right, part)
        reduction_into(out, parts, op)()
        assert torch.equal(out, right)
        again = reduction(parts, op)
        again()
        assert all(torch.equal(part, right) for part in parts)


def test_infinities_and_overflow_are_no_warnings() -> None:
    for num_parts in (2, 3):
        parts = [torch.full((5000,), torch.finfo(torch.float32).max) for _ in range(num_parts)]
        out = torch.empty(5000)
        reduction_into(out, parts, SUM)()
        reduction(parts, SUM)()
        assert all(bool(part.isinf().all()) for part in (*parts, out))


def test_a_library_that_was_replaced_on_disk_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "7f00-7f01 r-xp 00000000 00:00 0    /nowhere/libblas.so (deleted)\n"
    monkeypatch.setattr(Path, "read_text", lambda _: line)
    assert list(twin_sum._find_routines("s")) == []
