"""`--monitor` on a GPU: torch's mode for operations that wait, and what the driver says of the load."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import unisono as un

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason="PyTorch sees no GPU; run on a machine with an NVIDIA GPU and a CUDA build of PyTorch: pytest -m gpu",
    ),
]
STEPS = 100


def waiting_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    found = cross_entropy(outputs, targets, reduction="none")
    if found.sum().item() < 0:
        raise AssertionError("a loss is no less than 0")
    return found


def train(out: Path, loss: str | Callable[..., Any]) -> Mapping[str, Any]:
    data = np.zeros((STEPS * 10, 4), np.float32), np.zeros(STEPS * 10, np.int64)
    task = un.Task(model=lambda: nn.Linear(4, 2), data=lambda: un.Splits(train=data), loss=loss, global_batch=10)
    return un.train(task, out=out, monitor=True, show=False).summary


def test_a_recorded_training_does_not_wait_and_another_says_where_it_does(tmp_path: Path) -> None:
    recorded, waiting = train(tmp_path / "recorded", "cross_entropy"), train(tmp_path / "waiting", waiting_loss)
    assert torch.cuda.get_sync_debug_mode() == 0 and sys.modules["warnings"].showwarning.__module__ == "warnings"
    few, many = (one["monitor"][0]["host_waits"] for one in (recorded, waiting))
    assert few["num_steps"] == many["num_steps"] == STEPS
    assert few["num"] < STEPS // 10, f"while it warms up: {few}"
    assert many["num"] >= STEPS - 5
    first = next(iter(many["places"]))
    assert first == f"{__file__}, line {waiting_loss.__code__.co_firstlineno + 2}"
    assert 0 <= recorded["monitor"][0]["gpu_load"]["mean"] <= 1
    assert recorded["gpu"]["captured"] and not waiting["gpu"]["captured"]
