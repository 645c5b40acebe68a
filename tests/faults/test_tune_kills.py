"""A study loses nothing when its processes are killed or its journal is damaged: the same command goes on, and in the end every
trial has one result, which is the right one. A few kills here, two hundred in `make soak`."""

from __future__ import annotations

import os
import random
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.faults.study_kills import JOB, PROGRAM, Study, damage, happen
from tests.system.processes import Program, plain_environment, within
from tests.system.studies import UNISONO, all_ended_once, records, written_task
from unisono.tuning.study.store import DEAD_AFTER_S
from unisono.tuning.study.study import BEGAN, COMPLETE, GIVEN_BACK

LIMIT_S = 100.0
SEED = 1
LATE = PROGRAM.with_name("searched_late.py")
SOAK_LIMIT_S = 3600.0
TRIALS_OF_AN_ATTEMPT = 8
TRIALS_BEFORE_THE_KILL = 3


def seed_of(request: pytest.FixtureRequest) -> int:
    given = request.config.getoption("soak_seed")
    seed: int = random.SystemRandom().randrange(10**6) if given is None else given
    print(f"to repeat it: pytest '{request.node.nodeid}' --soak-seed {seed}")
    return seed


@pytest.mark.timeout(300)
def test_a_few_kills(tmp_path: Path) -> None:
    print(happen(tmp_path, SEED, 20))


