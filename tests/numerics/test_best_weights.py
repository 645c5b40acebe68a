"""Which weights count: one rule for the test data, evaluate, apply, compare and more epochs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.system.fork_server import ForkServer
from unisono.comm.base import Communicator
from unisono.comm.single_process import single_process_communicator
from unisono.errors import AnotherRun, UsageError
from unisono.predict.apply_run import apply_runs
from unisono.predict.compare_runs import compare_runs
from unisono.predict.evaluate_run import evaluate_run
from unisono.predict.finished_run import open_run
from unisono.predict.predict_options import ApplyConfig, EvaluateConfig
from unisono.run import execute
from unisono.task.train_config import TrainConfig

TASK = """
import numpy as np
import torch
from torch import nn

import unisono as un


def model():
    found = nn.Linear(1, 2, bias=False)
    nn.init.zeros_(found.weight)
    with torch.no_grad():
        found.weight[0, 0] = 1.0
    return found


def data(validation: bool = True):
    # Every step makes it worse on the validation and test data, whose classes are the other way round.
    drawn = np.random.default_rng(3)
    inputs = (drawn.choice([-1, 1], 96) * drawn.uniform(1, 2, 96)).astype("float32")[:, None]
    targets = (inputs[:, 0] > 0).astype("int64")
    targets[48:] = 1 - targets[48:]
    parts = [(inputs[part], targets[part]) for part in (slice(0, 48), slice(48, 72), slice(72, 96))]
    return un.Splits(parts[0], validation=parts[1] if validation else None, test=parts[2])


task = un.Task(
    model=model,
    data=data,
    loss="cross_entropy",
    metrics=("accuracy",),
    lr=0.5,
    global_batch=8,
    epochs=5,
)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("task.py").write_text(TASK)


def train(out: str, more: dict[str, Any], **options: Any) -> dict[str, Any]:
    with single_process_communicator() as comm:
        return dict(execute(TrainConfig("task.py", changes=more, out=out, **options), comm).summary)


def evaluate(run: str, comm: Communicator, **options: Any) -> dict[str, Any]:
    return evaluate_run(EvaluateConfig(run, **options), comm)


BY_DEFAULT: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "final"),
    "patience": ({"patience": 1}, "best"),
    "target": ({"target": 2.0}, "best"),
    "monitor": ({"monitor": "val_loss"}, "best"),
    "final, and patience": ({"patience": 1, "weights": "final"}, "final"),
    "best": ({"weights": "best"}, "best"),
}


@pytest.mark.parametrize("what", BY_DEFAULT)
def test_test_data_evaluate_apply_and_compare_use_the_weights_that_count(what: str) -> None:
    changes, expected = BY_DEFAULT[what]
    summary = train("run", changes)
    assert (summary["weights"], summary["best_epoch"]) == (expected, 0)
    epoch = 0 if expected == "best" else -1
    assert summary["metrics"]["val_loss"] == summary["history"][epoch]["metrics"]["val_loss"]
    assert summary["metrics"]["best_val_loss"] == summary["history"][0]["metrics"]["val_loss"]
    with single_process_communicator() as comm:
        usual, best, final = (evaluate("run", comm, weights=which) for which in (None, "best", "final"))
        apply_runs(ApplyConfig(("run",), kind="raw", out="usual.npy"), comm)
        apply_runs(ApplyConfig(("run",), kind="raw", out="same.npy", weights=expected), comm)
    assert usual["weights"] == expected
    assert best["metrics"] != final["metrics"]
    assert usual["metrics"]["test_loss"] == pytest.approx(summary["metrics"]["test_loss"], rel=1e-6)
    assert usual["metrics"]["test_loss"] == pytest.approx((best if expected == "best" else final)["metrics"]["test_loss"], rel=1e-6)
    assert np.array_equal(np.load("usual.npy"), np.load("same.npy"))
    assert compare_runs(["run"], "test_loss").rows[0].value == summary["metrics"]["test_loss"]
    assert compare_runs(["run"], "best_test_loss").rows[0].value == pytest.approx(best["metrics"]["test_loss"])
    assert compare_runs(["run"], "final_test_loss").rows[0].value == pytest.approx(final["metrics"]["test_loss"])


