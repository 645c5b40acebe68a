"""Distils one model into another, by plain `fit` and by `fit` of a strategy: `compile` takes arguments of its own, which
`compute_loss` uses."""

import json
import sys
from typing import Any

import keras
import numpy as np
from keras import ops

import unisono as un

random = np.random.default_rng(0)
x, y = random.random((21, 6)).astype("float32"), random.integers(0, 3, 21)


class Distiller(keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = (keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)]) for _ in range(2))
        self.teacher.trainable = False
        for number, weight in enumerate(self.weights):
            weight.assign(np.random.default_rng(number).normal(size=weight.shape))

    def compile(self, optimizer: Any, metrics: Any, distance: Any, share: float) -> None:
        super().compile(optimizer=optimizer, metrics=metrics)
        self.distance, self.share = distance, share

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None) -> Any:  # noqa: ARG002
        return self.share * self.distance(ops.softmax(self.teacher(x)), ops.softmax(y_pred))

    def call(self, inputs: Any) -> Any:
        return self.student(inputs)


def fitted() -> dict[str, Any]:
    model = Distiller()
    model.compile(keras.optimizers.SGD(0.5), [keras.metrics.SparseCategoricalAccuracy()], keras.losses.KLDivergence(), 0.7)
    model.build(x.shape)
    history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history
    return {"history": history, "weights": [weight.tolist() for weight in model.get_weights()]}


plain = fitted()
with un.keras.Strategy(seed=1).scope() as strategy:
    shared = fitted()
    with open(f"{sys.argv[1]}.{strategy.comm.rank}", "w") as file:  # noqa: PTH123
        json.dump({"plain": plain, "shared": shared}, file)