@pytest.mark.soak
@pytest.mark.timeout(SOAK_LIMIT_S)
def test_two_hundred_kills(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    print(happen(tmp_path, seed_of(request), 200))


def damaged(folder: Path, seed: int, num_attempts: int, spared: int, finish_s: float) -> None:
    """Blocking: a study whose journal is damaged after each attempt; the next says so, and what is lost is done again."""
    draw = random.Random(seed)
    with Study(folder, draw, TRIALS_OF_AN_ATTEMPT * num_attempts).begun() as study:
        for _ in range(num_attempts):
            goal = study.num_ended() + TRIALS_BEFORE_THE_KILL
            study.until(lambda goal=goal: study.num_ended() >= goal, goal)  # type: ignore[misc]
            study.kills[JOB] += 1
            study.end_attempt()
            file = damage(study.out / "journal", draw, spared)
            study.start()
            study.until(lambda file=file: f"warning: {file}: " in study.printed, 0)  # type: ignore[misc]
        study.finish(finish_s)
    assert f"warning: {file}: " in study.printed.split("done: ")[1], f"it is said in the end as well:\n{study.printed}"
    print(study.expect_all_right())


@pytest.mark.timeout(300)
def test_a_damaged_journal(tmp_path: Path) -> None:
    """The first record of each job is spared, as by it others know at once that the job is dead, and else after 90 s."""
    damaged(tmp_path, SEED, 5, 1, LIMIT_S)


@pytest.mark.soak
@pytest.mark.timeout(SOAK_LIMIT_S)
def test_a_journal_that_is_damaged_anywhere(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    damaged(tmp_path, seed_of(request), 20, 0, DEAD_AFTER_S + LIMIT_S)


# ---- a supervisor ----------------------------------------------------------------------------------------------------


def ranks_of(launcher: psutil.Process) -> dict[int, int]:
    """The process of each rank that `unisono run` has started."""
    found = {}
    for child in launcher.children():
        with suppress(psutil.NoSuchProcess):  # it has ended
            rank = child.environ().get("UNISONO_RANK")
            found[None if rank is None else int(rank)] = child.pid
    return {rank: pid for rank, pid in found.items() if rank is not None}


def blocks_of(study: Path) -> set[str]:
    return {one["who"].partition("/")[2] for one in records(study, BEGAN)}


def test_the_search_continues_without_a_block_whose_supervisor_is_killed(tmp_path: Path) -> None:
    study, gate = tmp_path / "study", tmp_path / "gate"
    command = [UNISONO, "run", "-n", "3", "--on-failure", "continue", str(PROGRAM), str(study), "12", "0"]
    with Program(command, {**plain_environment(), "SEARCH_GATE": str(gate)}) as program:
        launcher = psutil.Process(program.pid)
        assert within(LIMIT_S, lambda: program.is_over() or blocks_of(study) == {"0", "1", "2"})
        os.kill(ranks_of(launcher)[1], signal.SIGKILL)
        gate.touch()
        outcome = program.finish(LIMIT_S)
    assert "block 1 lost 1 of its 1 processes" in outcome.output, str(outcome)
    assert "done: 12 complete" in outcome.output, str(outcome)
    assert outcome.code == 128 + signal.SIGKILL, str(outcome)
    assert {result.state for result in all_ended_once(study, 12).values()} == {COMPLETE}


def test_a_killed_fork_server_is_replaced(tmp_path: Path) -> None:
    """The supervisor makes another, and with it one worker in the place of the one that died."""
    study, gate = tmp_path / "study", tmp_path / "gate"
    command = [UNISONO, "run", "-n", "2", str(PROGRAM), str(study), "12", "0"]
    with Program(command, {**plain_environment(), "SEARCH_GATE": str(gate)}) as program:
        launcher = psutil.Process(program.pid)
        assert within(LIMIT_S, lambda: program.is_over() or blocks_of(study) == {"0", "1"})
        (first,) = workers_of(launcher, 1)
        os.kill(psutil.Process(first).ppid(), signal.SIGKILL)
        assert within(LIMIT_S, lambda: program.is_over() or len(begun_by(study, "1")) == 2)
        assert program.is_over() or len(workers_of(launcher, 1)) == 1
        gate.touch()
        outcome = program.finish(LIMIT_S)
    assert outcome.code == 0, str(outcome)
    assert [one["trial"] for one in records(study, GIVEN_BACK)] == begun_by(study, "1")[:1], str(outcome)
    all_ended_once(study, 12)


def begun_by(study: Path, block: str) -> list[int]:
    return [one["trial"] for one in records(study, BEGAN) if one["who"].endswith(f"/{block}")]


def workers_of(launcher: psutil.Process, rank: int) -> list[int]:
    """The processes that a supervisor has for trials."""
    with suppress(psutil.NoSuchProcess, KeyError):  # it has ended, or is not yet there
        fork_servers = psutil.Process(ranks_of(launcher)[rank]).children()
        return [worker.pid for fork_server in fork_servers for worker in fork_server.children()]
    return []


def test_a_supervisor_that_is_killed_before_the_first_trial(tmp_path: Path) -> None:
    """It has a process that waits for work; the rank that coordinates is not yet there, and must not count on it."""
    study, gate = tmp_path / "study", tmp_path / "gate"
    command = [UNISONO, "run", "-n", "2", "--on-failure", "continue", str(LATE), str(study)]
    with Program(command, {**plain_environment(), "SEARCH_GATE": str(gate)}) as program:
        launcher = psutil.Process(program.pid)
        assert within(LIMIT_S, lambda: program.is_over() or waits_for_work(launcher, 1))
        os.kill(ranks_of(launcher)[1], signal.SIGKILL)
        gate.touch()
        outcome = program.finish(LIMIT_S)
    assert "done: 6 complete" in outcome.output, str(outcome)
    all_ended_once(study, 6)


def waits_for_work(launcher: psutil.Process, rank: int) -> bool:
    """Whether a rank has a worker, and worker and supervisor have nothing to do; most likely the worker has then said so."""
    with suppress(psutil.NoSuchProcess):
        pids = workers_of(launcher, rank)
        processes = [psutil.Process(pid) for pid in (*pids, *(ranks_of(launcher)[rank] for _ in pids))]
        before = [one.cpu_times() for one in processes]
        return bool(pids) and not within(0.2, lambda: [one.cpu_times() for one in processes] != before)
    return False


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_processes_left_of_two_blocks_form_another(tmp_path: Path) -> None:
    study, hold = tmp_path / "study", tmp_path / "hold"
    given = ["--workers", "2", "--trials", "6", "--epochs", "1", "--threads", "1", "--out", str(study)]
    command = [UNISONO, "run", "-n", "5", "--on-failure", "continue", "-m", "unisono", "tune", written_task(tmp_path), *given]
    hold.touch()
    with Program(command, plain_environment()) as program:
        launcher = psutil.Process(program.pid)
        assert within(LIMIT_S, lambda: program.is_over() or blocks_of(study) == {"0", "1"})
        pids = ranks_of(launcher)
        os.kill(pids[1], signal.SIGKILL)  # of the first block
        os.kill(pids[4], signal.SIGKILL)  # of the second
        hold.unlink()
        outcome = program.finish(LIMIT_S)
    assert "block 2 is formed of the remaining processes" in outcome.output, str(outcome)
    assert "done: 6 complete" in outcome.output, str(outcome)
    assert {result.state for result in all_ended_once(study, 6).values()} == {COMPLETE}
    assert "2" in blocks_of(study)
