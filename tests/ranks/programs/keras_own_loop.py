"""A loop of one's own on TensorFlow or JAX against one worker with all samples: python keras_own_loop.py OUT. Writes OUT.RANK."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

import unisono as un

BACKEND = keras.config.backend()
BATCH = 6
PARTS = (slice(4), slice(4, None))


def make_step(model: Any, optimizer: Any) -> Callable[[Any, Any], Any]:
    """A training step as its users write it on this backend."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        def on_tensorflow(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((model(x) - y) ** 2) / BATCH
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
            return loss

        return on_tensorflow
    import jax

    def loss_of(values: Any, x: Any, y: Any) -> Any:
        outputs, _ = model.stateless_call(values, [], x)
        return ((outputs - y) ** 2).sum() / BATCH

    compute = jax.jit(jax.value_and_grad(loss_of))

    def on_jax(x: Any, y: Any) -> Any:
        loss, gradients = compute([one.value for one in model.trainable_variables], x, y)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    return on_jax


def learned(strategy: Any, parts: Any, graph: str) -> list[Any]:
    """The weights after a loop; `graph` says what TensorFlow makes a graph of: the step, or the step on all workers."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam(0.1, global_clipnorm=0.5)
    draw = np.random.default_rng(7)
    model.set_weights([draw.normal(size=one.shape) for one in model.get_weights()])
    x, y = draw.normal(size=(24, 4)).astype(np.float32), draw.normal(size=(24, 1)).astype(np.float32)
    step = make_step(model, optimizer)
    if graph:
        import tensorflow as tf

        step = tf.function(step) if graph == "step" else step

    def on_all(*batch: Any) -> Any:
        return strategy.run(step, args=batch)

    if graph == "run":
        on_all = tf.function(on_all)
    for start in range(0, 24, BATCH):
        rows = slice(start, start + BATCH)
        own = parts[strategy.comm.rank]
        on_all(x[rows][own], y[rows][own])
    return [one.tolist() for one in model.get_weights()]


def counted(strategy: Any) -> list[float]:
    """The results of a metric that a step updates, in two epochs, of an accuracy of 0.75 and one of 0.25."""
    with strategy.scope():
        hits, total = keras.metrics.MeanMetricWrapper(lambda _, hit: hit, name="hits"), keras.metrics.Sum()
    found = []
    for hit in ([0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0]):
        mine = np.array(hit, np.float32)[[0] if strategy.comm.rank == 0 else [1, 2, 3]]

        def step(mine: Any = mine) -> None:
            hits.update_state(mine, mine)
            total.update_state(mine)

        strategy.run(step)
        found += [float(hits.result()), float(total.result())]
        hits.reset_state()
        total.reset_state()
    return found


def divided(strategy: Any) -> Any:
    """What TensorFlow's means over all workers are in a step: of four losses of 1, and of a penalty of 1."""
    import tensorflow as tf

    mine = tf.ones(2)
    return strategy.reduce("SUM", strategy.run(lambda: (tf.nn.compute_average_loss(mine), tf.nn.scale_regularization_loss(1.0))))


def refused(do: Callable[[], Any]) -> str:
    try:
        do()
    except un.UsageError as error:
        return str(error)
    return ""


def mean_loss(strategy: Any) -> str:
    """What is said of a loss that is a mean over the samples of this worker."""
    return refused(lambda: strategy.run(lambda: keras.losses.MeanSquaredError()(np.zeros((2, 1)), np.ones((2, 1)))))


def reduced_in_a_graph(strategy: Any) -> str:
    """What is said of `reduce` inside tf.function."""
    import tensorflow as tf

    return refused(lambda: tf.function(lambda: strategy.reduce("SUM", tf.ones(1)))())


def jitted(strategy: Any) -> str:
    """What is said of an update inside `jax.jit`."""
    import jax

    with strategy.scope():
        weight = keras.Variable([1.0])
        optimizer = keras.optimizers.SGD(0.1)
    optimizer.build([weight])

    @jax.jit
    def step(values: Any, memory: Any) -> Any:
        return optimizer.stateless_apply(memory, values, values)

    return refused(lambda: strategy.run(step, ([weight.value], [one.value for one in optimizer.variables])))


def main() -> None:
    strategy = un.keras.Strategy(seed=0)
    alone = un.keras.Strategy(seed=0, comm=strategy.comm.split(strategy.comm.rank))
    ways = ("", "step", "run") if BACKEND == "tensorflow" else ("",)
    found = {
        "shared": [learned(strategy, PARTS, graph) for graph in ways],
        "alone": learned(alone, [slice(None)], ""),
        "counted": counted(strategy),
        "divided": [float(one) for one in divided(strategy)] if BACKEND == "tensorflow" else [1.0, 1.0],
        "mean loss": mean_loss(strategy),
        "in a graph": reduced_in_a_graph(strategy) if BACKEND == "tensorflow" else None,
        "jitted": jitted(strategy) if BACKEND == "jax" else None,
    }
    Path(f"{sys.argv[1]}.{strategy.comm.rank}").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
