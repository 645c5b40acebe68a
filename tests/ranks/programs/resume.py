"""A task whose first attempt is stopped in the middle: a file `stop-at` beside it says at which training step or evaluation."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor, nn

import unisono as un

PLAN = Path("stop-at")
"""E.g. "train 7" or "eval 2": how many calls of the model before this process asks itself to stop."""


class SelfStop(nn.Module):
    """Passes its input on, and sends the signal when its time has come."""

    def __init__(self) -> None:
        super().__init__()
        self.num_calls = {"train": 0, "eval": 0}

    def forward(self, inputs: Tensor) -> Tensor:
        kind = "train" if self.training else "eval"
        self.num_calls[kind] += 1
        with suppress(FileNotFoundError):  # another rank may have been first
            if PLAN.read_text() == f"{kind} {self.num_calls[kind]}":
                PLAN.unlink()
                os.kill(os.getpid(), signal.SIGUSR1)
        return inputs


class Net(nn.Module):
    """Everything that has a state or draws numbers; `spare` is a layer that no step uses, or that some steps use."""

    def __init__(self, spare: str = "") -> None:
        super().__init__()
        self.body = nn.Sequential(SelfStop(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 10))
        self.spare = nn.Linear(10, 10) if spare else None
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.count: Tensor

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.body(inputs)
        if self.training:
            self.count += 1
            if self.spare is not None and int(self.count) % 5 == 0:
                outputs = outputs + self.spare(outputs)
            return outputs
        return outputs + 0.1 * torch.randn_like(outputs)  # what an evaluation draws comes back too


def data() -> un.Splits:
    inputs, targets = un.digits()
    few = (inputs[:1000], targets[:1000])
    return un.split(few, validation=0.2, test=0.2)


def model(spare: str = "") -> nn.Module:
    return Net(spare)


task = un.Task(
    model=model,
    data=data,
    loss="cross_entropy",
    metrics=("accuracy",),
    optimizer="adam",
    lr=0.01,
    schedule="cosine",
    global_batch=64,
    epochs=4,
)
