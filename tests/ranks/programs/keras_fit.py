"""`model.fit` through a strategy against plain `model.fit` of one worker: python keras_fit.py OUT. Writes OUT.RANK as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np

import unisono as un

BATCH, EPOCHS = 16, 3
CASES = (("sgd", 48), ("adam", 50))
"""Optimiser, and samples: a whole number of batches, and one in which the last has fewer samples than workers."""

STREAMS = {"torch": ("PyDataset", "DataLoader", "generator"), "tensorflow": ("tf.data",), "jax": ("generator",)}
"""Which are tried where: every one costs the others a compilation."""


def samples(num: int) -> tuple[Any, Any]:
    draw = np.random.default_rng(3)
    x = draw.normal(size=(num, 6)).astype(np.float32)
    return x, (x @ draw.normal(size=(6, 3)) + 0.3 * draw.normal(size=(num, 3))).argmax(1)


def build_and_compile(kind: str) -> Any:
    layers = [keras.layers.Dense(8, activation="tanh", kernel_regularizer=keras.regularizers.L2(1e-3)), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((6,)), *layers])
    optimizer = keras.optimizers.SGD(0.1) if kind == "sgd" else keras.optimizers.Adam(0.01)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
    return model


def first_weights() -> list[Any]:
    draw = np.random.default_rng(7)
    return [draw.normal(size=shape).astype(np.float32) * 0.3 for shape in ((6, 8), (8,), (8, 3), (3,))]


def fitted(model: Any, num: int) -> dict[str, Any]:
    x, y = samples(num)
    seen = tuple(one[:37] for one in samples(60))
    history = model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, validation_data=seen, shuffle=False, verbose=0)
    again = model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)  # with an optimiser that has learned something
    return {
        "again": [float(value) for value in again.history["loss"]],
        "history": {name: [float(value) for value in values] for name, values in history.history.items()},
        "weights": [value.astype(np.float64).tolist() for value in model.get_weights()],
        "evaluated": [float(value) for value in model.evaluate(*seen, batch_size=8, verbose=0)],
        "predicted": np.asarray(model.predict(seen[0], batch_size=8, verbose=0)).astype(np.float64).tolist(),
        "iterations": int(model.optimizer.iterations),
    }


class Watching(keras.layers.Layer):  # type: ignore[misc]
    """Tells the mean of what goes through it."""

    def __init__(self) -> None:
        super().__init__(name="watching")
        self.seen = keras.metrics.Mean(name="seen")

    def call(self, inputs: Any) -> Any:
        self.seen.update_state(keras.ops.mean(inputs, axis=-1))
        return inputs

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


def of_two_outputs(num: int) -> dict[str, Any]:
    """The losses of each output and a metric that a layer holds, as `fit` and `evaluate` tell them."""
    x, y = samples(num)
    given = keras.Input((6,))
    hidden = keras.layers.Dense(8, activation="tanh")(given)
    if keras.config.backend() != "jax":  # where Keras itself cannot count in a layer
        hidden = Watching()(hidden)
    outputs = {"kind": keras.layers.Dense(3, name="kind")(hidden), "size": keras.layers.Dense(1, name="size")(hidden)}
    model = keras.Model(given, outputs)
    losses = {"kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "size": "mse"}
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss=losses, loss_weights={"kind": 1.0, "size": 0.5})
    draw = np.random.default_rng(8)
    model.set_weights([0.3 * draw.normal(size=one.shape) for one in model.get_weights()])
    targets = {"kind": y, "size": x.sum(1, keepdims=True)}
    history = model.fit(x, targets, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history
    told = model.evaluate(x, targets, batch_size=8, verbose=0, return_dict=True)
    return {name: [*map(float, values), float(told[name])] for name, values in history.items()}


def streamed(strategy: Any, kind: str) -> dict[str, Any]:
    """The same training from batches that come one after the other."""
    with strategy.scope():
        model = build_and_compile("sgd")
    model.set_weights(first_weights())
    x, y = samples(50)
    pieces = [(x[start : start + BATCH], y[start : start + BATCH]) for start in range(0, 50, BATCH)]
    if kind == "arrays":
        history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    elif kind == "PyDataset":

        class Batches(keras.utils.PyDataset):  # type: ignore[misc]
            def __len__(self) -> int:
                return len(pieces)

            def __getitem__(self, place: int) -> Any:
                return pieces[place]

        history = model.fit(Batches(), epochs=2, shuffle=False, verbose=0)
    elif kind == "DataLoader":
        import torch

        data = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
        history = model.fit(torch.utils.data.DataLoader(data, batch_size=BATCH), epochs=2, verbose=0)
    elif kind == "tf.data":
        import tensorflow as tf

        history = model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH), epochs=2, verbose=0)
    else:
        history = model.fit((piece for _ in range(2) for piece in pieces), epochs=2, steps_per_epoch=len(pieces), verbose=0)
    return {"loss": [float(value) for value in history.history["loss"]], "weights": [one.tolist() for one in model.get_weights()]}


def main() -> None:
    strategy = un.keras.Strategy()
    rank = strategy.comm.rank
    found: dict[str, Any] = {"rank": rank}
    for kind, num in CASES:
        if rank == 0:
            plain = build_and_compile(kind)
            plain.set_weights(first_weights())
            found[f"plain {kind}"] = fitted(plain, num)
        with strategy.scope():
            model = build_and_compile(kind)
        if rank == 0:  # the others take it from there
            model.set_weights(first_weights())
        found[f"shared {kind}"] = fitted(model, num)
    # Keras on TensorFlow gives the losses of short batches the weight of a whole one.
    num = 48 if keras.config.backend() == "tensorflow" else 50
    if rank == 0:
        found["plain outputs"] = of_two_outputs(num)
    with strategy.scope():
        found["shared outputs"] = of_two_outputs(num)
    found["streams"] = {kind: streamed(strategy, kind) for kind in ("arrays", *STREAMS[keras.config.backend()])}
    sums = strategy.reduce("SUM", {"a": np.full(2, rank + 1.0), "b": 1.0})
    found["reduced"] = [sums["a"].tolist(), float(sums["b"]), float(strategy.reduce("MEAN", np.float64(rank)))]
    Path(f"{sys.argv[1]}.{rank}").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
