"""What `bench.keras` trains: two models with their data, batch and optimiser, the same for everybody and on every backend."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bench.training_cases import SEED, Case

BACKENDS = ("torch", "tensorflow", "jax")

MLP = Case(
    name="mlp",
    about="64-64-64-10, the size of `examples/digits.py`",
    global_batch=64,
    steps=50,
    optimizer="SGD",
    lr=0.05,
    optimizer_options={"momentum": 0.9},
)
CNN = Case(
    name="mnist_cnn",
    about="two 3x3 convolutions of 32 and 64 channels, max-pool, dropout, dense 128, dropout, 10 classes; images of 28 x 28",
    global_batch=64,
    steps=6,
    optimizer="Adam",
    lr=0.001,
)
CASES: Mapping[str, Case] = {case.name: case for case in (MLP, CNN)}
SHAPES: Mapping[str, tuple[int, ...]] = {MLP.name: (64,), CNN.name: (28, 28, 1)}
"""Of one sample, as Keras has it."""


def write_data(case: Case, path: Path) -> None:
    """Local: all samples of an epoch as one file: ten patterns and noise, so that there is something to learn."""
    source, shape = np.random.default_rng(SEED), SHAPES[case.name]
    patterns = source.random((10, *shape))
    targets = source.integers(0, 10, case.num_samples)
    inputs = 0.5 * patterns[targets] + 0.5 * source.random((case.num_samples, *shape))
    np.savez(path, inputs=inputs.astype(np.float32), targets=targets)
