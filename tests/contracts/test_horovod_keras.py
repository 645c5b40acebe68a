"""horovod.keras on real processes, with each backend of Keras: what many ranks learn, callbacks, values and files."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.ranks.checks import PROGRAMS, names_in
from tests.system.fork_server import ForkServer
from unisono.testing.ranks import GroupResult

LEARNING, ELASTIC = "horovod_keras.py", "horovod_keras_elastic.py"
ODD = "horovod_keras_odd.py"
"""Run by the first one, in the same processes."""
LIMIT_S = 400.0

Results = Callable[[str, str, int], GroupResult]


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest, fork_server: ForkServer, keras_server: ForkServer, tensorflow_server: ForkServer
) -> Results:
    """A program runs all checks that are asked for when it comes to the first of them."""
    servers = {"torch": keras_server, "tensorflow": tensorflow_server, "jax": fork_server}

    @cache
    def run(program: str, backend: str, size: int) -> GroupResult:
        variables = {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
        asked = [
            item.callspec.params for item in request.session.items if item.path == Path(__file__) and hasattr(item, "callspec")
        ]
        checks = [one["check"] for one in asked if (one["backend"], one["size"]) == (backend, size)]
        with servers[backend].start([str(PROGRAMS / program), *checks], size, "shm" if size > 1 else "single", variables) as group:
            return group.wait(LIMIT_S)

    return run


def seldom(backend: str, size: int) -> object:
    """Groups that would hardly show anything else, and take half a minute."""
    return pytest.param(backend, size, marks=pytest.mark.soak)


def look_up(results: Results, program: str, check: str, backend: str, size: int) -> None:
    ended = results(program, backend, size)
    passed = set(re.findall(rf"rank (\d+): {check}: ok", ended.output))
    assert passed == {str(rank) for rank in range(size)}, str(ended)


@pytest.mark.timeout(420)
@pytest.mark.parametrize(
    ("backend", "size"),
    [("torch", 3), ("tensorflow", 2), ("jax", 2), seldom("torch", 2), seldom("tensorflow", 3), seldom("jax", 3)],
)
@pytest.mark.parametrize("check", names_in(LEARNING))
def test_learning(results: Results, check: str, backend: str, size: int) -> None:
    look_up(results, LEARNING, check, backend, size)


@pytest.mark.timeout(420)
@pytest.mark.parametrize(
    ("backend", "size"),
    [("torch", 3), ("tensorflow", 2), *(seldom(*group) for group in (("torch", 2), ("tensorflow", 3), ("jax", 2), ("jax", 3)))],
)
@pytest.mark.parametrize("check", names_in(ODD))
def test_odd_uses(results: Results, check: str, backend: str, size: int) -> None:
    look_up(results, LEARNING, check, backend, size)


@pytest.mark.timeout(420)
@pytest.mark.parametrize(("backend", "size"), [("torch", 2), seldom("tensorflow", 2), seldom("jax", 2)])
@pytest.mark.parametrize("check", names_in(ELASTIC))
def test_elastic(results: Results, check: str, backend: str, size: int) -> None:
    look_up(results, ELASTIC, check, backend, size)
