"""A run keeps the meaning that its settings had when it began."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn
from torch.optim.lr_scheduler import StepLR

import unisono as un
from unisono.comm.base import Communicator
from unisono.comm.single_process import single_process_communicator
from unisono.errors import AnotherRun
from unisono.run import Screen, execute
from unisono.task.train_config import TrainConfig
from unisono.testing.thread_communicator import run_threads

STEPS_PER_EPOCH = 3


def task_of(**settings: Any) -> un.Task:
    x = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(6, 2)
    made: dict[str, Any] = {"schedule": lambda optimizer: StepLR(optimizer, 1), "lr": 0.1, "epochs": 2, "global_batch": 2}
    return un.Task(
        name="line",
        model=lambda: nn.Linear(2, 1),
        data=lambda: un.Splits(train=(x, x[:, :1])),
        loss="mse",
        **{**made, **settings},
    )


def train(out: Path, task: un.Task, **options: Any) -> dict[str, Any]:
    with single_process_communicator() as comm:
        return dict(execute(TrainConfig("", out=str(out), **options), comm, task=task).summary)


def recorded(out: Path) -> dict[str, Any]:
    options: dict[str, Any] = json.loads((out / "config.json").read_text())["settings"]["schedule_options"]
    return options


def test_a_run_records_that_its_scheduler_counts_in_epochs_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with single_process_communicator() as comm:
        execute(TrainConfig("", out=str(tmp_path / "run")), comm, Screen(), task=task_of())
    assert recorded(tmp_path / "run") == {"interval": "epoch"}
    assert "learning rate: StepLR makes a step after every epoch of the training" in capsys.readouterr().out
    rates = [row["lr"] for row in train(tmp_path / "again", task_of(epochs=3))["history"]]
    assert rates == pytest.approx([0.1, 0.01, 0.001])


def test_a_run_of_an_earlier_version_resumes_with_a_step_of_its_scheduler_after_every_step(tmp_path: Path) -> None:
    old, whole = tmp_path / "old", tmp_path / "whole"
    train(old, task_of(), changes={"schedule.interval": None}, max_steps=STEPS_PER_EPOCH)
    assert recorded(old) == {}, "as its record is"
    resumed = train(old, task_of())
    expected = train(whole, task_of(schedule_options={"interval": "step"}))
    assert recorded(old) == {} and recorded(whole) == {"interval": "step"}
    assert resumed["weights_sha256"] == expected["weights_sha256"]
    assert [row["lr"] for row in resumed["history"]] == [row["lr"] for row in expected["history"]]


def test_another_interval_in_the_task_is_another_run(tmp_path: Path) -> None:
    train(tmp_path / "run", task_of(), changes={"schedule.interval": None}, max_steps=STEPS_PER_EPOCH)
    with pytest.raises(AnotherRun, match=r"schedule_options\.interval nothing before, \"epoch\" now"):
        train(tmp_path / "run", task_of(schedule_options={"interval": "epoch"}))


DEPEND: dict[str, tuple[Any, str]] = {
    "batch-norm": (nn.BatchNorm1d(2), "differ, as batch-norm (module 1) takes its statistics from the samples of each worker"),
    "dropout": (nn.Dropout(0.5), "differ, as Dropout (module 1) draws other random numbers on other workers"),
    "neither": (nn.LayerNorm(2), "be the same only up to rounding, unless the model itself draws random numbers"),
}


@pytest.mark.parametrize("name", DEPEND)
def test_a_run_that_resumes_on_other_workers_says_what_that_means_for_its_result(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layer, effect = DEPEND[name]

    def task() -> un.Task:
        x = np.linspace(-1.0, 1.0, 32, dtype=np.float32).reshape(16, 2)
        made = task_of(accumulate=2, global_batch=8)
        model = nn.Sequential(nn.Linear(2, 2), deepcopy(layer), nn.Linear(2, 1))
        return replace(made, model=lambda: model, data=lambda: un.Splits(train=(x, x[:, :1])))

    def attempt(comm: Communicator, max_steps: int | None = None) -> None:
        execute(TrainConfig("", out=str(tmp_path / "run"), max_steps=max_steps), comm, Screen(), task=task())

    with single_process_communicator() as comm:
        attempt(comm, 2)
    note = "takes its statistics from each micro-batch (accumulate 2), so the result is another one than that of whole batches"
    assert (note in capsys.readouterr().out) == (name == "batch-norm")
    run_threads(2, attempt)
    assert f"processes 1 before, 2 now; the result will {effect}" in capsys.readouterr().out
