"""horovod.tensorflow: states that survive, and the optimiser of Keras that comes with them."""
# mypy: disable-error-code="no-untyped-call,no-untyped-def,misc,untyped-decorator,no-any-return"
# TensorFlow has no types.

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import unisono.horovod.tensorflow as hvd

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.ranks.programs.horovod_checks import checks_of, raises, run


def check_state_of_variables() -> None:
    rank = hvd.rank()
    variable = tf.Variable([float(rank)])
    state = hvd.elastic.TensorFlowState([variable], epoch=rank, seen=[])
    state.sync()
    assert (variable.numpy().tolist(), state.epoch) == ([0.0], 0)
    variable.assign([5.0])
    state.epoch = 3
    state.commit()
    variable.assign([6.0])
    state.seen.append(1)
    state.restore()
    assert (variable.numpy().tolist(), state.epoch, state.seen) == ([5.0], 3, [])


def check_a_sync_that_ends_half_way_leaves_what_was_kept_whole() -> None:
    def lost(*_: Any, **__: Any) -> None:
        raise hvd.HorovodInternalError("somebody was lost")

    variable = tf.Variable([1.0])
    state = hvd.elastic.TensorFlowState([variable], batch=1)
    state.sync()
    variable.assign([2.0])
    state.batch, state._bcast_object = 2, lost
    with raises(hvd.HorovodInternalError, "somebody was lost"):
        state.sync()
    state.restore()
    assert (variable.numpy().tolist(), state.batch) == ([1.0], 1)


def check_state_of_a_model_and_a_failure_in_a_graph() -> None:
    rank, size = hvd.rank(), hvd.size()
    keras.utils.set_random_seed(rank)
    model = keras.Sequential([keras.layers.Dense(2)])
    model.build((None, 3))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.1))
    with raises(ValueError, "leave it out"):
        hvd.elastic.TensorFlowKerasState(model, optimizer, backend=keras.backend)
    state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0)
    assert optimizer._transport.is_elastic  # also of a rank that is alone it goes the whole way: others may come
    runs: list[int] = []

    @tf.function
    def disagree(tensor: Any) -> Any:
        return hvd.allreduce(tensor, name="shapes")

    @hvd.elastic.run
    def train(state: Any) -> float:
        runs.append(state.batch)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(tf.fill([2, 3], float(rank + 1)))))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        if len(runs) == 1 and size > 1:
            before.extend(model.get_weights())
            state.batch = 7
            disagree(tf.ones(1 + hvd.rank()))  # what was done since the last commit is undone
        return float(hvd.allreduce(tf.constant(1.0), op=hvd.Sum))

    before: list[Any] = []
    assert train(state) == size
    assert runs == [0, 0][:size]
    found = hvd.allgather_object([one.tolist() for one in model.get_weights()])
    assert all(one == found[0] for one in found)
    assert all(np.allclose(one, other) for one, other in zip(before, model.get_weights(), strict=False))
    assert int(optimizer.iterations) == 1


def learn() -> None:
    """By `fit`, which compiles."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)), lambda _, outputs: tf.reduce_mean(outputs))
    model.fit(np.ones((1, 1)), np.ones((1, 1)), verbose=0)


def check_graphs_of_an_earlier_attempt_match_those_of_a_new_worker() -> None:
    """Rank 0 keeps its graph and its optimiser; to the others everything is new."""
    learn()  # its optimiser is gone, though TensorFlow keeps the graph
    variable = tf.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))

    @tf.function
    def step(gradient: Any) -> None:
        optimizer.apply([gradient], [variable])

    step(tf.constant([1.0]))
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    if hvd.rank():
        variable = tf.Variable([0.0])
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
        step = tf.function(step.python_function)
    before = float(variable[0])
    step(tf.constant([10.0 * (hvd.rank() + 1)]))
    assert float(variable[0]) == before - 10.0 * (hvd.size() + 1) / 2


if __name__ == "__main__":
    run(checks_of(globals()))
