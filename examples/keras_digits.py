"""Handwritten digits (scikit-learn's 1797 real images of 8 x 8 pixels) with a Keras model, on whichever backend Keras runs.

KERAS_BACKEND=torch unisono train examples/keras_digits.py -n 2             # or tensorflow, or jax
KERAS_BACKEND=jax unisono train examples/keras_digits.py -n 4 --algorithm gem
"""

from typing import Annotated, Any

import keras

import unisono as un


def model(width: Annotated[int, un.Range(16, 256, log=True)] = 64) -> Any:
    layers = [keras.layers.Dense(width, activation="relu"), keras.layers.Dense(width, activation="relu"), keras.layers.Dense(10)]
    return keras.Sequential([keras.Input((64,)), *layers])


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
