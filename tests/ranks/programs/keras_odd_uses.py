"""Uses of `fit`, `evaluate` and `predict` that are seldom, through a strategy and in plain Keras: python keras_odd_uses.py OUT.

Writes what each gave as OUT.RANK, as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

import unisono as un
from unisono.errors import ReportedElsewhere

NUM, BATCH = 40, 8


def samples() -> tuple[Any, Any]:
    draw = np.random.default_rng(3)
    x = draw.normal(size=(NUM, 4)).astype(np.float32)
    return x, (x @ draw.normal(size=(4, 3)) > 0).astype(np.float32)


def as_lists(value: Any) -> Any:
    """Returns numbers as JSON has them."""
    if isinstance(value, dict):
        return {name: as_lists(part) for name, part in value.items()}
    return np.asarray(value, dtype=np.float64).tolist()


def start(model: Any, **compiled: Any) -> Any:
    """The model with weights that are the same everywhere."""
    model.compile(optimizer=keras.optimizers.SGD(0.1), **({"loss": "mse"} | compiled))
    draw = np.random.default_rng(7)
    model.set_weights([0.4 * draw.normal(size=one.shape) for one in model.get_weights()])
    return model


def small(**compiled: Any) -> Any:
    return start(keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="sigmoid")]), **compiled)


def two_outputs(as_dict: bool) -> Any:
    given = keras.Input((4,))
    first, second = keras.layers.Dense(3, name="first")(given), keras.layers.Dense(1, name="second")(given)
    outputs = {"first": first, "second": second} if as_dict else [first, second]
    metrics = {"first": ["mae"], "second": ["mae"]} if as_dict else [["mae"], ["mae"]]
    losses = {"first": "mse", "second": "mae"} if as_dict else ["mse", "mae"]
    return start(keras.Model(given, outputs), loss=losses, weighted_metrics=metrics)


def fitted(model: Any, *data: Any, **options: Any) -> Any:
    return as_lists(model.fit(*data, **({"batch_size": BATCH, "epochs": 2, "shuffle": False, "verbose": 0} | options)).history)


class Counted(keras.metrics.Metric):  # type: ignore[misc]
    """A share whose counts begin with an imagined sample."""

    def __init__(self) -> None:
        super().__init__(name="counted")
        self.hits = self.add_weight(shape=(), initializer="ones", name="hits")
        self.all = self.add_weight(shape=(), initializer="ones", name="all")

    def reset_state(self) -> None:
        self.hits.assign(1.0)
        self.all.assign(1.0)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:  # noqa: ARG002
        hits = keras.ops.cast((y_pred > 0.5) == (y_true > 0.5), "float32")
        self.hits.assign_add(keras.ops.sum(hits))
        self.all.assign_add(keras.ops.cast(keras.ops.size(hits), "float32"))

    def result(self) -> Any:
        return self.hits / self.all


class Extreme(keras.metrics.Metric):  # type: ignore[misc]
    """The smallest output, or the largest target."""

    def __init__(self, name: str, begin: float) -> None:
        super().__init__(name=name)
        self.begin = begin
        self.held = self.add_weight(shape=(), initializer="zeros", name="held")

    def reset_state(self) -> None:
        self.held.assign(self.begin)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:  # noqa: ARG002
        if self.name == "smallest":
            self.held.assign(keras.ops.minimum(self.held, keras.ops.min(y_pred)))
        else:
            self.held.assign(keras.ops.maximum(self.held, keras.ops.max(y_true)))

    def result(self) -> Any:
        return self.held + 0.0


class Batches(keras.utils.PyDataset):  # type: ignore[misc]
    """Tells what is called; its targets change with every epoch."""

    def __init__(self, num: int, factor: float = 1.1) -> None:
        super().__init__()
        self.x, self.y = samples()
        self.num, self.factor = num, factor
        self.seen: list[str] = []

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, position: int) -> Any:
        self.seen.append(str(position))
        rows = slice(position * BATCH, (position + 1) * BATCH)
        return self.x[rows], self.y[rows]

    def on_epoch_begin(self) -> None:
        self.seen.append("begin")

    def on_epoch_end(self) -> None:
        self.seen.append("end")
        self.y = self.factor * self.y


def seen_of(model: Any, num: int, **options: Any) -> Any:
    reads_ahead = keras.config.backend() == "tensorflow"  # Keras does, also past the end of an epoch where it continues
    data = Batches(num, 1.0 if reads_ahead and "steps_per_epoch" in options else 1.1)
    history = fitted(model, data, **({"batch_size": None} | options))
    return {"history": history, "seen": [] if reads_ahead else data.seen}


class Summing(keras.layers.Layer):  # type: ignore[misc]
    """Counts its samples."""

    def build(self, shape: Any) -> None:  # noqa: ARG002
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, aggregation="sum", name="count")

    def call(self, inputs: Any, training: bool = False) -> Any:
        if training:
            self.count.assign(self.count + keras.ops.cast(keras.ops.shape(inputs)[0], "float32"))
        return inputs


def results(make: Callable[[Callable[[], Any]], Any]) -> dict[str, Any]:
    """What each use gives; `make` makes a model, in a scope or outside of any."""
    x, y = samples()
    both = {"first": y, "second": x[:, :1]}
    draw = np.random.default_rng(5)
    weights = {"first": draw.uniform(0.5, 2, NUM), "second": draw.uniform(0.5, 2, NUM)}
    seen = x[:30], y[:30]
    targets, each = list(both.values()), list(weights.values())
    of_lists = make(lambda: two_outputs(as_dict=False))
    of_dicts = make(lambda: two_outputs(as_dict=True))
    cases: dict[str, Callable[[], Any]] = {
        "metrics built late": lambda: fitted(
            make(lambda: small(metrics=[keras.metrics.F1Score(average="macro", threshold=0.5), keras.metrics.R2Score()])),
            *(x, y),
            validation_data=seen,
        ),
        "metric from one": lambda: fitted(make(lambda: small(metrics=[Counted()])), x, y, validation_data=seen),
        "validation_steps": lambda: fitted(make(small), x, y, validation_data=seen, validation_steps=2),
        "validation_steps alone": lambda: fitted(make(small), x, y, batch_size=None, validation_data=seen, validation_steps=2),
        "steps_per_epoch": lambda: fitted(make(small), x, y, batch_size=None, steps_per_epoch=4),
        "evaluate steps": lambda: as_lists(make(small).evaluate(x, y, batch_size=6, steps=3, verbose=0)),
        "evaluate steps alone": lambda: as_lists(make(small).evaluate(x, y, steps=1, verbose=0)),
        "predict steps": lambda: as_lists(make(small).predict(x, batch_size=6, steps=3, verbose=0)),
        "predict steps alone": lambda: as_lists(make(small).predict(x[:39], steps=3, verbose=0)),
        "PyDataset": lambda: seen_of(make(small), 5),
        "PyDataset in parts": lambda: seen_of(make(small), 4, steps_per_epoch=2, epochs=3),
        "PyDataset in part": lambda: seen_of(make(small), 5, steps_per_epoch=2, epochs=2),
        "PyDataset evaluated": lambda: as_lists(make(small).evaluate(Batches(4, 1.0), steps=7, verbose=0)),
        "list of weights": lambda: fitted(of_lists, x, targets, sample_weight=each, validation_data=(x, targets, each)),
        "dict of weights": lambda: fitted(of_dicts, x, both, sample_weight=weights, validation_data=(x, both, weights)),
        "weights evaluated": lambda: as_lists(of_dicts.evaluate(x, both, BATCH, sample_weight=weights, verbose=0)),
    }
    return {name: case() for name, case in cases.items()}


def refused(call: Callable[[], Any]) -> str:
    try:
        call()
    except un.UsageError as error:
        return str(error)
    except ReportedElsewhere:
        return "by another worker"
    return ""


def main() -> None:
    strategy = un.keras.Strategy()

    def shared(make: Callable[[], Any]) -> Any:
        with strategy.scope():
            return make()

    def plain(make: Callable[[], Any]) -> Any:
        with nullcontext():
            return make()

    x, y = samples()
    y[0], y[-1] = 0.0, 1.0
    found: dict[str, Any] = {"plain": results(plain), "shared": results(shared)}
    data = Batches(5)
    shared(small).fit(data, epochs=3, verbose=0)
    found["shuffled"] = data.seen
    labels = np.arange(NUM) % 2
    names = {"one": weights_of(y), "other": weights_of(y)}
    found["refused"] = {
        "smallest": refused(lambda: fitted(shared(lambda: small(metrics=[Extreme("smallest", 1e9)])), x, y)),
        "largest": refused(lambda: fitted(shared(lambda: small(metrics=[Extreme("largest", 0.0)])), x, y)),
        "sum": refused(
            lambda: fitted(shared(lambda: start(keras.Sequential([keras.Input((4,)), Summing(), keras.layers.Dense(3)]))), x, y)
        ),
        "steps": refused(lambda: shared(small).fit(Batches(5), steps_per_epoch=2, epochs=3, verbose=0)),
        "weights": refused(
            lambda: fitted(shared(lambda: two_outputs(as_dict=True)), x, {"first": y, "second": x[:, :1]}, sample_weight=names)
        ),
    }
    for loss in (keras.losses.Circle(), keras.losses.Dice()):
        targets = labels if loss.name == "circle" else y
        strategy.num_fits = 0
        fitted(shared(partial(small, loss=loss)), x, targets)
    Path(f"{sys.argv[1]}.{strategy.comm.rank}").write_text(json.dumps(found))


def weights_of(y: Any) -> Any:
    return np.ones(len(y))


if __name__ == "__main__":
    main()
