"""Uses of `fit`, `evaluate` and `predict` that are seldom: on two workers as in plain Keras on one, or refused."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.system.fork_server import ForkServer

PROGRAM = Path(__file__).parent / "programs" / "keras_odd_uses.py"
pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(find_spec("keras") is None, reason="keras is not installed; `pip install 'unisono[keras]'`"),
]
CASES = {
    "metrics built late": "F1Score and R2Score, which make their variables at the first update",
    "metric from one": "a metric whose state does not begin at 0",
    "validation_steps": "so many batches of batch_size",
    "validation_steps alone": "so many batches that hold all samples",
    "steps_per_epoch": "alone it gives the batch size",
    "evaluate steps": "",
    "evaluate steps alone": "",
    "predict steps": "",
    "predict steps alone": "",
    "PyDataset": "its hooks are called, and change it",
    "PyDataset in parts": "it continues from epoch to epoch",
    "PyDataset in part": "of which some batches are never read",
    "PyDataset evaluated": "by more steps than it has batches",
    "list of weights": "sample weights for each output",
    "dict of weights": "sample weights for each output",
    "weights evaluated": "sample weights for each output",
}


@pytest.fixture(scope="module", params=["torch", *(pytest.param(name, marks=pytest.mark.soak) for name in ("tensorflow", "jax"))])
def ended(
    request: pytest.FixtureRequest, keras_server: ForkServer, fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[Any], str]:
    """What each of two workers found, and the output."""
    out = tmp_path_factory.mktemp("odd") / "found"
    server = keras_server if request.param == "torch" else fork_server
    environment = {"KERAS_BACKEND": request.param, "TF_CPP_MIN_LOG_LEVEL": "3"}
    with server.start([str(PROGRAM), str(out)], 2, "shm", environment) as group:
        found = group.wait(220.0)
    assert found.exit_code == 0, found
    return [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(2)], found.output


def assert_same(found: Any, expected: Any) -> None:
    """The same nesting with numbers that differ by rounding."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected:
            assert_same(found[name], expected[name])
    elif expected and isinstance(expected, list) and isinstance(expected[0], str):
        assert found == expected
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_it_is_that_of_plain_keras(ended: tuple[list[Any], str], case: str) -> None:
    for rank in ended[0]:
        assert_same(rank["shared"][case], rank["plain"][case])


def test_the_batches_of_a_pydataset_are_shuffled_alike_on_all_workers(ended: tuple[list[Any], str]) -> None:
    first, second = (rank["shuffled"] for rank in ended[0])
    assert first == second and first[:3] == ["begin", "0", "end"], "a first look"
    epochs = [first[start : start + 7] for start in range(3, len(first), 7)]
    orders = [epoch[1:-1] for epoch in epochs]
    assert [(epoch[0], epoch[-1]) for epoch in epochs] == [("begin", "end")] * 3
    assert all(sorted(order) == ["0", "1", "2", "3", "4"] for order in orders) and orders[0] != orders[1] != orders[2]


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("smallest", "Keras metric 'smallest' cannot be added up over workers; keep sums in its variables"),
        ("largest", "Keras metric 'largest' cannot be added up over workers"),
        ("sum", "count is a sum over all samples (aggregation='sum'), but what layers keep is averaged over the workers"),
        (
            "steps",
            "the PyDataset in x has 5 batches, which steps_per_epoch 2 does not divide, so Keras ends an epoch before its last",
        ),
        ("weights", "sample_weight has one, other, but y has first, second; give one array for each output"),
    ],
)
def test_what_cannot_be_right_on_several_workers_is_refused(ended: tuple[list[Any], str], case: str, text: str) -> None:
    first, second = (rank["refused"][case] for rank in ended[0])
    assert text in first and second == "by another worker"


@pytest.mark.parametrize("loss", ["circle", "dice"])
def test_a_loss_of_keras_that_is_no_mean_over_samples_is_told(ended: tuple[list[Any], str], loss: str) -> None:
    assert ended[1].count(f"the loss {loss!r} is no mean over samples, and each worker computes it from its own") == 1, ended[1]
