"""Digits, with all that a training must not lose: momentum, a schedule, dropout, running statistics, the best weights.

Where KILL_FUZZ_TRACE names a file, every call of the model adds a letter to it, so that others see what is going on: `t` in
training, `e` in evaluation (not the two samples with which a model is tried before it starts). A call takes a few milliseconds, as
that of a larger model would.
"""

from __future__ import annotations

import os
from time import sleep

from torch import Tensor, nn

import unisono as un

TRAINING_S = 0.001
EVALUATION_S = 0.004


class Traced(nn.Module):
    """A small network that leaves a trace."""

    def __init__(self, dropout: float, norm: bool) -> None:
        super().__init__()
        first = [nn.Linear(64, 32), *([nn.BatchNorm1d(32)] if norm else []), nn.ReLU(), nn.Dropout(dropout)]
        self.layers = nn.Sequential(*first, nn.Linear(32, 10))
        file = os.environ.get("KILL_FUZZ_TRACE")
        self._trace = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT) if file else None

    def forward(self, inputs: Tensor) -> Tensor:
        if self._trace is not None and (self.training or len(inputs) > 2):
            os.write(self._trace, b"t" if self.training else b"e")
            sleep(TRAINING_S if self.training else EVALUATION_S)
        outputs: Tensor = self.layers(inputs)
        return outputs


def model(dropout: float = 0.2, norm: bool = True) -> nn.Module:
    return Traced(dropout, norm)


def data() -> un.Splits:
    return un.split(un.digits(), validation=0.3, test=0.2, how="stratified", seed=1)


task = un.Task(
    model=model,
    data=data,
    loss="cross_entropy",
    metrics=("accuracy",),
    optimizer="sgd",
    optimizer_options={"momentum": 0.9},
    lr=0.05,
    schedule="cosine",
    global_batch=30,
    epochs=20,
)
