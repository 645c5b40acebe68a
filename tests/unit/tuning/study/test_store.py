"""A study that several jobs share: every trial is in one pair of hands, and none is lost when a job dies or a record is damaged."""

from __future__ import annotations

import math
import os
import random
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unisono.files.journal import SUFFIX, encode_record
from unisono.tuning.study import store as storing
from unisono.tuning.study.store import DEAD_AFTER_S, READ_EVERY_S, PendingTrial, Store, identity, is_alive, new_job
from unisono.tuning.study.study import COMPLETE, FAILED, begin_record, end_record, proposal_record, report_record

Opens = Callable[..., Store]


class Clock:
    """Of the machine, as the store sees it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def let_read_interval_pass(self) -> None:
        """So late that the trials of others are looked at again."""
        self.now += READ_EVERY_S


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(storing, "monotonic", found)
    return found


@pytest.fixture
def opens(tmp_path: Path, clock: Clock) -> Iterator[Opens]:
    """A job that works at the study."""
    opened: list[Store] = []

    def make(job: str, num_trials: int = 4, about: Mapping[str, Any] | None = None) -> Store:
        found = Store(tmp_path, {}, num_trials, job)
        opened.append(found)
        found.refresh()
        found.record_join(about or {})
        return found

    yield make
    for one in opened:
        one._writer.close()


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """One that lives until it is told otherwise."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as found:
        yield found


