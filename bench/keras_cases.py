"""What `bench.keras` trains: two models with their data, batch and optimiser, the same for everybody and on every backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.training_cases import MNIST_CNN, Case, patterns

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
CNN = replace(MNIST_CNN, global_batch=64, steps=6)
CASES: Mapping[str, Case] = {case.name: case for case in (MLP, CNN)}
SHAPES: Mapping[str, tuple[int, ...]] = {MLP.name: (64,), CNN.name: (28, 28, 1)}
"""Of one sample, as Keras has it."""


def write_data(case: Case, path: Path) -> None:
    """Local: all samples of an epoch as one file: ten patterns and noise, so that there is something to learn."""
    inputs, targets = patterns(case.num_samples, SHAPES[case.name])
    np.savez(path, inputs=inputs, targets=targets)
