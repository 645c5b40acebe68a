"""A block of short trials knows the next one before it is free. Whatever comes between, nothing is lost and nothing done twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.tuning.workers.coordinating import ACCURACY, KILL, LINE, TERMINATE, Clock, Job
from unisono.files.journal import Reader
from unisono.tuning.search.space import Space
from unisono.tuning.study import store as storing
from unisono.tuning.study.study import COMPLETE, RUNNING, WAITING
from unisono.tuning.study.trial_plan import Plan
from unisono.tuning.workers.messages import DROPPED
from unisono.tuning.workers.trial_prefetch import FIRST_PREFETCH_S, PREFETCH_AT_SHARE, PREFETCH_BELOW_S
from unisono.tuning.workers.trial_worker import DISK, MEMORY

TRIAL_S = PREFETCH_BELOW_S / 4


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(storing, "monotonic", found)
    return found


@pytest.fixture
def job(tmp_path: Path, clock: Clock) -> Job:
    """Which has done trial 0, and is at the second half of trial 1."""
    return at_second_half(Job(tmp_path, clock, Plan([ACCURACY]), num_trials=6, prefetches=True))


def at_second_half(job: Job, trial_s: float = TRIAL_S) -> Job:
    job.ready()
    passes(job, trial_s)
    job.done(0)
    passes(job, trial_s * PREFETCH_AT_SHARE)
    job.coordinator.tick()
    return job


def passes(job: Job, seconds: float) -> None:
    job.clock.now += seconds


def say_of(job: Job, number: int, what: str, **words: Any) -> None:
    (name,) = (letter["id"] for letter in job.workers.sent[0] if letter.get("number") == number)
    job.coordinator.on_message(0, {"is": what, "id": name, "took_s": 1.0, **words})


def done(job: Job, number: int) -> None:
    say_of(job, number, "done", reason="", metrics={"accuracy": 0.5}, epochs=1)


def events(folder: Path, number: int) -> list[str]:
    records = [record.value for record in Reader(folder / "journal").read(is_over=True)]
    return [record["event"] for record in records if record.get("trial") == number]


def test_the_next_trial_is_sent_in_the_second_half_of_a_trial(tmp_path: Path, clock: Clock) -> None:
    job = Job(tmp_path, clock, Plan([ACCURACY]), prefetches=True)
    job.ready()
    passes(job, TRIAL_S)
    job.done(0)
    job.coordinator.tick()
    assert job.coordinator.max_wait_s(10.0) == pytest.approx(TRIAL_S * PREFETCH_AT_SHARE)
    assert job.begun() == [(0, 0), (1, 0)]
    passes(job, TRIAL_S * PREFETCH_AT_SHARE)
    job.coordinator.tick()
    assert job.begun() == [(0, 0), (1, 0), (2, 0)] and job.coordinator.max_wait_s(10.0) == 10.0
    job.coordinator.tick()
    assert job.begun() == [(0, 0), (1, 0), (2, 0)], "and no more than one"
    assert events(tmp_path, 2) == ["asked"], "it is not at it"


def test_a_worker_begins_the_next_trial_without_asking(job: Job, tmp_path: Path) -> None:
    passes(job, TRIAL_S / 2)
    done(job, 1)
    assert job.begun() == [(0, 0), (1, 0), (2, 0)] and events(tmp_path, 2) == ["asked", "began"]
    passes(job, TRIAL_S)
    done(job, 2)
    assert job.result(2).state == COMPLETE and job.result(2).took_s == pytest.approx(TRIAL_S), "since the one before it"


@pytest.mark.parametrize(
    "search, space, is_prefetched", [("random", None, True), ("tpe", None, True), ("cmaes", None, False), ("random", LINE, False)]
)
def test_first_trials_are_prefetched_where_they_are_drawn_at_random(
    tmp_path: Path, clock: Clock, search: str, space: Space | None, is_prefetched: bool
) -> None:
    job = Job(tmp_path, clock, Plan([ACCURACY]), space=space, search=search, prefetches=True)
    job.ready()
    passes(job, FIRST_PREFETCH_S)
    job.coordinator.tick()
    assert job.begun() == ([(0, 0), (1, 0)] if is_prefetched else [(0, 0)]), "nobody knows yet how long a trial takes"


def test_many_blocks_ask_for_their_second_trial(tmp_path: Path, clock: Clock) -> None:
    job = Job(tmp_path, clock, Plan([ACCURACY]), num_blocks=6, num_trials=40, space=None, search="tpe", prefetches=True)
    job.ready()
    passes(job, FIRST_PREFETCH_S)
    job.coordinator.tick()
    assert all(len(job.begun(rank)) == 1 for rank in range(6)), "by then there may be results to choose it by"


def test_a_long_trial_keeps_no_other_from_being_begun(tmp_path: Path, clock: Clock) -> None:
    job = Job(tmp_path, clock, Plan([ACCURACY]), num_trials=2, space=None, prefetches=True)
    job.ready()
    passes(job, FIRST_PREFETCH_S)
    job.coordinator.tick()
    assert job.begun() == [(0, 0), (1, 0)]
    passes(job, PREFETCH_BELOW_S + 1.0)
    job.coordinator.tick()
    assert job.workers.sent[0][-1] == {"do": "drop", "id": "1.0.0"} and events(tmp_path, 1) == ["asked", "given back"]
    other = Job(tmp_path, clock, Plan([ACCURACY]), num_trials=2, space=None, name="other")
    other.ready()
    assert other.begun() == [(1, 1)] and other.command_of(0)["values"] == job.workers.sent[0][1]["values"]
    job.done(0)
    assert job.coordinator.is_idle and not job.trial(1).deaths


def test_a_worker_that_began_a_dropped_trial_learns_it_when_it_asks(tmp_path: Path, clock: Clock) -> None:
    job = Job(tmp_path, clock, Plan([ACCURACY]), num_trials=3, space=None, prefetches=True)
    job.ready()
    passes(job, FIRST_PREFETCH_S)
    job.coordinator.tick()
    passes(job, PREFETCH_BELOW_S + 1.0)
    job.coordinator.tick()
    job.coordinator.on_message(0, {"is": "report", "id": "1.0.0", "step": 1, "value": 0.5})
    assert job.workers.sent[0][-1] == {DROPPED: "1.0.0"}, "it would wait for ever"
    job.coordinator.on_message(0, {"is": "failed", "id": "1.0.0", "kind": "error", "reason": "Dropped"})
    assert job.trial(1).state == WAITING


def test_one_that_is_being_ended_gets_no_other(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.coordinator._plan = replace(job.coordinator._plan, limit_s=1.0)
    passes(job, 2.0)
    monkeypatch.setattr(job.coordinator._prefetch, "drop", lambda _: None)  # it was told the next one just now
    job.coordinator.tick()
    assert job.workers.signals == [(0, KILL)]
    done(job, 1)
    assert job.coordinator.is_idle and job.trial(2).state == WAITING
    job.again(0)
    assert job.trial(2).state == RUNNING and not job.trial(2).deaths


def test_long_trials_are_chosen_when_they_begin(tmp_path: Path, clock: Clock) -> None:
    job = at_second_half(Job(tmp_path, clock, Plan([ACCURACY]), prefetches=True), PREFETCH_BELOW_S)
    assert job.begun() == [(0, 0), (1, 0)]


@pytest.mark.parametrize("plan", [Plan([ACCURACY], folds=2), Plan([ACCURACY], workers=2)], ids=["folds", "workers"])
def test_trials_of_several_parts_are_not_prefetched(tmp_path: Path, clock: Clock, plan: Plan) -> None:
    job = Job(tmp_path, clock, plan, prefetches=True)
    job.ready()
    passes(job, TRIAL_S)
    for _ in range(plan.folds):
        job.done(*range(plan.workers))
    passes(job, TRIAL_S)
    job.coordinator.tick()
    assert job.begun() == [(0, 0), (1, 0)]


def test_a_process_that_dies_has_not_begun_its_next_trial(job: Job, tmp_path: Path) -> None:
    values = job.workers.sent[0][-1]["values"]
    job.gone(0)
    assert job.trial(1).state == WAITING and job.trial(2).state == WAITING
    job.ready(0)
    assert job.begun()[-1] == (2, 0) and job.command_of(0)["values"] == values
    assert events(tmp_path, 2) == ["asked", "began"]
    for _ in range(4):
        job.done(0)
    assert sorted(job.begun()) == [(0, 0), (1, 0), (1, 1), (2, 0), (3, 0), (4, 0), (5, 0)]


def test_a_process_without_memory_has_not_begun_it_either(job: Job) -> None:
    say_of(job, 1, "failed", kind=MEMORY, reason="out of memory")
    assert job.workers.signals == [(0, KILL)] and job.coordinator.is_idle
    job.again(0)
    assert job.trial(2).state == RUNNING and job.trial(2).deaths == set()


def test_a_trial_that_raises_does_not_harm_the_next(job: Job) -> None:
    say_of(job, 1, "failed", kind="error", reason="it raised")
    assert job.trial(2).state == RUNNING
    done(job, 2)
    assert job.result(2).state == COMPLETE


def test_at_the_end_of_the_time_it_is_not_begun(job: Job, tmp_path: Path) -> None:
    job.coordinator.stop("time")
    say_of(job, 1, "done", reason="interrupted", metrics={}, epochs=1)
    assert job.workers.signals == [(0, TERMINATE), (0, KILL)], "it may be at the next one already"
    assert job.coordinator.is_idle and events(tmp_path, 2) == ["asked"]
    job.store.record_leave("time")
    again = Job(tmp_path, job.clock, Plan([ACCURACY]), num_trials=6, name="again")
    again.ready()
    again.done(0)
    assert again.begun() == [(1, 1), (2, 1)], "which it has claimed for nothing"
    assert again.command_of(0)["values"] == job.workers.sent[0][-1]["values"]


def test_a_supervisor_that_is_lost_has_not_begun_it(tmp_path: Path, clock: Clock) -> None:
    job = at_second_half(Job(tmp_path, clock, Plan([ACCURACY]), num_blocks=2, num_trials=6, prefetches=True))
    assert job.begun(0) == [(0, 0), (2, 0), (3, 0)]
    job.coordinator.on_ranks_lost([0])
    job.done(1)
    assert job.begun(1) == [(1, 0), (3, 0)] and not job.trial(3).deaths


def test_a_disk_without_space_stops_the_job_and_costs_no_trial(job: Job) -> None:
    say_of(job, 1, "failed", kind=DISK, reason="no space left")
    assert job.coordinator.is_stopping and job.coordinator.fatal_reason == "no space left"
    assert job.trial(1).state == WAITING and not job.trial(1).deaths
    assert job.coordinator.is_idle and job.workers.signals == [(0, KILL)]