def of_process(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    return {"pid": process.pid, "started": storing._start_time(process.pid)}


def end(process: subprocess.Popen[bytes]) -> None:
    process.communicate()


def all_due(store: Store) -> list[tuple[int, int]]:
    found = []
    while (pending := store.claim_next()) is not None:
        found.append((pending.number, pending.attempt))
    return found


def pending_of(store: Store) -> PendingTrial:
    found = store.claim_next()
    assert found is not None
    return found


def starts(store: Store, pending: PendingTrial, lr: float) -> None:
    """A trial begins, with this setting unless it has one."""
    if pending.values is None:
        store.record_values(replace(pending, values={"lr": lr}, is_new=True))
    store.record_begin(pending, 0)


def works(store: Store, lr: float = 0.1, ends: bool = True) -> PendingTrial:
    """One trial that is begun, and ended."""
    pending = pending_of(store)
    starts(store, pending, lr)
    if ends:
        store.append(end_record(pending.number, pending.attempt, COMPLETE, [lr], 1.0))
    store.sync()
    store.refresh()
    return pending


# ---- who has which trial -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_two_jobs_get_every_trial_once(opens: Opens, seed: int) -> None:
    draw = random.Random(seed)
    jobs = [opens("a", 20), opens("b", 20)]
    found = []
    while (pending := draw.choice(jobs).claim_next()) is not None:
        found.append(pending)
        draw.choice(jobs).refresh()
    assert found == [PendingTrial(number, 0, None) for number in sorted(one.number for one in found)]
    assert sorted([one.number for one in found] + [number for job in jobs for number, _ in all_due(job)]) == list(range(20))


def test_jobs_at_the_same_time_get_every_trial_once(opens: Opens) -> None:
    jobs = [opens(f"job {number}", 40) for number in range(6)]
    ready = threading.Barrier(len(jobs))

    def take(job: Store) -> list[tuple[int, int]]:
        ready.wait(30)
        return all_due(job)

    with ThreadPoolExecutor(len(jobs)) as threads:
        found = [one for taken in threads.map(take, jobs) for one in taken]
    assert sorted(found) == [(number, 0) for number in range(40)]


def test_a_dead_jobs_trials_come_back_as_the_next_attempt(opens: Opens, process: subprocess.Popen[bytes]) -> None:
    dead = opens("dead", about=of_process(process))
    works(dead, 0.1)
    works(dead, 0.2, ends=False)
    assert dead.claim_next() == PendingTrial(2, 0, None)  # claimed ahead, and not begun
    dead.sync()
    end(process)
    store = opens("new")
    assert [store.claim_next() for _ in range(4)] == [
        PendingTrial(1, 1, {"lr": 0.2}),
        PendingTrial(2, 1, None),
        PendingTrial(3, 0, None),
        None,
    ]
    assert store.num_open() == 3


def test_a_living_jobs_trials_do_not_come_back_until_it_dies(opens: Opens, clock: Clock, process: subprocess.Popen[bytes]) -> None:
    other = opens("other", 2, of_process(process))
    works(other, 0.1, ends=False)
    store = opens("new", 2)
    assert all_due(store) == [(1, 0)]
    clock.let_read_interval_pass()
    store.refresh()
    assert store.claim_next() is None
    end(process)
    assert store.claim_next() is None, "it was looked at a moment ago"
    clock.let_read_interval_pass()
    assert store.claim_next() == PendingTrial(0, 1, {"lr": 0.1})
    clock.let_read_interval_pass()
    assert store.claim_next() is None


def test_a_job_that_left_gives_up_what_it_had(opens: Opens, clock: Clock, tmp_path: Path) -> None:
    leaving = Store(tmp_path, {}, 2, "leaving")
    leaving.record_join({})
    works(leaving, 0.3, ends=False)
    store = opens("new", 2)
    assert all_due(store) == [(1, 0)]
    leaving.record_leave("stop requested")
    store.refresh()
    clock.let_read_interval_pass()
    assert store.claim_next() == PendingTrial(0, 1, {"lr": 0.3})
    assert store.study.left_at.keys() == {"leaving"}


def test_what_this_job_gave_back_comes_before_all_new_ones(opens: Opens) -> None:
    store = opens("job")
    first = works(store, 0.1, ends=False)
    works(store, 0.2, ends=False)
    store.give_back(first.number, first.attempt, "its process is gone")
    store.refresh()
    assert store.claim_next() == PendingTrial(0, 1, {"lr": 0.1})
    assert all_due(store) == [(2, 0), (3, 0)]


def test_what_another_job_gave_back_is_taken_by_one(opens: Opens, clock: Clock) -> None:
    giving, taking, also = (opens(name, 1) for name in ("giving", "taking", "also"))
    pending = works(giving, 0.1, ends=False)
    assert taking.claim_next() is None and also.claim_next() is None
    giving.give_back(pending.number, pending.attempt, "its process is gone")
    clock.let_read_interval_pass()
    for one in (giving, taking, also):
        one.refresh()
    assert [one.claim_next() for one in (taking, also, giving)] == [PendingTrial(0, 1, {"lr": 0.1}), None, None]


def test_a_trial_that_another_job_ended_is_not_given_again(opens: Opens, clock: Clock) -> None:
    other, store = opens("other", 1), opens("job", 1)
    pending = works(other, ends=False)
    assert store.claim_next() is None and store.num_open() == 1
    other.append(end_record(pending.number, pending.attempt, FAILED, [], 1.0))
    store.refresh()
    clock.let_read_interval_pass()
    assert store.claim_next() is None and store.num_open() == 0


def test_a_trial_that_ended_while_it_was_given_back_is_not_begun_again(opens: Opens) -> None:
    """Two jobs had it, as one was thought to be dead."""
    store = opens("job", 1)
    pending = works(store, ends=False)
    opens("other", 1).append(end_record(pending.number, 1, COMPLETE, [0.5], 1.0))
    store.give_back(pending.number, pending.attempt, "its process is gone")
    store.refresh()
    assert store.claim_next() is None


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_every_trial_ends_and_none_is_in_two_hands(
    opens: Opens, clock: Clock, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    draw, num_trials = random.Random(seed), 12
    dead = set[str]()
    monkeypatch.setattr(storing, "is_alive", lambda about: about["job"] not in dead)
    jobs: dict[str, Store] = {}
    held: dict[int, tuple[str, int]] = {}
    results: list[int] = []
    for turn in range(2000):
        if len(jobs) < 3:
            jobs[f"job {turn}"] = opens(f"job {turn}", num_trials)
        name = draw.choice(list(jobs))
        store = jobs[name]
        clock.now += draw.choice((0.0, READ_EVERY_S))
        event = draw.random()
        if event < 0.4 or draw.random() < 0.5:
            store.refresh()
        mine = [number for number, (block_id, _) in held.items() if block_id == name]
        if event < 0.4:
            pending = store.claim_next()
            if pending is not None:
                assert pending.number not in held and pending.number not in results, f"trial {pending.number} is in two hands"
                if draw.random() < 0.8:  # else it is only claimed ahead
                    starts(store, pending, pending.number)
                assert pending.values is None or pending.values == {"lr": pending.number}
                held[pending.number] = (name, pending.attempt)
        elif event < 0.6 and mine:
            number = draw.choice(mine)
            store.append(end_record(number, held.pop(number)[1], COMPLETE, [1.0], 1.0))
            results.append(number)
        elif event < 0.7 and mine:
            number = draw.choice(mine)
            store.give_back(number, held.pop(number)[1], "gone")
        elif event < 0.75 and len(results) < num_trials - 3:
            dead.add(name)
            del jobs[name]
            held = {number: one for number, one in held.items() if one[0] != name}
        if len(results) == num_trials:
            break
    assert sorted(results) == list(range(num_trials))
    for store in jobs.values():
        store.refresh()
        assert store.num_open() == 0 and store.losses == []


# ---- who lives -----------------------------------------------------------------------------------------------------------


def test_a_process_counts_as_alive_until_it_has_ended(process: subprocess.Popen[bytes]) -> None:
    about = of_process(process)
    assert is_alive(identity()) and is_alive(about)
    assert not is_alive({**about, "started": "1"}), "its number has gone to another"
    assert process.stdin is not None
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(about), "a zombie"
    process.wait()
    assert not is_alive(about)


def test_a_job_elsewhere_counts_as_alive_while_its_journal_grows(opens: Opens, clock: Clock) -> None:
    other = opens("other", 1, {"machine": "another", "pid": 1, "started": "1"})
    works(other, 0.1, ends=False)
    store = opens("job", 1)

    def pending() -> PendingTrial | None:
        store.refresh()
        return store.claim_next()

    for _ in range(3):
        assert pending() is None
        clock.now += DEAD_AFTER_S - 1
        assert pending() is None
        other.sync()  # says that it lives
    clock.now += DEAD_AFTER_S
    assert pending() is None, "it has grown since it was last looked at"
    clock.now += DEAD_AFTER_S - 1
    assert pending() is None
    clock.now += 1
    assert pending() == PendingTrial(0, 1, {"lr": 0.1})


def test_a_job_of_which_nothing_is_left_is_dead_after_a_while(opens: Opens, clock: Clock) -> None:
    store = opens("job", 2)
    assert store.claims.claim(0, 0, "vanished")
    assert all_due(store) == [(1, 0)], "its journal may be on its way"
    clock.now += DEAD_AFTER_S
    assert all_due(store) == [(0, 1)]


def test_jobs_have_names_of_their_own() -> None:
    names = {new_job("node") for _ in range(100)}
    assert len(names) == 100 and all(name.startswith("node-") for name in names)
    assert "." not in new_job()


# ---- what is damaged -----------------------------------------------------------------------------------------------------


def damage(folder: Path, job: str, record: Mapping[str, Any]) -> None:
    """One byte of one record is another."""
    file = folder / "journal" / f"{job}{SUFFIX}"
    whole, part = file.read_bytes(), encode_record(record)
    assert whole.count(part) == 1
    file.write_bytes(whole.replace(part, part[:15] + bytes([part[15] ^ 1]) + part[16:]))


@pytest.fixture
def done(tmp_path: Path, clock: Clock) -> Path:
    """A study of three trials, all of which ended well."""
    store = Store(tmp_path, {}, 3, "done", clock=lambda: 7.0)
    store.record_join({})
    for lr in (0.1, 0.2, 0.3):
        works(store, lr)
    store.record_leave("done")
    return tmp_path


LOST = {
    "its result": ([end_record(1, 0, COMPLETE, [0.2], 1.0)], [PendingTrial(1, 1, {"lr": 0.2})]),
    "its point": ([proposal_record(1, {"lr": 0.2})], []),
    "its point and its result": (
        [proposal_record(1, {"lr": 0.2}), end_record(1, 0, COMPLETE, [0.2], 1.0)],
        [PendingTrial(1, 1, None)],
    ),
    "its beginning": ([begin_record(1, 0, "done/0", 7.0)], []),
    "its beginning and its result": (
        [begin_record(1, 0, "done/0", 7.0), end_record(1, 0, COMPLETE, [0.2], 1.0)],
        [PendingTrial(1, 1, {"lr": 0.2})],
    ),
}


@pytest.mark.parametrize("what", LOST)
def test_a_trial_whose_record_is_lost_is_run_again_where_needed(done: Path, opens: Opens, what: str) -> None:
    records, expected = LOST[what]
    for record in records:
        damage(done, "done", record)
    store = opens("again", 3)
    assert [pending for pending in (store.claim_next() for _ in range(3)) if pending is not None] == expected
    assert store.num_open() == len(expected)
    assert len(store.losses) == len(records)
    assert all("done.journal" in text and "at most one record is lost" in text for text in store.losses)


def test_without_damage_no_trial_is_run_again(done: Path, opens: Opens) -> None:
    store = opens("again", 3)
    assert store.claim_next() is None and store.losses == [] and store.num_open() == 0


def test_a_study_may_be_prolonged(done: Path, opens: Opens) -> None:
    assert all_due(opens("again", 5)) == [(3, 0), (4, 0)]


# ---- what is written -----------------------------------------------------------------------------------------------------


def test_numbers_that_are_none_survive(opens: Opens) -> None:
    store, other = opens("job"), opens("other")
    pending = pending_of(store)
    starts(store, pending, 0.1)
    store.append(report_record(pending.number, 1, math.nan))
    store.append(report_record(pending.number, 2, math.inf))
    store.append(end_record(pending.number, 0, COMPLETE, [math.nan, -math.inf], 1.0, details={"parts": [{"values": [math.nan]}]}))
    (trial,) = other.refresh()
    assert math.isnan(trial.reports[1]) and trial.reports[2] == math.inf
    assert trial.result is not None
    assert math.isnan(trial.result.values[0]) and trial.result.values[1] == -math.inf
    assert math.isnan(trial.result.details["parts"][0]["values"][0])
    assert other.study.best(True) is None, "what is no number is not the best"


def test_numbers_of_numpy_are_written_as_plain_ones(opens: Opens) -> None:
    store = opens("job")
    store.append(report_record(0, int(np.int64(3)), np.float32(0.5)))  # type: ignore[arg-type]
    (trial,) = store.refresh()
    assert trial.reports == {3: 0.5}


def test_only_what_is_new_is_read(opens: Opens) -> None:
    store, other = opens("job"), opens("other")
    works(store)
    assert [trial.number for trial in other.refresh()] == [0]
    assert other.refresh() == []
    works(store)
    assert [trial.number for trial in other.refresh()] == [1]
    assert other.study.jobs.keys() == {"job", "other"}


def test_records_of_a_later_version_are_passed_over(opens: Opens) -> None:
    store = opens("job")
    store.append({"event": "something of a later version", "trial": 9})
    works(store)
    assert [trial.number for trial in store.refresh()] == []
    assert list(store.study.trials) == [0]


def test_others_see_that_a_job_is_alive(opens: Opens, clock: Clock, tmp_path: Path) -> None:
    store = opens("job")
    file = tmp_path / "journal" / f"job{SUFFIX}"
    sizes = []
    for _ in range(3):
        store.sync()
        store.sync()
        sizes.append(file.stat().st_size)
        clock.now += storing.ALIVE_EVERY_S
    assert sizes[0] < sizes[1] < sizes[2]
    assert file.read_bytes().count(b'"alive"') == 3, "and only now and then"
