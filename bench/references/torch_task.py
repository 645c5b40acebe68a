"""A small network with all that has a state or draws numbers: batch-norm, dropout, changed inputs, scores that are gathered."""

from typing import Annotated, Any

import numpy as np
from torch import nn

import unisono as un

NUM_SAMPLES = 700


def model(width: Annotated[int, un.Range(8, 48)] = 24, dropout: Annotated[float, un.Range(0.0, 0.5)] = 0.2) -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 10)
    )  # fmt: skip


def data() -> un.Splits:
    inputs, targets = un.digits()
    return un.split((inputs[:NUM_SAMPLES], targets[:NUM_SAMPLES]), validation=0.2, test=0.1, how="stratified", seed=3)


def noisy(batch: Any, random: un.SampleRandom) -> Any:
    """Each sample moved up or down by a little of its own."""
    inputs, targets = batch
    return (inputs + 0.01 * random.integers(-5, 6, (1,))).astype(np.float32), targets


task = un.Task(
    model=model,
    data=data,
    loss="cross_entropy",
    metrics=("accuracy", "f1", "auc"),
    optimizer="sgd",
    lr=0.05,
    schedule="cosine",
    global_batch=48,
    epochs=3,
    augment=noisy,
    space={"lr": un.Range(0.01, 0.2, log=True), "optimizer": un.Choice("sgd", "adam"), "global_batch": un.Choice(24, 48)},
)
