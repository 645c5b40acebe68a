"""A small Keras model with batch normalisation and dropout, on whichever backend Keras runs."""

from typing import Any

import keras
from torch_task import data  # type: ignore[import-not-found]  # stands beside this file

import unisono as un

L = keras.layers


def model(width: int = 24) -> Any:
    hidden = [L.Dense(width), L.BatchNormalization(), L.Activation("relu"), L.Dropout(0.2)]
    return keras.Sequential([keras.Input((64,)), *hidden, L.Dense(10)])


task = un.Task(
    model=model,
    data=data,
    loss="cross_entropy",
    metrics=("accuracy",),
    optimizer="adam",
    lr=0.01,
    schedule="cosine",
    global_batch=48,
    epochs=3,
)