def test_the_weights_that_count_are_chosen_where_there_is_a_validation() -> None:
    with pytest.raises(UsageError, match="weights best of the task needs validation data"):
        train("none", {"weights": "best", "data.validation": False})
    train("run", {"patience": 1})
    with pytest.raises(AnotherRun, match=r'settings\.weights nothing before, "final" now'):
        train("run", {"patience": 1, "weights": "final"})


BRIER = """

def brier(outputs, targets):
    return (outputs.softmax(1)[:, 1] - targets) ** 2


task = un.Task(model=model, data=data, loss="cross_entropy", metrics=(brier,), lr=0.5, global_batch=8, epochs=3)
"""


def test_an_own_metric_of_unknown_direction_judges_nothing_until_it_is_said() -> None:
    """Of an error the best epoch is that with the least, which is the first."""
    Path("task.py").write_text(TASK + BRIER)
    for changes in ({"monitor": "brier"}, {"patience": 2}, {"target": 0.1}):
        with pytest.raises(UsageError, match="whether a higher or a lower val_brier is better is not known"):
            train("none", changes)
    unsaid, said = train("unsaid", {}), train("run", {"monitor": "brier:min"})
    assert (unsaid["monitor_metric"], unsaid["higher_is_better"]) == ("val_loss", {"brier": None, "loss": False})
    assert (said["monitor_metric"], said["higher_is_better"]) == ("val_brier", {"brier": False, "loss": False})
    errors = [row["metrics"]["val_brier"] for row in said["history"]]
    assert said["best_epoch"] == int(np.argmin(errors)) == 0 and errors[-1] > errors[0]
    with pytest.raises(AnotherRun):  # the weights that count are others
        train("run", {"monitor": "brier:max"})


def test_more_epochs_make_an_evaluation_of_the_best_weights_outdated() -> None:
    """The best epoch is a later one, as the new monitor compares only epochs from then on."""
    first = train("run", {"epochs": 2})
    with single_process_communicator() as comm:
        evaluate("run", comm, weights="best", save_predictions=True)
    assert "best_test_loss" in open_run("run").metrics()
    second = train("run", {"epochs": 4, "monitor": "val_loss"}, accept_changes=True)
    assert (first["best_epoch"], second["best_epoch"]) == (0, 2)
    assert first["best_weights_sha256"] != second["best_weights_sha256"]
    run = open_run("run")
    assert "best_test_loss" not in run.metrics()
    assert run.outdated() == [Path("run", "evaluation-test-best.json")]
    with single_process_communicator() as comm:
        evaluate("run", comm, weights="best")
        Path("run", "best.safetensors").write_bytes(Path("run", "weights.safetensors").read_bytes())
        with pytest.raises(UsageError, match=r"best\.safetensors does not hold the weights that this run wrote"):
            evaluate("run", comm, weights="best")
    assert run.outdated() == []


def test_a_run_of_an_earlier_version_keeps_its_meaning() -> None:
    """Its test result is that of the last epoch, and apply uses the best weights where there are some. Its record and its result
    stay what they were, also where the run is found finished."""
    train("run", {"patience": 1, "weights": "final"})
    file = Path("run", "summary.json")
    summary = json.loads(file.read_text())
    file.write_text(json.dumps({name: one for name, one in summary.items() if name not in ("weights", "best_weights_sha256")}))
    with single_process_communicator() as comm:
        found = evaluate("run", comm)
        applied = apply_runs(ApplyConfig(("run",)), comm)
    assert (found["weights"], applied.weights) == ("final", "best")
    assert compare_runs(["run"], "test_loss").rows[0].value == summary["metrics"]["test_loss"]


@pytest.mark.parametrize("algorithm", [(), ("--algorithm", "gem")], ids=["allreduce", "gem"])
def test_every_worker_evaluates_the_weights_that_count(algorithm: tuple[str, ...], fork_server: ForkServer) -> None:
    words = ["-m", "unisono.cli", "train", "task.py", "--patience", "1", "--out", "run", *algorithm]
    ended = fork_server.run(words, 3, "shm")
    assert ended.exit_code == 0, ended
    summary = json.loads(Path("run", "summary.json").read_text())
    assert (summary["weights"], summary["replicas_equal"]) == ("best", True)
    assert "(best weights)" in ended.output
    with single_process_communicator() as comm:
        found = evaluate("run", comm)
    assert found["weights_sha256"] == summary["best_weights_sha256"]
    assert found["metrics"]["test_loss"] == pytest.approx(summary["metrics"]["test_loss"], rel=1e-6)
