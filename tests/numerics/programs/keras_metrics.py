"""Trains Keras models whose outputs are known with metrics of Unisono, and writes the outputs of plain Keras and the metrics."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

import unisono as un

N, C, SIDE = 90, 3, 5
FOLDER = Path(sys.argv[1])


def scores(seed: int, *shape: int) -> Any:
    return (2 * np.random.default_rng(seed).standard_normal(shape)).astype("float32")


def own(targets: Any, outputs: Any) -> Any:
    return keras.ops.sum(keras.ops.square(targets - outputs), axis=-1)


def told(targets: Any, outputs: Any) -> Any:
    return own(targets, outputs)


def spread(targets: Any, outputs: Any) -> Any:
    return keras.ops.sum(keras.ops.abs(targets - outputs), axis=-1)


told.predicts, told.one_hot = "probabilities", True  # type: ignore[attr-defined]


def drawn(seed: int, chances: Any) -> Any:
    """Class numbers drawn with the chances in the last axis."""
    bounds = np.random.default_rng(seed).random((*chances.shape[:-1], 1))
    return (chances.cumsum(-1) < bounds).sum(-1).clip(0, chances.shape[-1] - 1)


def softmax(values: Any) -> Any:
    return np.exp(values) / np.exp(values).sum(-1, keepdims=True)


FLAT, MAPS, BINARY = scores(1, N, C), scores(2, 12, SIDE, SIDE, C), scores(3, N, 1)
LABELS, PLACES = drawn(4, softmax(FLAT)), drawn(5, softmax(MAPS))
BITS = (np.random.default_rng(6).random((N, 1)) < 1 / (1 + np.exp(-BINARY))).astype("float32")
ROWS, PLANES = np.eye(C, dtype="float32")[LABELS], np.eye(C, dtype="float32")[PLACES]
CLASSES, AREAS = ("f1", "mean_iou", "kappa", "balanced_accuracy"), ("auc", "average_precision")

CASES: dict[str, tuple[Any, Any, str, Any, Sequence[Any]]] = {
    "sigmoid": (BINARY, BITS, "sigmoid", "binary_crossentropy", (*CLASSES, *AREAS)),
    "logit": (BINARY, BITS, "linear", keras.losses.BinaryCrossentropy(from_logits=True), (*CLASSES, *AREAS)),
    "one-hot": (FLAT, ROWS, "softmax", "categorical_crossentropy", (*CLASSES, *AREAS)),
    "numbers": (FLAT, LABELS, "softmax", "sparse_categorical_crossentropy", (*CLASSES, *AREAS)),
    "column": (FLAT, LABELS[:, None], "softmax", "sparse_categorical_crossentropy", (*CLASSES, *AREAS)),
    "logits": (FLAT, LABELS, "linear", keras.losses.SparseCategoricalCrossentropy(from_logits=True), (*CLASSES, *AREAS)),
    "by name": (FLAT, LABELS, "linear", "cross_entropy", (*CLASSES, *AREAS)),
    "maps": (MAPS, PLANES, "softmax", "categorical_crossentropy", (*CLASSES, *AREAS)),
    "told": (FLAT, ROWS, "softmax", told, (*CLASSES, *AREAS)),
    "own": (FLAT, ROWS, "softmax", own, ("f1",)),
    "own binary": (BINARY, BITS, "sigmoid", own, ("kappa",)),
    "hinge": (FLAT, ROWS, "softmax", "categorical_hinge", ("auc",)),
    "one output": (BINARY, BITS, "sigmoid", "binary_crossentropy", (keras.metrics.F1Score(threshold=0.5),)),
    "several": (FLAT, ROWS, "softmax", "categorical_crossentropy", (keras.metrics.F1Score(),)),
    "counts": (BINARY, BITS, "sigmoid", "binary_crossentropy", (keras.metrics.FalsePositives(), spread)),
}


def model_of(inputs: Any, activation: str) -> Callable[[], Any]:
    def model() -> Any:
        place = keras.Input(inputs.shape[1:])
        return keras.Model(place, keras.layers.Dense(inputs.shape[-1], activation, kernel_initializer="identity")(place))

    return model


found: dict[str, Any] = {}
arrays: dict[str, Any] = {}
for name, (inputs, targets, activation, loss, metrics) in CASES.items():
    arrays[f"{name}/outputs"] = model_of(inputs, activation)().predict(inputs, verbose=0)
    arrays[f"{name}/targets"] = targets

    def data(part: tuple[Any, Any] = (inputs, targets)) -> un.Splits:
        return un.Splits(train=(part[0][:4].copy(), part[1][:4].copy()), validation=part)

    task = un.Task(
        model=model_of(inputs, activation),
        data=data,
        loss=loss,
        metrics=metrics,
        optimizer="sgd",
        lr=1e-12,
        global_batch=4,
        epochs=1,
    )
    try:
        done = un.train(task, out=str(FOLDER / name.replace(" ", "-")), show=False)
        found[name] = {key: done.summary[key] for key in ("metrics", "higher_is_better", "monitor_metric", "reading")}
    except un.UsageError as error:
        found[name] = {"refused": str(error), "has begun": (FOLDER / name.replace(" ", "-") / "metrics.jsonl").exists()}
np.savez(FOLDER / "outputs.npz", **arrays)
(FOLDER / "found.json").write_text(json.dumps(found))
