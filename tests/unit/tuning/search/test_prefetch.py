"""Proposals are there before anybody asks, and made anew when they are old and that costs little. Nobody waits in vain."""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import monotonic, perf_counter
from typing import Any, cast

import optuna
import pytest

from unisono.task.task import Range
from unisono.tuning.search.prefetch import MAX_PREFETCHED, Prefetcher, ProposalsOnDemand
from unisono.tuning.search.samplers import make_sampler, num_startup_trials
from unisono.tuning.search.search import Proposal, Search
from unisono.tuning.search.space import Dimension, Space
from unisono.tuning.study.study import COMPLETE

WAIT_S = 10.0


class FakeSearch:
    """Proposes 0, 1, 2, ...; each takes `cost_s` of its own clock, and begins when it is allowed."""

    def __init__(self, cost_s: float = 0.0, learns: bool = True) -> None:
        self.now = 0.0
        self.learns = learns
        self.cost_s = cost_s
        self.allowed = threading.Semaphore(0)
        self.num_made = 0
        self.withdrawn: list[int] = []
        self.raises: dict[str, Exception] = {}
        self.has_fallback, self.num_quick = False, 0

    def warm_up(self) -> None:
        """Nothing to load."""

    def propose(self) -> Proposal:
        assert self.allowed.acquire(timeout=WAIT_S)
        self.now += self.cost_s
        if "propose" in self.raises:
            raise self.raises["propose"]
        self.num_made += 1
        return Proposal({"x": self.num_made - 1}, None)

    def propose_by_fallback(self) -> Proposal:
        self.num_quick += 1
        return Proposal({"x": -self.num_quick}, None)

    def withdraw(self, proposal: Proposal) -> None:
        if "withdraw" in self.raises:
            raise self.raises["withdraw"]
        self.withdrawn.append(proposal.values["x"])


