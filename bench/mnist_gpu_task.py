"""What `bench.time_to_accuracy_gpu` trains: a small network that reads 99 % of the MNIST test images after two passes.

Three 3x3 convolutions with batch-norm, and a rate that rises for a part of the first pass and falls to nothing at the end of the
second. The pixels stay bytes until the device has them.
"""

from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

import unisono as un

FACTOR = 1 / 255


def model(width: int = 24) -> nn.Module:
    return nn.Sequential(
        *_layer(1, width), nn.MaxPool2d(2), *_layer(width, 2 * width), nn.MaxPool2d(2), *_layer(2 * width, 4 * width),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4 * width * 9, 10),
    )  # fmt: skip


def _layer(inputs: int, outputs: int) -> list[nn.Module]:
    # No bias: batch-norm takes the mean away again.
    return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]


def data(mnist: str, most: int = 60_000) -> un.Splits:
    """The four files in a folder; the official test images are the validation data, as the question is when they are read.
    `most`: images of each part."""
    folder = Path(mnist)
    return un.Splits(
        train=_part(folder / "train-images-idx3-ubyte.gz", folder / "train-labels-idx1-ubyte.gz", most),
        validation=_part(folder / "t10k-images-idx3-ubyte.gz", folder / "t10k-labels-idx1-ubyte.gz", most),
    )


def _part(images: Path, labels: Path, most: int) -> un.Source:
    source = un.Idx(images, labels)
    pixels, targets = source.read(np.arange(min(most, len(source))))
    return un.Arrays(pixels[:, None], targets).map_inputs(scale())


def scale() -> Any:
    """Declared, so that it happens on the device; where this version cannot declare it, a function of the host."""
    declared: Any = getattr(un, "Scale", None)
    return _scaled if declared is None else declared(FACTOR)


def _scaled(images: Any) -> Any:
    return images.astype(np.float32) * np.float32(FACTOR)


task = un.Task(
    model=model,
    data=data,
    loss="cross_entropy",
    metrics=("accuracy",),
    optimizer="adam",
    lr=0.01,
    schedule="one_cycle",
    global_batch=256,
    epochs=2,
    target=0.99,
)
