"""What `bench.many_workers` and `bench.asynchronous` train: a network on MNIST, with plain SGD."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from torch import nn

import unisono as un

MEAN, DEVIATION = 0.1307, 0.3081  # of the training images
SHIFT = 2  # pixels


def model(kind: str = "convolutional", dropout: float = 0.4, width: int = 2048) -> nn.Module:
    """convolutional: 161,816 parameters, about as many as in the paper on gradient energy matching. wide: fully connected, with
    millions of parameters for few operations, so that its gradient takes longer to send than to compute."""
    if kind == "wide":
        return nn.Sequential(
            nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
        )  # fmt: skip
    return nn.Sequential(
        nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Dropout(dropout), nn.Linear(1024, 106), nn.ReLU(), nn.Linear(106, 10),
    )  # fmt: skip


def data(mnist: str, num_train: int = 60_000, num_test: int = 10_000) -> un.Splits:
    """The first images of MNIST in a folder: those for training, and the official test images as validation."""
    folder = Path(mnist)
    parts = []
    for name, num in (("train", num_train), ("t10k", num_test)):
        pixels, labels = un.Idx(folder / f"{name}-images-idx3-ubyte.gz", folder / f"{name}-labels-idx1-ubyte.gz").read(
            np.arange(num)
        )
        parts.append(((pixels[:, None].astype(np.float32) / 255 - MEAN) / DEVIATION, labels))
    return un.Splits(train=parts[0], validation=parts[1])


def shifted(batch: Any, random: un.SampleRandom) -> Any:
    """Each image moved by up to two pixels in each direction."""
    images, labels = batch
    edge = ((0, 0), (0, 0), (SHIFT, SHIFT), (SHIFT, SHIFT))
    windows = sliding_window_view(np.pad(images, edge, constant_values=-MEAN / DEVIATION), (28, 28), axis=(2, 3))
    down, right = random.integers(0, 2 * SHIFT + 1, (2,)).T
    return np.ascontiguousarray(windows[np.arange(len(images)), :, down, right]), labels


task = un.Task(
    model=model, data=data, loss="cross_entropy", metrics=("accuracy",), lr=0.05, global_batch=256, epochs=20, augment=shifted
)
