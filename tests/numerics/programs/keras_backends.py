"""Gradients and twenty steps of several Keras models on one backend, from given weights: python keras_backends.py OUT.npz

The gradient also comes from two uneven parts of the batch, as two workers compute it.
The same numbers come from plain `model.fit` in the same process, so that ours are compared with Keras itself too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import keras
import numpy as np
import torch

from unisono.algorithms.base import LockStepAlgorithm, StepInfo
from unisono.comm.single_process import single_process_communicator
from unisono.data.splits import Splits
from unisono.data.tree import map_tree
from unisono.model.base import StreamKey
from unisono.task.overrides import change
from unisono.task.task import Task
from unisono.training.frontends.assemble import assemble

ROWS, STEPS, LR = 10, 20, 0.05
L = keras.layers


def draw(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def mlp() -> tuple[Any, Any]:
    """With sample weights, and a regulariser whose factor float32 holds exactly, as Keras on TensorFlow keeps it in that."""
    layers = [L.Dense(7, activation="tanh", kernel_regularizer=keras.regularizers.L2(1 / 128)), L.Dense(3)]
    model = keras.Sequential([keras.Input((5,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(LR), loss=loss, metrics=["accuracy"])
    data = draw(1)
    return model, (data.normal(size=(ROWS, 5)), data.integers(0, 3, ROWS), data.uniform(0.5, 2, ROWS))


def pictures() -> tuple[Any, Any]:
    """With batch normalisation, and no bias before it, whose gradient would be nothing but rounding."""
    picture = [L.Conv2D(4, 3, padding="same", use_bias=False), L.BatchNormalization(), L.Activation("relu")]
    model = keras.Sequential([keras.Input((6, 6, 2)), *picture, L.GlobalAveragePooling2D(), L.Dense(2)])
    model.compile(optimizer=keras.optimizers.SGD(LR), loss="mse", metrics=["mae"])
    data = draw(2)
    return model, (data.normal(size=(ROWS, 6, 6, 2)), data.normal(size=(ROWS, 2)))


def two_of_each() -> tuple[Any, Any]:
    """Two inputs and two outputs whose losses count differently."""
    first, second = keras.Input((4,)), keras.Input((3,))
    joined = L.Concatenate()([L.Dense(5, activation="tanh")(first), L.Dense(5, activation="tanh")(second)])
    model = keras.Model([first, second], [L.Dense(2, name="value")(joined), L.Dense(1, name="mark")(joined)])
    bce = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(LR), loss=["mse", bce], loss_weights=[1.0, 0.3], metrics=[["mae"], ["accuracy"]])
    data = draw(3)
    inputs = (data.normal(size=(ROWS, 4)), data.normal(size=(ROWS, 3)))
    return model, (inputs, (data.normal(size=(ROWS, 2)), data.integers(0, 2, (ROWS, 1)).astype(float)))


def masked() -> tuple[Any, Any]:
    """Sequences of different lengths: the loss leaves out what is masked."""
    inputs = keras.Input((6,), dtype="int32")
    model = keras.Model(inputs, L.Dense(3)(L.SimpleRNN(5, return_sequences=True)(L.Embedding(9, 4, mask_zero=True)(inputs))))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(LR), loss=loss)
    data = draw(4)
    words = data.integers(1, 9, (ROWS, 6)) * (np.arange(6) < data.integers(2, 7, (ROWS, 1)))
    return model, (words, data.integers(0, 3, (ROWS, 6)))


MODELS: tuple[Callable[[], tuple[Any, Any]], ...] = (mlp, pictures, two_of_each, masked)


def typed(tree: Any) -> Any:
    if isinstance(tree, tuple):
        return tuple(typed(part) for part in tree)
    return tree.astype(keras.config.floatx()) if np.issubdtype(tree.dtype, np.floating) else tree


def started(make: Callable[[], tuple[Any, Any]]) -> tuple[Any, Any]:
    """A model with weights that are the same everywhere, and its batch."""
    model, batch = make()
    first = draw(9)
    model.set_weights([0.4 * first.normal(size=one.shape) if one.ndim > 1 else np.asarray(one) for one in model.get_weights()])
    return model, typed(batch)


def ours(make: Callable[[], tuple[Any, Any]]) -> tuple[dict[str, Any], dict[str, Any], list[float], list[Any]]:
    """Gradient of the mean loss by name, that from two parts of the batch, the loss of every step, and the weights in the end."""
    kept: list[Any] = []

    def model() -> Any:
        kept.append(started(make)[0])
        return kept[0]

    batch = started(make)[1]
    task = Task(model=model, data=lambda: Splits(train=batch), global_batch=ROWS, epochs=STEPS)
    parts = assemble(change(task, {}), "allreduce", single_process_communicator(torch.device("cpu")))
    assert isinstance(parts.algorithm, LockStepAlgorithm)
    parts.algorithm.start()
    adapter = parts.adapter
    adapter.clear_gradients()
    adapter.forward_backward(batch, StreamKey(0, 0, 0))
    stats, _ = adapter.tail.read(0)
    held = adapter.parts[""]
    gradient = {name: one.numpy() / stats.weight for name, one in held.layout.views(held.gradients).items()}
    adapter.restore({**before(parts), "kept": {}})
    divided = {}
    if make is not pictures:  # where batch normalisation would see other batches
        adapter.clear_gradients()
        for part in (slice(None, 3), slice(3, None)):
            adapter.forward_backward(map_tree(itemgetter(part), batch), StreamKey(0, 0, 0))
        weight = adapter.tail.read(0)[0].weight
        divided = {name: one.numpy() / weight for name, one in held.layout.views(held.gradients).items()}
        adapter.restore({**before(parts), "kept": {}})
    curve = []
    for step in range(STEPS):
        (done,) = parts.algorithm.step((batch,), StepInfo(step, StreamKey(0, step, 0), parts.settings(step), ROWS))
        curve.append(done.loss)
    adapter.model.publish()  # type: ignore[operator]
    return gradient, divided, curve, kept[0].get_weights()


def before(parts: Any) -> dict[str, Any]:
    """The state without what one pass has made of the running statistics."""
    state: dict[str, Any] = parts.adapter.state()
    pure = parts.adapter.model.pure
    first = {pure.name(one): torch.from_numpy(np.array(one.numpy())) for one in (*pure.trainable, *pure.non_trainable)}
    return {**state, "model": first}


def plain(make: Callable[[], tuple[Any, Any]]) -> tuple[list[Any], list[float], list[Any]]:
    """The gradient of the first step, in the order of the model; the loss of every step; and the weights in the end."""
    model, batch = started(make)
    before, after = [np.array(one) for one in model.trainable_variables], list[Any]()
    first = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda *_: after.append([np.array(one) for one in model.trainable_variables])
    )
    inputs, targets, *weights = batch
    inputs, targets = (list(one) if isinstance(one, tuple) else one for one in (inputs, targets))
    options = {"sample_weight": weights[0]} if weights else {}
    history = model.fit(inputs, targets, batch_size=ROWS, epochs=STEPS, shuffle=False, verbose=0, callbacks=[first], **options)
    gradient = [(start - end) / LR for start, end in zip(before, after[0], strict=True)]
    return gradient, history.history["loss"], model.get_weights()


def main() -> None:
    found: dict[str, Any] = {}
    for kind in ("float32", "float64"):
        keras.config.set_floatx(kind)
        keras.config.set_dtype_policy(kind)
        for make in MODELS:
            place = f"{kind}/{make.__name__}"
            if place not in sys.argv[2:]:
                continue
            gradient, divided, curve, weights = ours(make)
            found |= {f"{place}/gradient/{name.replace('/', '.')}": one for name, one in gradient.items()}
            found |= {f"{place}/divided/{name.replace('/', '.')}": one for name, one in divided.items()}
            found[f"{place}/curve"] = np.array(curve)
            first_step, expected, there = plain(make)
            found |= {f"{place}/plain_gradient/{number}": one for number, one in enumerate(first_step)}
            found[f"{place}/plain"] = np.array(expected)
            found |= {f"{place}/weights/{number}": one for number, one in enumerate(weights)}
            found |= {f"{place}/plain_weights/{number}": one for number, one in enumerate(there)}
    np.savez(sys.argv[1], **found)


if __name__ == "__main__":
    main()
