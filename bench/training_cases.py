"""What `bench.train` and `bench.keras` train: models with their data, batch and optimiser, the same for everybody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

SEED = 20


@dataclass(frozen=True)
class Case:
    """One training. An epoch has exactly `steps` full batches."""

    name: str
    about: str
    global_batch: int
    steps: int
    """Of an epoch, which is what is timed."""
    optimizer: str
    lr: float
    shape: tuple[int, ...]
    """Of one sample."""
    optimizer_options: Mapping[str, float] = field(default_factory=dict)

    @property
    def num_samples(self) -> int:
        return self.global_batch * self.steps


MNIST_CNN = Case(
    name="mnist_cnn",
    about="two 3x3 convolutions of 32 and 64 channels, max-pool, dropout, dense 128, dropout, 10 classes; images of 28 x 28",
    global_batch=128,
    steps=4,
    optimizer="Adam",
    lr=0.001,
    shape=(1, 28, 28),
)
DIGITS = Case(
    name="digits",
    about="the MLP 64-64-64-10 of `examples/digits.py`; the real digits of 8 x 8 pixels",
    global_batch=64,
    steps=20,
    optimizer="SGD",
    lr=0.1,
    shape=(64,),
    optimizer_options={"momentum": 0.9},
)
CASES: Mapping[str, Case] = {case.name: case for case in (MNIST_CNN, DIGITS)}
KERAS_MLP = replace(DIGITS, name="mlp", about="64-64-64-10, the size of `examples/digits.py`", steps=50, lr=0.05)
KERAS_CNN = replace(MNIST_CNN, global_batch=64, steps=6, shape=(28, 28, 1))
KERAS_CASES: Mapping[str, Case] = {case.name: case for case in (KERAS_MLP, KERAS_CNN)}
"""The same on every backend; the samples of the first are patterns too."""
BACKENDS = ("torch", "tensorflow", "jax")


def write_data(case: Case, path: Path) -> None:
    """Local: all samples of an epoch as one file, so that every contender holds the same in memory."""
    inputs, targets = _digits(case.num_samples) if case is DIGITS else patterns(case)
    np.savez(path, inputs=np.ascontiguousarray(inputs, np.float32), targets=np.ascontiguousarray(targets, np.int64))


def _digits(num_samples: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    import unisono as un

    inputs, targets = un.digits()
    return inputs[:num_samples], targets[:num_samples]


def patterns(case: Case) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Pure: ten patterns and noise. What can be learned keeps every number in its usual range, and nothing must be downloaded."""
    source = np.random.default_rng(SEED)
    each = source.random((10, *case.shape))
    targets = source.integers(0, 10, case.num_samples)
    return (0.5 * each[targets] + 0.5 * source.random((case.num_samples, *case.shape))).astype(np.float32), targets
