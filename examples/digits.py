"""Handwritten digits (scikit-learn's 1797 real images of 8 x 8 pixels), a small network, any number of workers.

unisono train examples/digits.py -n 2
unisono train examples/digits.py -n 4 --set model.width=128 --lr 0.05
"""

from typing import Annotated

from torch import nn

import unisono as un


def model(width: Annotated[int, un.Range(16, 256, log=True)] = 64) -> nn.Module:
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


def data(test: float = 0.2, validation: float = 0.1) -> un.Splits:
    return un.split(un.digits(), validation=validation, test=test, how="stratified", seed=1)


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
)
