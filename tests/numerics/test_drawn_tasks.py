"""Tasks drawn at random give what plain PyTorch, plain Keras and scikit-learn give, and mistakes in them are refused.

A few of many: `make soak` draws others, and `python -m tests.numerics.drawn_checks` as many as are asked for."""

from __future__ import annotations

import pytest

from tests.numerics.drawn_checks import CHECKS, found_in
from tests.numerics.drawn_mistakes import MISTAKES, draw_mistake
from tests.system.fork_server import ForkServer

LIMIT_S = 100.0


@pytest.fixture(autouse=True)
def variable_of_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training with shards sets it for its process."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@pytest.mark.parametrize("seed", range(30))
def test_a_training_is_that_by_hand(seed: int) -> None:
    assert found_in(CHECKS["torch"][1], seed) == [], CHECKS["torch"][0](seed)


@pytest.mark.parametrize("seed", range(8))
def test_a_server_trains_as_the_formulas_say(seed: int) -> None:
    assert found_in(CHECKS["servers"][1], seed) == [], CHECKS["servers"][0](seed)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused(mistake: str) -> None:
    seed = next(seed for seed in range(1000) if draw_mistake(seed)[0] == mistake)
    assert found_in(CHECKS["mistakes"][1], seed) == [], draw_mistake(seed)


def test_compiled_models_are_trained_as_by_fit(keras_server: ForkServer) -> None:
    ended = keras_server.run(["-m", "tests.numerics.drawn_checks", "--what", "keras", "--cases", "10"], 1, "single", LIMIT_S)
    assert ended.exit_code == 0, str(ended)
