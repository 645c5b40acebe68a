"""Keras models and tasks that cannot be trained: the message of each as JSON, `python keras_refused.py`."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
import torch

from unisono.comm.single_process import single_process_communicator
from unisono.data.splits import Splits
from unisono.errors import UsageError
from unisono.model.base import StreamKey
from unisono.model.keras.make_replica import make_replica
from unisono.task.overrides import change
from unisono.task.task import Task
from unisono.training.batch_norms import refuse_synchronised
from unisono.training.frontends.assemble import assemble

L = keras.layers
BACKEND = keras.config.backend()


def plain(*layers: Any, **compiled: Any) -> Any:
    model = keras.Sequential([keras.Input((4,)), *(layers or (L.Dense(3),))])
    if compiled:
        model.compile(**compiled)
    return model


class Counting(keras.layers.Layer):  # type: ignore[misc]
    """Counts its batches in a plain number."""

    def build(self, shape: Any) -> None:  # noqa: ARG002
        self.count = 0

    def call(self, x: Any) -> Any:
        self.count += 1
        return x * 1.0


class Hiding(keras.layers.Layer):  # type: ignore[misc]
    """Has a variable of the framework itself."""

    def build(self, shape: Any) -> None:  # noqa: ARG002
        if BACKEND == "tensorflow":
            import tensorflow as tf

            self.held: Any = tf.Variable(1.0)
        else:
            self.held = np.ones(1)

    def call(self, x: Any) -> Any:
        if BACKEND != "tensorflow":
            self.held = self.held + 1
        return x * self.held


class OwnStep(keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.dense = L.Dense(3)
        self.build((None, 4))

    def build(self, shape: Any) -> None:
        self.dense.build(shape)
        self.built = True

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, *args: Any) -> Any:
        return super().train_step(*args)


class Largest(keras.metrics.Metric):  # type: ignore[misc]
    """What several workers count of it cannot be added up."""

    def __init__(self) -> None:
        super().__init__(name="largest")
        self.seen = self.add_weight(name="seen", initializer=keras.initializers.Constant(-1e9))

    def update_state(self, targets: Any, outputs: Any, sample_weight: Any = None) -> None:  # noqa: ARG002
        self.seen.assign(keras.ops.maximum(self.seen, keras.ops.max(outputs)))

    def result(self) -> Any:
        return self.seen.value


def summed(targets: Any, outputs: Any) -> Any:
    return keras.ops.sum(keras.ops.square(outputs[:, 0] - keras.ops.cast(targets, outputs.dtype)))


def mean_error(targets: Any, outputs: Any) -> Any:
    return keras.ops.mean(keras.ops.abs(outputs[:, 0] - keras.ops.cast(targets, outputs.dtype)))


def wrong_at_the_end() -> Splits:
    labels = np.asarray([0, 1, 0, 1, 0, 1, 0, 2], np.float32)
    return Splits(train=(np.eye(8, 4, dtype=np.float32), labels[:, None]))


def of_two_outputs() -> Splits:
    rows = np.eye(8, 4, dtype=np.float32)
    return Splits(train=(rows, (rows[:, :, None], rows[:, :1])))


def one_masked() -> Any:
    """A model of two outputs, of which one has a mask."""
    given = keras.Input((4,))
    steps = L.Dense(1)(L.Masking()(L.Reshape((4, 1))(given)))
    model = keras.Model(given, [steps, L.Dense(1)(given)])
    model.compile(loss=["mse", "mse"])
    return model


CROSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "unbuilt": (lambda: keras.Sequential([L.Dense(3)]), {"loss": "cross_entropy"}),
    "no loss": (plain, {}),
    "loss twice": (lambda: plain(loss=CROSS), {"loss": "mse"}),
    "own train_step": (OwnStep, {"loss": "cross_entropy"}),
    "frozen": (lambda: plain(L.Dense(3, trainable=False)), {"loss": "cross_entropy"}),
    "counting": (lambda: plain(Counting(), L.Dense(3)), {"loss": "cross_entropy"}),
    "hiding": (lambda: plain(Hiding(), L.Dense(3)), {"loss": "cross_entropy"}),
    "sum": (lambda: plain(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")), {}),
    "ignored class": (lambda: plain(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)), {}),
    "own assignment": (lambda: plain(L.SpectralNormalization(L.Dense(3))), {"loss": "cross_entropy"}),
    "rate of a schedule": (
        lambda: plain(loss=CROSS, optimizer=keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.9))),
        {"lr": 0.1},
    ),
    "several steps": (lambda: plain(loss=CROSS, steps_per_execution=3), {}),
    "loss scale": (lambda: plain(loss=CROSS, optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())), {}),
    "average": (lambda: plain(loss=CROSS, optimizer=keras.optimizers.Adam(use_ema=True)), {}),
    "sum of its own": (lambda: plain(loss=summed), {}),
    "mean metric": (lambda: plain(loss=CROSS, metrics=[mean_error]), {}),
    "metric": (lambda: plain(loss=CROSS, metrics=[Largest()]), {}),
    "constraint": (
        lambda: plain(L.Dense(3, kernel_constraint="non_neg")),
        {"loss": "cross_entropy", "optimizer": "adam"},
    ),
    "half": (plain, {"loss": "cross_entropy", "precision": "bf16"}),
    "loss options": (plain, {"loss": "cross_entropy", "loss_options": {"label_smoothing": 0.1}}),
    "optimizer": (plain, {"loss": "cross_entropy", "optimizer": "adamm"}),
    "shape": (lambda: keras.Sequential([keras.Input((7,)), L.Dense(3)]), {"loss": "cross_entropy"}),
    "a regression": (lambda: plain(L.Dense(1)), {"loss": "mse", "metrics": ("kappa",)}),
    "a label of 2": (lambda: plain(L.Dense(1, activation="sigmoid"), loss="binary_crossentropy"), {"data": wrong_at_the_end}),
    "one of two with a mask": (one_masked, {"data": of_two_outputs}),
    "made already": (partial(plain), {"loss": "cross_entropy"}),
}


def message(make: Callable[[], Any], settings: dict[str, Any]) -> str:
    draw = np.random.default_rng(0)
    data = (draw.normal(size=(8, 4)).astype(np.float32), draw.integers(0, 2, 8))
    settings = {"data": lambda: Splits(train=data), **settings}
    try:
        adapter = assemble(
            change(Task(model=make, global_batch=4, **settings), {}),
            "allreduce",
            single_process_communicator(torch.device("cpu")),
        ).adapter
        batch = settings["data"]().train.read(np.arange(8))
        adapter.evaluate(batch)
        adapter.forward_backward(batch, StreamKey(0, 0, 0))
    except UsageError as error:
        return str(error)
    return ""


def synchronised() -> str:
    """Only on TensorFlow it can be asked for when the layer is made."""
    layer = L.BatchNormalization(name="norm")
    layer.synchronized = True
    try:
        refuse_synchronised(make_replica(plain(layer, L.Dense(3), loss=CROSS)), 2, in_shards=False)
    except UsageError as error:
        return str(error)
    return ""


def main() -> None:
    found = {name: message(*case) for name, case in CASES.items() if name != "made already"}
    found["made already"] = message(plain(), {"loss": "cross_entropy"})
    found["synchronised"] = synchronised()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
