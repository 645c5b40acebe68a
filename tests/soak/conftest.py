"""How long soak tests go on, and with which seeds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAST_ROUND_S = 600.0
"""What begins just before the time is over may take this long."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    limit_s = 60 * config.getoption("soak_minutes") + LAST_ROUND_S
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(limit_s))


@pytest.fixture
def seeds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """One seed after another until the time is over, at least one. What pytest shows of a failed test ends with its seed."""
    monkeypatch.chdir(ROOT)  # programs of these tests are modules
    deadline = monotonic() + 60 * request.config.getoption("soak_minutes")
    first = request.config.getoption("soak_seed")
    return _until(deadline, random.SystemRandom().randrange(10**6) if first is None else first, request.node.nodeid)


def _until(deadline: float, first: int, test: str) -> Iterator[int]:
    seed = first
    while seed == first or monotonic() < deadline:
        print(f"to repeat it: pytest '{test}' --soak-minutes 0 --soak-seed {seed}", flush=True)
        yield seed
        seed += 1
