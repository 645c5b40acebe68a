"""Compiled Keras models drawn at random, and what plain `fit` makes of them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import sklearn.metrics
import torch

import unisono as un
from tests.numerics.plain_training import Plain, agreement, area
from unisono.data.sharding_plan import Plan
from unisono.task.task import Task

Array = npt.NDArray[Any]

LOGITS, PROBABILITIES, ONE_HOT, TWO_LOGIT, TWO_PROBABILITY, NUMBERS = (
    "logits",
    "probabilities",
    "one hot",
    "logit",
    "probability",
    "numbers",
)
LOSSES: Mapping[str, str] = {
    LOGITS: "SparseCategoricalCrossentropy",
    PROBABILITIES: "SparseCategoricalCrossentropy",
    ONE_HOT: "CategoricalCrossentropy",
    TWO_LOGIT: "BinaryCrossentropy",
    TWO_PROBABILITY: "BinaryCrossentropy",
    NUMBERS: "MeanSquaredError",
}
KERAS_METRICS: Mapping[str, Sequence[str]] = {
    LOGITS: ("SparseCategoricalAccuracy",),
    PROBABILITIES: ("SparseCategoricalAccuracy", "SparseCategoricalCrossentropy"),
    ONE_HOT: ("CategoricalAccuracy", "CategoricalCrossentropy"),
    TWO_LOGIT: (),
    TWO_PROBABILITY: ("BinaryAccuracy", "AUC", "Precision", "Recall"),
    NUMBERS: ("MeanAbsoluteError", "RootMeanSquaredError"),
}
OUR_METRICS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys((LOGITS, PROBABILITIES, ONE_HOT), ("balanced_accuracy", "kappa", "f1", "auc")),
    **dict.fromkeys((TWO_LOGIT, TWO_PROBABILITY), ("kappa", "f1", "recall", "auc", "average_precision")),
    NUMBERS: ("mae", "r2"),
}
OPTIMIZERS: Sequence[tuple[str, Mapping[str, Any]]] = (
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("Adam", {}),
    ("RMSprop", {}),
    ("AdamW", {"weight_decay": 0.02}),
)


@dataclass(frozen=True)
class DrawnKeras:
    """One compiled model with its data."""

    seed: int
    kind: str
    num_outputs: int
    sizes: tuple[int, int, int]
    weighted: bool
    optimizer: tuple[str, Mapping[str, Any]]
    lr: float
    clipnorm: float | None
    regularised: bool
    keras_metrics: tuple[str, ...]
    metrics: tuple[str, ...]
    global_batch: int
    epochs: int
    workers: int
    stop_after: int | None
    double: bool = False
    best: bool = False

    def part(self, number: int) -> tuple[Array, ...]:
        """Pure: inputs, targets and weights, if any, of one part."""
        from_seed = np.random.default_rng(self.seed)
        total = sum(self.sizes)
        inputs = from_seed.normal(0, 1, (total, 4)).astype("f4")
        scores = inputs @ from_seed.normal(0, 1, (4, self.num_outputs)) + from_seed.normal(0, 0.5, (total, self.num_outputs))
        targets: Array = scores.argmax(1)
        if self.kind == ONE_HOT:
            targets = np.eye(self.num_outputs, dtype="f4")[targets]
        elif self.kind in (TWO_LOGIT, TWO_PROBABILITY):
            targets = (scores > np.median(scores)).astype("f4")
        elif self.kind == NUMBERS:
            targets = scores.astype("f4")
        arrays = (inputs, targets, *([from_seed.uniform(0.2, 2, total).astype("f4")] if self.weighted else []))
        start = sum(self.sizes[:number])
        return tuple(one[start : start + self.sizes[number]] for one in arrays)

    def model(self) -> Any:
        """Local: the compiled model, with the weights of this seed."""
        import keras

        last = {PROBABILITIES: "softmax", ONE_HOT: "softmax", TWO_PROBABILITY: "sigmoid"}.get(self.kind)
        penalty = keras.regularizers.L2(1e-2) if self.regularised else None
        first = keras.layers.Dense(5, "tanh", kernel_regularizer=penalty, name="first")
        layers = [keras.Input((4,)), first, keras.layers.Dense(self.num_outputs, last, name="last")]
        model = keras.Sequential(layers, name="drawn")
        from_seed = np.random.default_rng(self.seed + 1)
        model.set_weights([from_seed.normal(0, 0.5, one.shape) for one in model.get_weights()])
        name, options = self.optimizer
        from_logits = {"from_logits": True} if self.kind in (LOGITS, TWO_LOGIT) else {}
        measured = [getattr(keras.metrics, one)(name=one.lower()) for one in self.keras_metrics]
        model.compile(
            optimizer=getattr(keras.optimizers, name)(self.lr, clipnorm=self.clipnorm, **options),
            loss=getattr(keras.losses, LOSSES[self.kind])(**from_logits),
            **{"weighted_metrics" if self.weighted else "metrics": measured},
        )
        return model

    def task(self) -> Task:
        """Pure: the task as a user would write it."""
        return Task(
            model=self.model,
            data=lambda: un.Splits(self.part(0), self.part(1), self.part(2)),
            metrics=self.metrics,
            global_batch=self.global_batch,
            epochs=self.epochs,
            seed=self.seed,
            name="drawn",
        )

    def train_plainly(self) -> Plain:
        """Local, blocking: what plain `fit` and `evaluate` give. The regularisation is part of their losses."""
        import keras

        model, plan, found = self.model(), Plan(self.sizes[0], self.global_batch, self.seed), Plain()
        train, validation, test = map(self.part, range(3))
        for epoch in range(self.epochs):
            order = plan.order(epoch)
            x, y, *rest = (one[order] for one in train)
            ended = model.fit(x, y, sample_weight=rest[0] if rest else None, batch_size=self.global_batch, shuffle=False, verbose=0)
            found.losses.append(ended.history["loss"][0])
            found.val_losses.append(self.evaluated(model, validation)["loss"])
        found.weights = {one.path: torch.from_numpy(np.asarray(keras.ops.convert_to_numpy(one))) for one in model.weights}
        found.last = found.weights
        outputs = np.asarray(keras.ops.convert_to_numpy(model(test[0])))
        weights = test[2].astype(np.float64) if self.weighted else None
        ours = {name: self.metric(name, outputs.astype(np.float64), test[1], weights) for name in self.metrics}
        found.test = {**self.evaluated(model, test), **ours}
        found.outputs = torch.from_numpy(outputs)
        return found

    def evaluated(self, model: Any, part: tuple[Array, ...]) -> dict[str, float]:
        """Local: loss and metrics as Keras has them."""
        x, y, *weights = part
        found = model.evaluate(x, y, sample_weight=weights[0] if weights else None, batch_size=64, verbose=0, return_dict=True)
        return {name: float(value) for name, value in found.items()}

    def metric(self, name: str, outputs: Array, targets: Array, weights: Array | None) -> float:
        """Pure: by scikit-learn; probabilities are cut at one half, logits at 0."""
        if self.kind == NUMBERS:
            function = {"mae": sklearn.metrics.mean_absolute_error, "r2": sklearn.metrics.r2_score}[name]
            return float(function(targets, outputs, sample_weight=weights))
        if self.kind in (TWO_LOGIT, TWO_PROBABILITY):
            truth = targets[:, 0].astype(int)
            decided = (outputs[:, 0] > (0.0 if self.kind == TWO_LOGIT else 0.5)).astype(int)
            if name in ("auc", "average_precision"):
                return area(name, outputs[:, 0], truth == 1, weights)
            if name in ("f1", "recall"):
                function = {"f1": sklearn.metrics.f1_score, "recall": sklearn.metrics.recall_score}[name]
                return float(function(truth, decided, zero_division=0, sample_weight=weights))
            return agreement(name, truth, decided, weights)
        truth = targets.argmax(1) if self.kind == ONE_HOT else targets
        decided = outputs.argmax(1)
        if name == "f1":
            return float(sklearn.metrics.f1_score(truth, decided, average="macro", zero_division=0, sample_weight=weights))
        if name == "auc":
            shares = outputs
            if self.kind == LOGITS:
                shares = np.exp(outputs - outputs.max(1, keepdims=True))
                shares /= shares.sum(1, keepdims=True)
            if shares.shape[1] == 2:
                return area(name, shares[:, 1], truth == 1, weights)
            return float(np.nanmean([area(name, shares[:, one], truth == one, weights) for one in range(shares.shape[1])]))
        return agreement(name, truth, decided, weights)


def draw_keras(seed: int) -> DrawnKeras:
    """Pure: the model of this number."""
    one = random.Random(seed)
    kind = one.choice(list(LOSSES))
    batch, ours = one.randint(5, 20), one.random() < 0.5
    return DrawnKeras(
        seed=seed,
        kind=kind,
        num_outputs=1 if kind in (TWO_LOGIT, TWO_PROBABILITY, NUMBERS) else one.randint(2, 4),
        sizes=(one.randint(17, 50), one.randint(12, 25), one.randint(20, 40)),
        weighted=one.random() < 0.25,
        optimizer=one.choice(OPTIMIZERS),
        lr=10 ** one.uniform(-2.5, -1),
        clipnorm=one.choice((None, None, 1.0)),
        regularised=one.random() < 0.3,
        keras_metrics=tuple(one.sample(KERAS_METRICS[kind], 0 if ours else min(1, len(KERAS_METRICS[kind])))),
        metrics=tuple(one.sample(OUR_METRICS[kind], one.randint(1, 2) if ours else 0)),
        global_batch=batch,
        epochs=one.randint(1, 3),
        workers=one.choice((1, 1, 2, 3)),
        stop_after=1 if one.random() < 0.3 else None,
    )
