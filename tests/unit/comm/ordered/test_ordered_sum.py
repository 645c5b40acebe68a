"""Sums over shards, on ranks that are threads: both ways of combining the blocks, all divisions, cost, mistakes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest
import torch
from torch import Tensor

from unisono.comm.arguments import flat_views
from unisono.comm.base import Buffers, Communicator, Group, Watch
from unisono.comm.engines.shm import open_shm
from unisono.comm.ordered import ordered_sum, sum_of_slices
from unisono.comm.ordered.ordered_sum import OrderedSum
from unisono.comm.single_process import single_process_communicator
from unisono.errors import UsageError
from unisono.testing.checks.ordered_sums import (
    FLOATS,
    even_ranges,
    lopsided_ranges,
    recursive_sum,
    same_bits,
    shard_values,
)
from unisono.testing.counting import Counting
from unisono.testing.thread_communicator import run_threads

T = TypeVar("T")


def run_shm(size: int, body: Callable[[Communicator], T]) -> list[T]:
    def inside(threads: Communicator) -> T:
        ranks = tuple(range(size))
        with open_shm(Group("shm", threads.rank, ranks, ranks), threads.control, 20.0, num_cpus=1) as comm:
            return body(comm)

    return run_threads(size, inside, time_limit_s=20.0)


RUNS = {"threads": run_threads, "shm": run_shm}


def summed(comm: Communicator, ranges: list[range], vectors: list[Tensor], values: Callable[[int, int], Tensor]) -> list[Tensor]:
    """`values(shard, place)` summed over all shards."""
    total = OrderedSum(comm, ranges)
    for _ in range(2):
        for shard in ranges[comm.rank]:
            for place, vector in enumerate(vectors):
                vector.copy_(values(shard, place))
            total.add(vectors)
        total.finish()
    return vectors


@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize(("engine", "num_threads"), [("threads", 1), ("shm", 1), ("shm", 2)])
def test_bits_are_those_of_the_recursive_sum_for_every_division(
    engine: str, num_threads: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sum_of_slices, "GATHERED_BYTES", 1000)  # so that short vectors take both ways
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)  # by which the arithmetic is chosen
    kinds = [(numel, dtype) for numel, dtype in zip((50, 3, 0, 21), FLOATS, strict=True)]
    shards = sorted({size, size + 1, 2 * size, 16, 23, 33})
    drawn = [[shard_values(shard, kind) for shard in range(max(shards))] for kind in kinds]
    wanted = {num_shards: [recursive_sum(values[:num_shards]) for values in drawn] for num_shards in shards}

    def body(comm: Communicator) -> None:
        for num_shards in shards:
            for ranges in (even_ranges(num_shards, size), lopsided_ranges(num_shards, size)):
                vectors = [torch.empty(numel, dtype=dtype) for numel, dtype in kinds]
                summed(comm, ranges, vectors, lambda shard, place: drawn[place][shard])
                for vector, right in zip(vectors, wanted[num_shards], strict=True):
                    assert same_bits(vector, right), (ranges, vector.dtype)

    RUNS[engine](size, body)


def test_another_order_gives_other_bits() -> None:
    """Otherwise the tests above would show nothing."""
    for dtype in FLOATS:
        for num_shards in (3, 4, 8, 13):
            values = [shard_values(shard, (30, dtype)) for shard in range(num_shards)]
            backwards = values[-1]
            for value in reversed(values[:-1]):
                backwards = backwards + value
            assert not same_bits(backwards, recursive_sum(values))


def test_what_is_not_finite_travels() -> None:
    given = [
        torch.tensor([1.0, torch.inf, torch.nan, torch.inf]),
        torch.tensor([3e38, 1.0, 1.0, -torch.inf]),
        torch.full((4,), 3e38),
    ]
    for run in RUNS.values():
        for total in run(3, lambda comm: summed(comm, even_ranges(3, 3), [torch.empty(4)], lambda shard, _: given[shard])[0]):
            assert total.isinf().tolist() == [True, True, False, False]
            assert total.isnan().tolist() == [False, False, True, True]


def test_vectors_of_a_shard_may_be_overwritten_unless_it_was_the_last() -> None:
    with single_process_communicator() as comm:
        total, vector = OrderedSum(comm, [range(5)]), torch.empty(1)
        for shard in range(5):
            vector.fill_(10.0**shard)
            total.add([vector])
        total.finish()
        assert vector.item() == 11111.0


class Sent(Counting):
    """Counts what collectives send to others, as far as these sums use them."""

    num_calls = 0

    def _allgather(self, out: Tensor, buf: Tensor, counts: list[int], watch: Watch) -> None:
        self.num_calls += 1
        self.sends += [(r, buf.nbytes) for r in range(self.size) if r != self.rank]
        super()._allgather(out, buf, counts, watch)

    def _alltoall(self, out: Tensor, buf: Tensor, out_counts: list[int], in_counts: list[int], watch: Watch) -> None:
        self.num_calls += 1
        self.sends += [(r, count * buf.itemsize) for r, count in enumerate(in_counts) if r != self.rank]
        super()._alltoall(out, buf, out_counts, in_counts, watch)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_whole_subtrees_send_no_more_than_a_ring(size: int) -> None:
    numel = 8 * 20_000

    def body(comm: Communicator) -> tuple[int, int]:
        counted = Sent(comm)
        total, vectors = OrderedSum(counted, even_ranges(4 * size, size)), [torch.ones(numel), torch.ones(30, dtype=torch.float64)]
        for _ in range(4):
            total.add(vectors)
        total.finish()
        assert bool((vectors[0] == 4 * size).all())
        return counted.bytes_sent, counted.num_calls

    tail_bytes = 30 * 8 * (size - 1)
    assert run_threads(size, body) == [(2 * numel * 4 * (size - 1) // size + tail_bytes, 3)] * size


def test_memory_is_taken_once() -> None:
    def body(comm: Communicator) -> None:
        taken = []

        def empty(numel: int, dtype: torch.dtype) -> Tensor:
            taken.append(torch.empty(numel, dtype=dtype))
            return taken[-1]

        comm.empty = empty  # type: ignore[assignment, method-assign]
        total, vectors = OrderedSum(comm, even_ranges(13, 3)), [torch.ones(100_000), torch.ones(3)]
        after = []
        for _ in range(3):
            for _ in even_ranges(13, 3)[comm.rank]:
                total.add(vectors)
            total.finish()
            after.append(len(taken))
        assert after == [after[0]] * 3 and after[0] > 0

    run_threads(3, body)


class Elsewhere(Counting):
    """Says that it is on another device than the vectors, and counts what it carries; all is on the CPU, by two of its names."""

    def __init__(self, inner: Communicator) -> None:
        super().__init__(inner)
        self.device = torch.device("cpu", 0)
        self.places: list[int] = []

    def empty(self, shape: int | Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        return self.inner.empty(shape, dtype)

    def _checked(self, bufs: Buffers) -> list[Tensor]:
        self.places += [buf.data_ptr() for buf in bufs]
        return flat_views(bufs, self.inner.device, self.engine)


def test_vectors_on_another_device_are_copied_there_and_back() -> None:
    values = [shard_values(shard, (100_000, torch.float32)) for shard in range(7)]

    def body(comm: Communicator) -> bool:
        elsewhere = Elsewhere(comm)
        (vector,) = summed(elsewhere, even_ranges(7, 3), [torch.empty(100_000)], lambda shard, _: values[shard])
        return bool(elsewhere.places) and vector.data_ptr() not in elsewhere.places and same_bits(vector, recursive_sum(values))

    assert all(run_threads(3, body))


def test_one_rank_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered_sum, "SumOfSlices", None)
    monkeypatch.setattr(ordered_sum, "SumInMemory", None)
    with single_process_communicator() as comm:
        (vector,) = summed(comm, [range(3)], [torch.empty(2)], lambda shard, _: torch.full((2,), float(shard)))
    assert vector.tolist() == [3.0, 3.0]


@pytest.mark.parametrize("ranges", [[], [range(2), range(2, 3)], [range(1, 3)], [range(0)]])
def test_ranges_that_do_not_fit_are_refused(ranges: list[range]) -> None:
    with single_process_communicator() as comm, pytest.raises(UsageError, match="must follow one another from shard 0"):
        OrderedSum(comm, ranges)


def test_mistakes_are_reported() -> None:
    with single_process_communicator() as comm:
        total = OrderedSum(comm, [range(2)])
        with pytest.raises(UsageError, match="flat, contiguous vectors of a floating type"):
            total.add([torch.ones(2, 2)])
        with pytest.raises(UsageError, match="floating type"):
            total.add([torch.ones(2, dtype=torch.int64)])
        total.add([torch.ones(2)])
        with pytest.raises(UsageError, match="of other sizes, types or devices than the first"):
            total.add([torch.ones(3)])
        with pytest.raises(UsageError, match="1 of 2 shards of rank 0 were added"):
            total.finish()
        total.add([torch.ones(2)])
        with pytest.raises(UsageError, match="already added; call finish"):
            total.add([torch.ones(2)])
