"""Every sample exactly once in an epoch, in one global order, whatever the number of workers: shown for random sizes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unisono.data.loader import Loader
from unisono.data.sharding_plan import Plan, Windows, cut
from unisono.data.source import Indices, Source
from unisono.data.sources.open_source import as_source
from unisono.errors import UsageError

sizes = st.integers(1, 400)
workers = st.integers(1, 9)
epochs = st.integers(0, 5)
seeds = st.integers(-(2**70), 2**70)
windows = st.one_of(st.none(), st.builds(Windows, st.integers(1, 50), st.integers(1, 6)))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    return Plan(draw(sizes), draw(st.integers(1, 120)), draw(seeds), draw(st.booleans()), draw(windows))


@given(total=st.integers(0, 10_000), parts=st.integers(1, 64))
def test_a_cut_loses_and_doubles_nothing(total: int, parts: int) -> None:
    pieces = [cut(total, parts, part) for part in range(parts)]
    assert [index for piece in pieces for index in range(piece.start, piece.stop)] == list(range(total))
    lengths = {piece.stop - piece.start for piece in pieces}
    assert max(lengths) - min(lengths) <= 1


@given(plan=plans(), epoch=epochs)
@settings(max_examples=200)
def test_an_epoch_has_every_sample_once(plan: Plan, epoch: int) -> None:
    assert sorted(plan.order(epoch)) == list(range(plan.num_samples))


@given(plan=plans(), epoch=epochs, parts=workers)
@settings(max_examples=200)
def test_the_parts_of_all_workers_are_the_global_order(plan: Plan, epoch: int, parts: int) -> None:
    order = plan.order(epoch)
    seen = [
        order[plan.part(step, part, parts)] for step in range(plan.steps_per_epoch) for part in range(parts)
    ]  # step by step, and in each the workers in their order
    assert np.array_equal(np.concatenate(seen), order)
    lengths = {plan.batch(step).stop - plan.batch(step).start for step in range(plan.steps_per_epoch - 1)}
    assert lengths <= {plan.global_batch}, "only the last batch may be short"


@given(plan=plans(), epoch=epochs, parts=workers, accumulate=st.integers(1, 4))
@settings(max_examples=100)
def test_loaders_read_what_the_plan_says(plan: Plan, epoch: int, parts: int, accumulate: int) -> None:
    source = as_source((np.arange(plan.num_samples), np.zeros(plan.num_samples)))
    read = [list(Loader(source, plan, part, parts, accumulate).epoch(epoch)) for part in range(parts)]
    used = [batch[0] for step in range(plan.steps_per_epoch) for part in range(parts) for batch in read[part][step].micro_batches]
    assert np.array_equal(np.concatenate(used), plan.order(epoch))
    for portions in read:
        assert all(sum(len(batch[0]) for batch in one.micro_batches) == len(one.indices) for one in portions)


@given(plan=plans(), first_step=st.integers(0, 40))
@settings(max_examples=50)
def test_a_loader_can_begin_in_the_middle(plan: Plan, first_step: int) -> None:
    source = as_source((np.arange(plan.num_samples), np.zeros(plan.num_samples)))
    whole = list(Loader(source, plan, 0, 2).epoch(3))
    rest = list(Loader(source, plan, 0, 2).epoch(3, first_step))
    assert len(rest) == max(0, len(whole) - first_step)
    assert all(np.array_equal(a.indices, b.indices) for a, b in zip(whole[first_step:], rest, strict=True))


@given(num_samples=st.integers(1, 300), chunk=st.integers(1, 40), held=st.integers(1, 5), epoch=epochs)
@settings(max_examples=100)
def test_windows_hold_few_chunks_at_a_time(num_samples: int, chunk: int, held: int, epoch: int) -> None:
    """A reader that keeps `held` chunks reads each of them once."""
    order = Plan(num_samples, 7, windows=Windows(chunk, held)).order(epoch) // chunk
    last_use = {int(number): position for position, number in enumerate(order)}
    first_use = {int(number): position for position, number in reversed(list(enumerate(order)))}
    for position in range(num_samples):
        assert sum(first_use[number] <= position <= last_use[number] for number in first_use) <= held


@given(plan=plans())
@settings(max_examples=50)
def test_the_order_is_a_function_of_seed_and_epoch_alone(plan: Plan) -> None:
    again = Plan(plan.num_samples, 1, plan.seed, plan.shuffle, plan.windows)
    assert np.array_equal(plan.order(2), again.order(2))


def test_epochs_and_seeds_differ() -> None:
    plan = Plan(500, 10, seed=1)
    orders = [tuple(plan.order(epoch)) for epoch in range(3)] + [tuple(Plan(500, 10, seed=2).order(0))]
    assert len(set(orders)) == 4
    assert tuple(Plan(500, 10, shuffle=False).order(1)) == tuple(range(500))


def test_the_order_stays_the_same_from_version_to_version() -> None:
    """Results that were published must be repeatable: these numbers may never change."""
    assert Plan(8, 4, seed=7).order(3).tolist() == ORDER_OF_8


def test_a_shuffle_is_fair() -> None:
    """Every place is as likely for every sample: chi-squared over 600 epochs with 35 degrees of freedom."""
    counts = np.zeros((6, 6))
    for epoch in range(600):
        counts[np.arange(6), Plan(6, 6, seed=3).order(epoch)] += 1
    statistic = ((counts - 100) ** 2 / 100).sum()
    assert 5 < statistic < 60  # 25 free numbers: mean 25, and beyond 60 once in 10,000 seeds


@pytest.mark.parametrize(("num_samples", "global_batch"), [(0, 1), (5, 0), (5, -3)])
def test_nothing_to_plan_with_is_refused(num_samples: int, global_batch: int) -> None:
    with pytest.raises(UsageError, match="at least"):
        Plan(num_samples, global_batch)


ORDER_OF_8 = [2, 5, 7, 3, 0, 6, 4, 1]


def test_an_error_comes_where_its_portion_would() -> None:
    """Small steps are prepared some at a time; what can be trained before a bad sample is."""

    class Cracked(Source):
        in_memory = True

        def __len__(self) -> int:
            return 40

        def read(self, indices: Indices) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
            if 25 in indices:
                raise OSError("sample 25 cannot be read")
            return indices.astype(np.float32)[:, None], indices.astype(np.float32)

    got = []
    with pytest.raises(OSError, match="sample 25"):
        for portion in Loader(Cracked(), Plan(40, 2, shuffle=False), 0, 1).epoch(0):
            got.append(int(portion.indices[0]))
    assert got == list(range(0, 24, 2))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_shards_do_not_depend_on_the_reader(size: int) -> None:
    source, plan = as_source((np.arange(37.0)[:, None], np.arange(37.0))), Plan(37, 10)
    steps: list[list[list[int]]] = [[] for _ in range(plan.steps_per_epoch)]
    for rank in range(size):
        own = range(5 * rank // size, 5 * (rank + 1) // size)
        for step, portion in enumerate(Loader(source, plan, own.start, 5, own_shards=own).epoch(1)):
            steps[step] += [[] if batch is None else batch[1].astype(int).tolist() for batch in portion.micro_batches]
    assert [[number for shard in step for number in shard] for step in steps] == [
        plan.order(1)[plan.batch(step)].tolist() for step in range(plan.steps_per_epoch)
    ]
    assert [[len(shard) for shard in step] for step in steps] == [[2] * 5, [2] * 5, [2] * 5, [1, 1, 2, 1, 2]]
