"""What `un.keras.Strategy` offers besides `fit`: saves, loops of one's own, `reduce`, seeds, and backups of another fit."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.system.fork_server import ForkServer

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(find_spec("keras") is None, reason="keras is not installed; `pip install 'unisono[keras]'`"),
]
PROGRAM = Path(__file__).parent / "programs" / "keras_strategy.py"


@pytest.fixture(scope="module")
def ended(keras_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], str, Path]:
    """What each of two workers found, the output, and the folder."""
    folder = tmp_path_factory.mktemp("strategy")
    with keras_server.start([str(PROGRAM), str(folder / "found")], 2, "shm", {"KERAS_BACKEND": "torch"}) as group:
        found = group.wait(150.0)
    assert found.exit_code == 0, found
    return [json.loads((folder / f"found.{rank}").read_text()) for rank in range(2)], found.output, folder


@pytest.fixture
def ranks(ended: tuple[list[Any], str, Path]) -> list[Any]:
    return ended[0]


def test_a_model_that_every_worker_saves_is_a_whole_file(ranks: list[Any], ended: Any) -> None:
    assert [rank["saved"] for rank in ranks] == [{"whole": True, "same": True}] * 2
    left = {path.name for path in ended[2].iterdir() if not path.name.startswith(("found", "backup"))}
    assert left == {"model.keras", "model.weights.h5", "own-0.keras", "own-1.keras"}


def test_an_own_loop_sums_the_gradients_of_all_workers(ranks: list[Any]) -> None:
    first, second = (rank["loops"] for rank in ranks)
    assert first["shared"] == second["shared"] and first["alone"] == second["alone"]
    for found, expected in zip(first["shared"], first["alone"], strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("outside", "was applied outside of strategy.run, so each worker would train a model of its own"),
        ("reduce inside", "reduce what strategy.run returns"),
        ("loss scale", "use the dtype policy mixed_bfloat16"),
        ("algorithm", "the algorithm local_sgd has no effect in strategy.run"),
        ("different", "the workers hold different weights before the first update"),
        ("same", "all 2 workers computed the same gradients in strategy.run, so each has the same samples"),
        ("mean loss", "is a mean over the samples of one worker"),
    ],
)
def test_an_own_loop_that_would_train_several_models_is_refused(ranks: list[Any], case: str, text: str) -> None:
    assert all(text in rank["loops"][case] for rank in ranks), [rank["loops"][case] for rank in ranks]


def test_a_name_of_tensorflow_says_what_to_use_instead() -> None:
    import unisono as un

    with pytest.raises(AttributeError, match=r"experimental_distribute_dataset'; every worker takes its own rows of each batch"):
        un.keras.Strategy().experimental_distribute_dataset  # noqa: B018
    assert not hasattr(un.keras.Strategy(), "other")


def test_a_metric_of_an_own_loop_is_that_of_all_workers(ranks: list[Any]) -> None:
    assert [rank["loops"]["hits"] for rank in ranks] == [[0.75, 0.25]] * 2


def test_a_mean_over_uneven_parts_is_that_of_all_samples(ranks: list[Any]) -> None:
    for rank in ranks:
        found = rank["reduced"]
        assert found["mean"] == [2.0, 20.0] and found["sum"] == [6.0, 60.0]
        assert found["mean of one"] == [4.0, 30.0] and found["max of one"] == [-96.0, -70.0]
        assert found["bytes"] == 400 and found["mean of bytes"] == 200.0 and found["loss"] == 1.5
        assert "no worker has a value along axis 0" in found["of none"]
        assert "axis 0 is not an axis of a value of shape ()" in found["axis"]


def test_the_seed_of_keras_decides_the_first_weights(ranks: list[Any]) -> None:
    first, second = ranks
    one, two, three, again = first["seeds"]
    assert one == again and one != two != three != one
    assert first["seeds"] == second["seeds"]
    assert first["seeds of ranks"] == second["seeds of ranks"], "those of the first worker"
    assert first["given seed"][0] == first["given seed"][1] == second["given seed"][0], "which is asked for"


def test_what_a_worker_gives_fit_by_its_rank_is_refused(ranks: list[Any]) -> None:
    first, second = (rank["settings"] for rank in ranks)
    for name, values in {
        "batch_size": (8, 7),
        "optimizer.learning_rate": (0.5, 1.5),
        "epochs": (1, 2),
        "shuffle": ("false", "true"),
    }.items():
        text = "the workers have different settings: {} {} on rank 0, {} on rank 1".format(name, *values)
        assert first[name].startswith(text) and second[name] == "by another worker"


@pytest.mark.parametrize("algorithm", ["allreduce", "downpour"])
def test_a_backup_of_another_fit_is_refused(ranks: list[Any], ended: Any, algorithm: str) -> None:
    first, second = (rank["backups"][algorithm] for rank in ranks)
    assert first["again"] and second["again"], "the same fit is found finished"
    for case, text in {
        "rate": "is of another fit: optimizer.learning_rate 0.1",
        "data": "data.train.sha256",
        "model": 'activation "tanh" before, "relu" now',
        "seed": "seed 1 before, 2 now",
    }.items():
        assert text in first[case] and "Strategy(backup=...)" in first[case], first[case]
        assert second[case] == "by another worker"
    assert "finished already" in ended[1]


def test_notes_of_a_resumed_fit_are_shown(ranks: list[Any], ended: Any) -> None:
    assert ranks[0]["backups"]["damaged"], "the second epoch again, with the seed of the first attempt"
    assert "is damaged" in ended[1] and "the checkpoint before it is used" in ended[1]


def test_a_loss_that_compares_samples_is_told(ended: Any) -> None:
    told = (
        "the loss 'spread' is no mean over samples, and each worker computes it from its own, so the result depends on the number"
    )
    assert ended[1].count(told) == 1, ended[1]


def test_a_schedule_that_cannot_be_saved_trains_all_the_same(keras_server: ForkServer) -> None:
    program = [str(PROGRAM.with_name("keras_own_schedule.py"))]
    with keras_server.start(program, 2, "shm", {"KERAS_BACKEND": "torch"}) as group:
        ended = group.wait(60.0)
    assert ended.exit_code == 0 and ended.output.count("it learns: True") == 2, ended


@pytest.mark.soak
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_an_own_loop_on_each_backend_is_that_of_one_worker(fork_server: ForkServer, tmp_path: Path, backend: str) -> None:
    program = PROGRAM.with_name("keras_own_loop.py")
    environment = {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    with fork_server.start([str(program), str(tmp_path / "found")], 2, "shm", environment) as group:
        ended = group.wait(150.0)
    assert ended.exit_code == 0, ended
    for rank in range(2):
        found = json.loads((tmp_path / f"found.{rank}").read_text())
        for weights in found["shared"]:
            for one, expected in zip(weights, found["alone"], strict=True):
                np.testing.assert_allclose(one, expected, atol=1e-5)
        assert found["counted"] == [0.75, 3.0, 0.25, 1.0]
        assert found["divided"] == [1.0, 1.0] and "divide its sum by the number of samples of all workers" in found["mean loss"]
        assert found["in a graph"] is None or "reduce what that function returns" in found["in a graph"]
        assert found["jitted"] is None or "jit the function that computes the gradients" in found["jitted"]
