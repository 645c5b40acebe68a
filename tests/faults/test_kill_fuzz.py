"""A training that is killed and started again by the same command ends as if nobody had disturbed it.

A few kills here, a thousand in `make soak`; `tests/faults/kill_fuzz.py` is the tool, for hours.
"""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

import pytest

from tests.faults.kill_fuzz import CHANGES, Fuzz
from tests.faults.kill_plan import ALL, COMMAND, FORK_SERVER, LAUNCHER, MOMENTS, ONE, Kill, drawn
from tests.system.fork_server import ForkServer

KILLS_PER_MINUTE = 250
"""Of --soak-minutes: a thousand by default. They take longer."""
SOAK_LIMIT_S = 3 * 3600

EACH_KIND = (
    Kill("starting", ONE, FORK_SERVER, 2, 1, 0.6, 0.5),
    Kill("training", ONE, FORK_SERVER, 2, 0, 0.3, 0.5),
    Kill("saving", ALL, FORK_SERVER, 2, 0, 0.5, 0.2),
    Kill("evaluating", ONE, FORK_SERVER, 2, 1, 0.3, 0.5),
    Kill("training", LAUNCHER, COMMAND, 2, 0, 0.1, 0.5),
    Kill("saving", ONE, FORK_SERVER, 2, 0, 0.1, 0.4),
    Kill("ending", ALL, FORK_SERVER, 2, 0, 0.2, 0.5),
)
CHAIN = (
    Kill("training", ALL, FORK_SERVER, 2, 0, 0.4, 0.5),
    Kill("saving", ONE, FORK_SERVER, 1, 0, 0.9, 0.3),
    Kill("evaluating", ONE, FORK_SERVER, 3, 2, 0.6, 0.5),
)
SHORT = ("--epochs", "8")


@pytest.mark.timeout(300)
def test_each_kind_of_kill(fork_server: ForkServer, tmp_path: Path) -> None:
    fuzz = Fuzz(tmp_path, fork_server, (2,), SHORT, FORK_SERVER)
    fuzz.happen(EACH_KIND)
    assert len(fuzz.kills) == len(EACH_KIND)
    assert {run["deviation"] for run in fuzz.runs} == {0.0}


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_another_number_of_workers_after_each_kill(fork_server: ForkServer, tmp_path: Path) -> None:
    fuzz = Fuzz(tmp_path, fork_server, CHANGES, SHORT, FORK_SERVER)
    fuzz.happen(CHAIN)
    assert [kill["workers"] for kill in fuzz.kills] == [2, 1, 3]


@pytest.mark.soak
@pytest.mark.timeout(SOAK_LIMIT_S)
@pytest.mark.parametrize("algorithm", ["gem", "easgd"])
def test_kills_of_a_server_and_its_workers(
    algorithm: str, fork_server: ForkServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Every run equals its replay: history, best weights, weights, order of calls."""
    given = request.config.getoption("soak_seed")
    seed = random.SystemRandom().randrange(10**6) if given is None else given
    print(f"to repeat it: pytest '{request.node.nodeid}' --soak-seed {seed}")
    num_kills = max(1, round(KILLS_PER_MINUTE * request.config.getoption("soak_minutes") / 20))
    fuzz = Fuzz(tmp_path, fork_server, (3,), SHORT, algorithm=algorithm)
    fuzz.happen(islice(drawn(seed, (3,)), num_kills))
    assert len(fuzz.kills) == num_kills


@pytest.mark.soak
@pytest.mark.timeout(SOAK_LIMIT_S)
@pytest.mark.parametrize("workers", [(2,), CHANGES], ids=["same workers", "changing workers"])
def test_kills_at_random_moments(
    workers: tuple[int, ...], fork_server: ForkServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    given = request.config.getoption("soak_seed")
    seed = random.SystemRandom().randrange(10**6) if given is None else given
    print(f"to repeat it: pytest '{request.node.nodeid}' --soak-seed {seed}")
    num_kills = max(1, round(KILLS_PER_MINUTE * request.config.getoption("soak_minutes") / (1 if len(workers) == 1 else 10)))
    Fuzz(tmp_path, fork_server, workers).happen(islice(drawn(seed, workers), num_kills))


def test_the_same_seed_draws_the_same_kills() -> None:
    first, again, other = (list(islice(drawn(seed, (2, 3)), 300)) for seed in (1, 1, 2))
    assert first == again != other
    assert {kill.moment for kill in first} == {*MOMENTS}
    assert {(kill.victim, kill.started_by) for kill in first} >= {
        (ONE, FORK_SERVER),
        (ALL, FORK_SERVER),
        (ONE, COMMAND),
        (LAUNCHER, COMMAND),
    }
    assert {kill.workers for kill in first} == {2, 3} and all(kill.rank < kill.workers for kill in first)
