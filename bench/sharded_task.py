"""What `bench.invariance` trains: small networks with all that usually depends on the number of workers.

A file `kill-at` in the working directory, e.g. "17", makes the first worker whose model was called that often kill itself.
"""

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

import unisono as un

KILL = Path("kill-at")
NUM_IMAGES = 768


class Mortal(nn.Module):
    """Passes its input on, until its time has come."""

    def __init__(self) -> None:
        super().__init__()
        self.num_calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.num_calls += self.training
        with suppress(FileNotFoundError, ValueError):
            if self.training and self.num_calls >= int(KILL.read_text()):
                KILL.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return inputs


def model(kind: str = "mlp") -> nn.Module:
    if kind == "mlp":
        return nn.Sequential(Mortal(), nn.Linear(64, 96), nn.ReLU(), nn.Dropout(0.3), nn.Linear(96, 10))
    if kind == "norm":
        return nn.Sequential(
            Mortal(), nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.Flatten(),
            nn.Linear(432, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10),
        )  # fmt: skip
    return nn.Sequential(  # that of examples/mnist_cnn.py
        Mortal(), nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(),
        nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10),
    )  # fmt: skip


def data(mnist: str | None = None) -> un.Splits:
    """The digits that come with Unisono, or the first images of MNIST in a folder."""
    if mnist is None:
        inputs, targets = un.digits()
        return un.split((inputs[:700], targets[:700]), validation=0.2, test=0.0)
    folder = Path(mnist)
    source = un.Idx(folder / "train-images-idx3-ubyte.gz", folder / "train-labels-idx1-ubyte.gz")
    pixels, labels = source.read(np.arange(NUM_IMAGES))
    few: tuple[Any, Any] = ((pixels[:, None].astype(np.float32) / 255 - 0.1307) / 0.3081, labels)
    return un.split(few, validation=1 / 6, test=0.0)


task = un.Task(model=model, data=data, loss="cross_entropy", metrics=("accuracy",), lr=0.01, global_batch=64, epochs=2, shards=8)
