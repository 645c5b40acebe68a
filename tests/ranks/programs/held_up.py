"""A task that a test can meet in the middle: the file `hold` beside it makes it wait in a step, or take its time for each."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from time import sleep
from typing import Any, cast

import numpy as np
from torch import Tensor, nn

import unisono as un

HERE = Path(__file__).parent
HOLD = HERE / "hold"
"""'until stop requested': a rank with a stop request lets all continue; 'for good': only a kill helps; 'pace 0.1': each step takes
so long."""
HELD_STEP = 12


def stop_requested() -> bool:
    """What the signals of this process left with unisono."""
    handler = cast(Any, signal.getsignal(signal.SIGUSR1))
    return bool(handler.__self__.requested())


def wait() -> None:
    # Read before it is said that we wait: then another rank may take the file away.
    until_stop_requested = HOLD.read_text() == "until stop requested"
    (HERE / f"waits-{os.getpid()}").touch()
    while HOLD.exists():
        if until_stop_requested and stop_requested():
            HOLD.unlink(missing_ok=True)
        sleep(0.01)


class Held(nn.Module):
    """Passes its input on, sometimes late."""

    def __init__(self) -> None:
        super().__init__()
        self.step = -1
        self.how = HOLD.read_text() if HOLD.exists() else ""

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training and self.how:
            self.step += 1
            if self.how.startswith("pace "):
                sleep(float(self.how.removeprefix("pace ")))
            elif self.step == HELD_STEP:
                wait()
        return inputs


def model() -> nn.Module:
    return nn.Sequential(Held(), nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))


def data() -> un.Splits:
    rng = np.random.default_rng(7)
    labels = np.arange(288) % 3
    inputs = (np.eye(3, 8)[labels] + 0.5 * rng.standard_normal((288, 8))).astype(np.float32)
    return un.Splits((inputs[:240], labels[:240]), (inputs[240:], labels[240:]))


task = un.Task(
    model=model, data=data, loss="cross_entropy", metrics=("accuracy",), optimizer="adam", lr=0.01, global_batch=16, epochs=10
)
