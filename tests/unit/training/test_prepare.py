"""What a run says of its task before it trains."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from torch import nn

import unisono as un
from unisono.comm.single_process import single_process_communicator
from unisono.run import Screen, execute
from unisono.task.train_config import TrainConfig

X = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(6, 2)


@pytest.mark.parametrize("is_split", [True, False], ids=["validation data are joined", "they are of another source, and stay"])
def test_goals_without_effect_are_told_whatever_becomes_of_validation_data(
    is_split: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def data() -> un.Splits:
        return un.split((X, X[:, :1]), validation=0.5) if is_split else un.Splits((X, X[:, :1]), (X + 1, X[:, :1]))

    task = un.Task(lambda: nn.Linear(2, 1), data, loss="mse", lr=0.1, epochs=3, global_batch=2, monitor="val_loss", name="line")
    with single_process_communicator() as comm:
        ended = execute(TrainConfig("", out=str(tmp_path), division={"fold": None}), comm, Screen(), task=task)
    said = capsys.readouterr().out
    assert "with --all-data or --from-study monitor val_loss of the task has no effect; it trains 3 epochs" in said
    assert "without validation data" not in said
    assert ("val_loss" in ended.summary["metrics"]) != is_split