class Watched:
    """An `Ahead` whose every word is waited for."""

    def __init__(self, search: FakeSearch, depth: int) -> None:
        self.search = search
        self.woken: queue.Queue[None] = queue.Queue()
        self.ahead = Prefetcher(cast(Search, search), depth, lambda: self.woken.put(None))

    def make(self, count: int = 1) -> None:
        """Until so many more are made."""
        self.search.allowed.release(count)
        for _ in range(count):
            self.woken.get(timeout=WAIT_S)

    def take(self, trial_s: float | None = None) -> int | None:
        found = self.ahead.next_proposal(trial_s)
        return None if found is None else int(found.values["x"])

    def until_begun(self) -> None:
        """Until the thread is at one."""
        until = monotonic() + WAIT_S
        while self.ahead._making_since is None:
            assert monotonic() < until, "nothing is made"

    def is_at_work(self) -> bool:
        """Whether the thread makes another, or is about to."""
        with self.ahead._changed:
            return self.ahead._has_work() and not self.ahead._is_closed


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The time that making takes is that of the fake, in the tests that have one."""
    monkeypatch.setattr(Current, "search", None)
    monkeypatch.setattr(
        "unisono.tuning.search.prefetch.perf_counter", lambda: perf_counter() if Current.search is None else Current.search.now
    )
    yield


class Current:
    search: FakeSearch | None = None


@contextmanager
def watched(search: FakeSearch, depth: int) -> Iterator[Watched]:
    Current.search = search
    found = Watched(search, depth)
    try:
        yield found
    finally:
        search.allowed.release(1000)  # whatever it is at
        found.ahead.close()


def test_proposals_are_ready_before_they_are_requested() -> None:
    with watched(FakeSearch(), 3) as it:
        assert it.take() is None, "nothing is made yet"
        it.make(3)
        assert not it.is_at_work(), "as many as there are blocks, and no more"
        assert [it.take(), it.take(), it.take(), it.take()] == [0, 1, 2, None]
        it.make(2)
        assert [it.take(), it.take()] == [3, 4]


@pytest.mark.parametrize(("depth", "expected"), [(1, 1), (MAX_PREFETCHED, MAX_PREFETCHED), (1000, MAX_PREFETCHED)])
def test_how_many_are_prefetched(depth: int, expected: int) -> None:
    with watched(FakeSearch(), depth) as it:
        it.make(expected)
        assert not it.is_at_work()


def test_of_proposals_that_know_all_results_the_oldest_is_taken() -> None:
    with watched(FakeSearch(), 3) as it:
        it.make(3)
        assert it.take() == 0
        it.make()
        assert it.take() == 1


def test_of_old_proposals_the_newest_is_taken() -> None:
    with watched(FakeSearch(), 3) as it:
        it.make(3)
        it.ahead.on_result(None)
        assert it.take() == 2
        it.make()
        assert it.take() == 3, "one that knows the result goes before those that do not"
        assert it.search.withdrawn == []


def test_old_proposals_are_recreated_where_that_costs_little() -> None:
    with watched(FakeSearch(cost_s=0.01), 3) as it:
        it.make(3)
        it.ahead.on_result(1.0)
        assert it.is_at_work()
        it.make(3)
        assert it.search.withdrawn == [0, 1, 2] and not it.is_at_work()
        assert it.take() == 3
        it.make(1)
        it.ahead.on_result(1.0)
        it.make(3)
        assert it.search.withdrawn == [0, 1, 2, 4, 5, 6] and not it.is_at_work()


def test_old_proposals_stay_where_new_ones_would_be_dear() -> None:
    with watched(FakeSearch(cost_s=1.0), 3) as it:
        it.make(3)
        it.ahead.on_result(11.0)
        assert not it.is_at_work()
        assert it.take() == 2
        it.make()
        assert not it.is_at_work() and it.search.withdrawn == []
        it.ahead.on_result(13.0)
        assert it.is_at_work(), "results have become rare enough"


def test_proposals_of_a_search_that_learns_nothing_never_grow_old() -> None:
    with watched(FakeSearch(cost_s=0.001, learns=False), 3) as it:
        it.make(3)
        it.ahead.on_result(100.0)
        assert not it.is_at_work()
        assert [it.take(trial_s=100.0), it.take(trial_s=100.0)] == [0, 1]
        assert it.search.withdrawn == []


def test_a_block_waits_for_a_fresh_one_where_that_is_nothing_beside_a_trial() -> None:
    with watched(FakeSearch(cost_s=0.001), 2) as it:
        it.make(2)
        it.ahead.on_result(5.0)
        assert it.take(trial_s=10.0) is None and it.is_at_work()
        it.make(1)
        assert it.take(trial_s=10.0) == 2
        assert it.search.withdrawn == [0, 1] and not it.is_at_work(), "what nobody would take is not made"
        assert it.take(trial_s=0.1) is None and it.is_at_work()
        it.make(2)
        assert it.take(trial_s=0.1) == 3
        it.make(1)
        it.ahead.on_result(5.0)
        assert it.take(trial_s=0.1) is not None, "it is not nothing beside a short trial"


def test_a_stopgap_is_taken_where_a_block_would_wait_long() -> None:
    with watched(FakeSearch(cost_s=1.0), 2) as it:
        it.search.has_fallback = True
        assert it.take() is None, "nobody knows what is long"
        it.make(2)
        assert [it.take(trial_s=10.0), it.take(trial_s=10.0)] == [0, 1], "what is there goes before"
        assert it.take(trial_s=10.0) == -1, "one takes a second"
        assert it.take(trial_s=30.0) is None, "which is little beside this"
        it.until_begun()
        it.search.now += 2.0
        assert it.take(trial_s=30.0) == -2, "but the next one takes longer"
        it.make(2)
        assert it.take(trial_s=10.0) == 2


@pytest.mark.parametrize("cost_s", [0.0001, 0.004, 0.1])
@pytest.mark.parametrize("num_blocks", [1, 8, 32, 100])
@pytest.mark.parametrize("learns", [True, False])
def test_a_waiting_block_is_woken(learns: bool, num_blocks: int, cost_s: float) -> None:
    trial_s = 10.0
    with watched(FakeSearch(cost_s, learns=learns), num_blocks) as it:
        it.make(min(num_blocks, MAX_PREFETCHED))
        it.ahead.on_result(trial_s / num_blocks)
        found = it.take(trial_s)
        assert found is not None or it.is_at_work(), "a block is told to wait, and nobody makes what it waits for"


SPACE = Space([Dimension("x", Range(-1.0, 1.0)), Dimension("n", Range(1, 99), is_integer=True)])


@pytest.mark.parametrize("name", ["random", "tpe", "gp", "cmaes", "evolution"])
def test_a_single_block_gets_the_points_that_optuna_draws_with_the_seed(name: str) -> None:
    """In a task, whose space is known; a point that was tried before is drawn again. However long a proposal takes, no other
    search proposes."""
    num_trials = 13 if name == "gp" else 30
    search = Search(SPACE, name, [False], 3, num_trials=num_trials, has_fallback=True, is_sequential=True)
    proposals = ProposalsOnDemand(search)
    study = optuna.create_study(sampler=make_sampler(optuna, name, 3, num_startup_trials(name, num_trials), conditional=False))
    tried = list[Mapping[str, Any]]()
    for number in range(num_trials):
        proposal = proposals.next_proposal(1e-9)
        for trial in iter(study.ask, None):
            values = {"x": trial.suggest_float("x", -1.0, 1.0), "n": trial.suggest_int("n", 1, 99)}
            if values not in tried:
                break
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        assert proposal.values == values, number
        tried.append(values)
        search.start_trial(number, proposal)
        search.tell(number, COMPLETE, [value := values["x"] ** 2 * values["n"]])
        study.tell(trial, value)
        proposals.on_result(1e-9)


def test_random_points_of_a_task_are_those_of_the_seed_with_any_number_of_blocks() -> None:
    def points(num_blocks: int) -> list[Mapping[str, Any]]:
        woken: queue.Queue[None] = queue.Queue()
        proposals = Prefetcher(Search(SPACE, "random", [False], 3), num_blocks, lambda: woken.put(None))
        found = list[Mapping[str, Any]]()
        try:
            while len(found) < 20:
                if (one := proposals.next_proposal(1.0)) is None:
                    woken.get(timeout=WAIT_S)
                else:
                    found.append(one.values)
                    proposals.on_result(0.1)
        finally:
            proposals.close()
        return found

    alone = ProposalsOnDemand(Search(SPACE, "random", [False], 3, is_sequential=True))
    assert points(2) == points(5) == [alone.next_proposal(1.0).values for _ in range(20)]


@pytest.mark.parametrize("where", ["propose", "withdraw"])
def test_an_error_of_the_search_is_raised_to_the_caller(where: str) -> None:
    with watched(FakeSearch(cost_s=0.001), 2) as it:
        it.make(2)
        it.search.raises[where] = ValueError("no more memory for a kernel")
        it.ahead.on_result(10.0)
        it.make(1)
        for _ in range(2):
            with pytest.raises(ValueError, match="no more memory for a kernel"):
                it.take()


def test_closing_waits_for_the_proposal_in_hand() -> None:
    search = FakeSearch()
    Current.search = search
    it = Watched(search, 2)
    closer = threading.Thread(target=it.ahead.close)
    closer.start()
    search.allowed.release(5)
    closer.join(WAIT_S)
    assert not closer.is_alive() and not it.ahead._thread.is_alive()
    assert search.num_made <= 1
    it.ahead.close()  # once more does no harm


@pytest.mark.parametrize("seed", range(3))
def test_every_proposal_is_given_once_or_withdrawn_once(seed: int) -> None:
    draw, depth = random.Random(seed), 5
    with watched(FakeSearch(cost_s=0.001), depth) as it:
        it.search.allowed.release(100_000)
        taken = list[int]()
        while len(taken) < 300:
            if draw.random() < 0.3:
                it.ahead.on_result(draw.choice((None, 0.001, 10.0)))
            found = it.take(None)
            if found is None:
                it.woken.get(timeout=WAIT_S)
            else:
                taken.append(found)
    withdrawn = it.search.withdrawn
    assert len(set(taken)) == len(taken) and len(set(withdrawn)) == len(withdrawn)
    assert not set(taken) & set(withdrawn)
    assert it.search.num_made - len(taken) - len(withdrawn) <= depth
