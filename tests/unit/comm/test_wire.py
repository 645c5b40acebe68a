"""Sums that travel as bf16 or fp16, against float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unisono.comm.base import Communicator
from unisono.comm.single import alone
from unisono.comm.threads import run_threads
from unisono.comm.wire import allreduce_as, start_allreduce_as
from unisono.errors import MismatchedCall, UsageError

ROUNDOFF = {"bf16": 2.0**-8, "fp16": 2.0**-11}
SMALLEST = {"bf16": 2.0**-134, "fp16": 2.0**-25}
"""Half of the smallest positive number: the absolute error where the relative one does not hold any more."""


def noise(rank: int, numel: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * numel + rank)
    sizes = 10.0 ** (torch.rand(numel, generator=generator, dtype=torch.float64) * 9 - 6)
    return (torch.randn(numel, generator=generator, dtype=torch.float64) * sizes).to(dtype)


@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize("wire", ["bf16", "fp16"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_error_is_that_of_two_roundings_and_bits_are_equal(size: int, wire: str, dtype: torch.dtype) -> None:
    def body(comm: Communicator) -> None:
        for numel in (0, 1, size - 1, 64, 1001):
            buf = noise(comm.rank, numel, dtype).view(-1, 1)
            allreduce_as(comm, buf, wire)
            result = buf.flatten().double().numpy()
            everybody = np.stack([noise(r, numel, dtype).double().numpy() for r in range(size)])
            total, absolute = everybody.sum(axis=0), np.abs(everybody).sum(axis=0)
            if size == 1:
                np.testing.assert_array_equal(result, total)
                continue
            u, tiny = ROUNDOFF[wire], SMALLEST[wire]
            before = u * absolute + size * tiny  # the addends' roundings
            between = size * 2.0**-24 * (1 + u) * absolute  # the sum in float32
            after = u * (np.abs(total) + before + between) + tiny  # the sum's rounding
            assert (np.abs(result - total) <= before + between + after).all()
            texts = comm.allgather_object(result.tobytes())
            assert texts == [texts[0]] * size

    run_threads(size, body)


def test_values_of_the_wire_type_are_rounded_once_and_summed_in_rank_order() -> None:
    def body(comm: Communicator) -> list[float]:
        buf = torch.tensor([[256.0, 1e8], [1.0, 1.0], [1.0, -1e8]][comm.rank])
        allreduce_as(comm, buf, "bf16")
        return buf.tolist()

    # 1 + 1 + 256 keeps its ones; 1e8 + 1 - 1e8 in float32 and in this order does not.
    assert run_threads(3, body) == [[258.0, 0.0]] * 3


def test_it_sends_half_the_bytes() -> None:
    shapes: list[tuple[torch.dtype, list[int]]] = []

    def body(comm: Communicator) -> None:
        alltoall, allgather = comm._alltoall, comm._allgather

        def seen_alltoall(out: torch.Tensor, buf: torch.Tensor, to: list[int], counts: list[int], watch: object) -> None:
            shapes.append((buf.dtype, counts))
            alltoall(out, buf, to, counts, watch)  # type: ignore[arg-type]

        def seen_allgather(out: torch.Tensor, buf: torch.Tensor, counts: list[int], watch: object) -> None:
            shapes.append((buf.dtype, counts))
            allgather(out, buf, counts, watch)  # type: ignore[arg-type]

        comm._alltoall, comm._allgather = seen_alltoall, seen_allgather  # type: ignore[method-assign,assignment]
        allreduce_as(comm, torch.ones(10), "fp16")

    run_threads(4, body)
    # Every member gives away all slices but its own, then its own slice to the others.
    assert shapes == [(torch.float16, [3, 3, 3, 1])] * 8


def test_overflow_of_fp16_is_infinite_and_not_hidden() -> None:
    def body(comm: Communicator, wire: str) -> list[float]:
        buf = torch.tensor(
            [
                [1e6, 4e4, -4e4, 1e6, 1.0, float("nan"), 6e4],
                [1.0, 4e4, -4e4, -1e6, 2.0, 1.0, -6e4],
            ][comm.rank]
        )
        allreduce_as(comm, buf, wire)
        return buf.tolist()

    inf = float("inf")
    for result in run_threads(2, lambda comm: body(comm, "fp16")):
        assert result[:3] == [inf, inf, -inf]  # an addend that does not fit, a sum that does not fit
        assert np.isnan(result[3])  # infinities of both signs
        assert result[4] == 3.0
        assert np.isnan(result[5])
        assert result[6] == 0.0
    for result in run_threads(2, lambda comm: body(comm, "bf16")):
        assert np.isfinite(result[:5]).all()
        assert result[1] == pytest.approx(8e4, rel=2.0**-7)


def test_none_is_the_plain_allreduce_and_started_calls_keep_their_order() -> None:
    def body(comm: Communicator) -> None:
        exact = torch.tensor([1.0 + 2.0**-20])
        allreduce_as(comm, exact, "none")
        assert exact.item() == comm.size * (1.0 + 2.0**-20)
        bufs = [torch.full((5,), float(i + comm.rank)) for i in range(20)]
        works = [start_allreduce_as(comm, buf, ("bf16", "none", "fp16")[i % 3]) for i, buf in enumerate(bufs)]
        for work in works:
            work.wait(30.0)
        ranks = sum(range(comm.size))
        assert [buf.tolist() for buf in bufs] == [[float(ranks + comm.size * i)] * 5 for i in range(20)]

    for size in (1, 3, 4):
        run_threads(size, body)


def test_wrong_use_is_refused() -> None:
    with alone() as comm:
        for call in (allreduce_as, start_allreduce_as):
            with pytest.raises(UsageError, match="must be one of none, bf16, fp16; received 'int8'"):
                call(comm, torch.ones(1), "int8")
            with pytest.raises(UsageError, match=r"carries float32 and float64, but the buffer has type torch.int32"):
                call(comm, torch.ones(1, dtype=torch.int32), "bf16")
            with pytest.raises(UsageError, match="not contiguous"):
                call(comm, torch.ones(2, 3).t(), "bf16")

    def body(comm: Communicator) -> None:
        allreduce_as(comm, torch.ones(4), "bf16" if comm.rank else "fp16")

    with pytest.raises(MismatchedCall, match=r"allreduce_as\(float32\[4\], (bf16|fp16)\)"):
        run_threads(2, body)
