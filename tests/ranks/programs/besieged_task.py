"""Digits, learnt slowly until the file that BESIEGED_GO names is there."""

from __future__ import annotations

import os
import time
from pathlib import Path

from torch import Tensor, nn

import unisono as un

GO = Path(os.environ["BESIEGED_GO"])
STEP_S = 0.05


class Slow(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        if self.training and not GO.exists():
            time.sleep(STEP_S)
        return super().forward(inputs)


def model() -> nn.Module:
    return Slow(64, 10)


def data() -> un.Splits:
    return un.split(un.digits(), validation=0.1, test=0.2, seed=1)


task = un.Task(model=model, data=data, loss="cross_entropy", metrics=("accuracy",), optimizer="sgd", lr=0.05, global_batch=128)
