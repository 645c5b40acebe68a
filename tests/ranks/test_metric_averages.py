"""What `f1` and the like mean is recorded by a run, kept when it is resumed, evaluated or searched with, and never mixed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.processes import plain_environment
from unisono.cli import main
from unisono.comm.single_process import single_process_communicator
from unisono.data.fold_data import Folding
from unisono.run import execute
from unisono.task.averages import recorded_averages
from unisono.task.train_config import TrainConfig
from unisono.tuning.workers.trial_training import TaskTrialRunner

TASK = """
import numpy as np
from torch import nn

import unisono as un

LABELS = (np.arange(200) % 10 == 0).astype(np.float32)
INPUTS = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)


def model(num_outputs: int = 1) -> nn.Module:
    net = nn.Linear(4, num_outputs)
    nn.init.constant_(net.bias, -9.0)
    return net


def data() -> un.Splits:
    return un.Splits((INPUTS, LABELS), validation=(INPUTS, LABELS))


task = un.Task(
    model=model,
    data=data,
    loss="bce",
    metrics=("f1", "f1_macro", "f1_binary", "recall"),
    lr=1e-6,
    global_batch=100,
    epochs=1,
    space={"lr": un.Range(1e-7, 1e-6)},
)
"""
Train = Callable[..., Any]


@pytest.fixture
def unisono(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Train]:
    """A command in this process; returns what it printed, on standard error if it failed."""
    for name in set(os.environ) - set(plain_environment()):
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    Path("task.py").write_text(TASK)

    def run(*words: str, code: int = 0) -> str:
        assert main(list(words)) == code
        out, error = capsys.readouterr()
        return error if code else out

    yield run
    sys.modules.pop("task", None)


def read(*path: str) -> Any:
    return json.loads(Path(*path).read_text())


def forget_averages(run: str) -> None:
    """Makes a run like one of an old version, which took means over the classes, and did not record it."""
    config = read(run, "config.json")
    del config["averages"]
    Path(run, "config.json").write_text(json.dumps(config))


def test_a_run_keeps_what_its_metrics_mean(unisono: Train) -> None:
    unisono("train", "task.py", "--out", "new")
    unisono("train", "task.py", "--out", "old")
    assert read("new", "config.json")["averages"] == {"f1": "binary", "recall": "binary"}
    found = read("new", "summary.json")["metrics"]
    assert found["val_f1"] == found["val_f1_binary"] == found["val_recall"] == 0, "it finds no positive"
    assert found["val_f1_macro"] == pytest.approx(0.9 / 1.9)
    forget_averages("old")
    for run, same in (("new", "val_f1_binary"), ("old", "val_f1_macro")):
        unisono("train", "task.py", "--out", run, "--epochs", "2")
        again = read(run, "summary.json")["metrics"]
        assert again["val_f1"] == again[same]
        unisono("evaluate", run, "--split", "validation", "--weights", "best")
        evaluated = read(run, "evaluation-validation-best.json")["metrics"]
        assert evaluated["val_f1"] == evaluated[same]
    assert read("new", "config.json")["averages"] == {"f1": "binary", "recall": "binary"}
    assert "averages" not in read("old", "config.json")
    told = unisono("compare", "new", "old", "--metric", "val_f1", code=2)
    assert "val_f1 means different things in these runs" in told
    assert "the positive class (f1_binary): new; the mean over the classes (f1_macro): old" in told
    unisono("compare", "new", "old", "--metric", "val_f1_binary")


def test_a_study_records_its_averages_and_its_trials_keep_them(unisono: Train, tmp_path: Path) -> None:
    work = TaskTrialRunner(str(tmp_path / "task.py"), {}, None, Folding())
    assert work.describe()["averages"] == {"f1": "binary", "recall": "binary"}
    config = TrainConfig("task.py", averages=dict(recorded_averages({})), out="trial", quiet=True)
    found = execute(config, single_process_communicator()).summary
    assert "averages" not in found["config"]
    assert found["metrics"]["val_f1"] == found["metrics"]["val_f1_macro"], "as all trials of an old study"


def test_a_regression_has_no_accuracy(unisono: Train) -> None:
    for name in ("accuracy", "f1", "kappa"):
        told = unisono("train", "task.py", "--set", "loss=mse", "--set", f"metrics={name}", code=2)
        assert f"metric '{name}' decides for a class, but the loss 'mse' fits numbers; use mse, rmse, mae or r2" in told
    text = TASK.replace("(np.arange(200) % 10 == 0)", "(np.arange(200) / 199)")
    own = "task = replace(task, loss=lambda outputs, targets: (outputs[:, 0] - targets) ** 2)\n"
    Path("task.py").write_text(f"from dataclasses import replace\n{text}\n{own}")
    told = unisono("train", "task.py", "--set", "metrics=accuracy", code=2)
    assert "metric 'accuracy' needs targets that are classes or labels, but sample 1 has the target 0.00502513" in told
    assert not Path("runs").exists()
    unisono("train", "task.py", "--set", "metrics=r2")
