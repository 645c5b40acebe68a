"""Handwritten digits (scikit-learn's 1797 real images of 8 x 8 pixels), a small network, any number of workers.

unisono train examples/digits.py -n 2
unisono train examples/digits.py -n 4 --set model.width=128 --lr 0.05
unisono tune examples/digits.py -n 4 --folds 3 --trials 24
"""

from typing import Annotated

from torch import nn

import unisono as un


def model(
    width: Annotated[int, un.Range(16, 256, log=True)] = 64,
    depth: Annotated[int, un.Range(1, 3)] = 2,
    dropout: Annotated[float, un.Range(0.0, 0.6)] = 0.0,
) -> nn.Module:
    layers: list[nn.Module] = []
    for number in range(depth):
        layers += [nn.Linear(width if number else 64, width), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def data(test: float = 0.2, validation: float = 0.1, seed: int = 1) -> un.Splits:
    return un.split(un.digits(), validation=validation, test=test, how="stratified", seed=seed)


task = un.Task(
    model=model,
    data=data,
    loss="cross_entropy",
    metrics=("accuracy",),
    optimizer="sgd",
    optimizer_options={"momentum": 0.9},
    lr=0.1,
    schedule="cosine",
    global_batch=64,
    epochs=30,
    space={
        "lr": un.Range(0.01, 0.5, log=True),
        "global_batch": un.Choice(16, 32, 64, 128),
        "loss.label_smoothing": un.Range(0.0, 0.2),
    },
)
