"""Which front end a model has, and that a training loads no other one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from unisono.errors import UsageError
from unisono.task.task import Task
from unisono.training.frontends.base import frontend_of
from unisono.training.frontends.lightning_frontend import LightningFrontEnd
from unisono.training.frontends.torch_frontend import TorchFrontEnd

PROGRAM = """
import json, sys
import torch
import unisono as un

task = un.Task(
    model=lambda: torch.nn.Linear(4, 3),
    data=lambda: un.Splits(train=(torch.rand(12, 4).numpy(), torch.arange(12).numpy() % 3), validation=None),
    loss="cross_entropy",
    metrics=("accuracy",),
    global_batch=6,
)
un.train(task, out=sys.argv[1], show=False)
print(json.dumps([name for name in sys.modules if name.startswith("unisono.")]))
"""
NOT_LOADED = ("model.keras", "model.lightning", "metrics.keras", "algorithms.server", "training.server", "algorithms.sharded")
FRONT_ENDS = ("keras_frontend", "lightning_frontend", "torchmetrics_states")


class Classifier(nn.Linear):
    """A LightningModule, as it is recognised."""

    def training_step(self, batch: Any, position: int) -> Any: ...

    def configure_optimizers(self) -> Any: ...


def task(**settings: Any) -> Task:
    return Task(model=lambda: None, data=lambda: None, **settings)


def test_a_model_chooses_its_front_end() -> None:
    assert isinstance(frontend_of(task(), nn.Linear(2, 2)), TorchFrontEnd)
    assert isinstance(frontend_of(task(), Classifier(2, 2)), LightningFrontEnd)
    own_step = frontend_of(task(step=lambda *_: None), Classifier(2, 2))
    assert isinstance(own_step, TorchFrontEnd), "a step of the task trains it as a plain module"


def test_what_a_task_leaves_open_is_filled_in() -> None:
    filled = frontend_of(task(loss="mse"), nn.Linear(2, 2)).with_defaults()
    assert (filled.optimizer, filled.lr) == ("sgd", 0.01)
    assert frontend_of(task(), Classifier(2, 2)).with_defaults().optimizer is None, "the module says it"
    with pytest.raises(UsageError, match="lr of the task has no effect"):
        frontend_of(task(lr=0.1), Classifier(2, 2)).with_defaults()


def test_a_training_in_lock_step_loads_no_other_front_end_and_no_server(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path / "run")], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    loaded = [name.removeprefix("unisono.") for name in json.loads(done.stdout.splitlines()[-1])]
    assert "training.frontends.torch_frontend" in loaded
    assert [name for name in loaded if name.startswith(NOT_LOADED) or name.rpartition(".")[2] in FRONT_ENDS] == []
