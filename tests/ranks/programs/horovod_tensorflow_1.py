"""horovod.tensorflow in a program of TensorFlow 1: graph, session and hook."""
# mypy: disable-error-code="no-untyped-call,no-untyped-def,misc"

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

import unisono.horovod.tensorflow as hvd

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.ranks.programs.horovod_checks import checks_of, run

tf.disable_v2_behavior()

STEPS, RATE = 6, 0.1


def settings() -> Any:
    return tf.ConfigProto(inter_op_parallelism_threads=2, intra_op_parallelism_threads=1)


def check_monitored_session() -> None:
    """A linear model with the gradient of all ranks, against the same arithmetic by hand."""
    size, rank = hvd.size(), hvd.rank()
    x = np.random.default_rng(5).normal(size=(size, 4, 3)).astype(np.float32)
    y = x.sum(2)
    with tf.Graph().as_default():
        inputs, wanted = tf.placeholder(tf.float32, [None, 3]), tf.placeholder(tf.float32, [None])
        weight = tf.get_variable("weight", initializer=tf.fill([3], float(rank + 1)))
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(inputs * weight, axis=1) - wanted))
        optimizer = hvd.DistributedOptimizer(tf.train.GradientDescentOptimizer(RATE))
        step = tf.train.get_or_create_global_step()
        train = optimizer.minimize(loss, global_step=step)
        hooks = [hvd.BroadcastGlobalVariablesHook(0), tf.train.StopAtStepHook(last_step=STEPS)]
        with tf.train.MonitoredTrainingSession(hooks=hooks, config=settings()) as session:
            while not session.should_stop():
                found, _ = session.run([weight, train], {inputs: x[rank], wanted: y[rank]})
    by_hand = np.ones(3)
    for _ in range(STEPS - 1):
        by_hand = by_hand - RATE * np.mean([2 * one.T @ (one @ by_hand - of) / 4 for one, of in zip(x, y, strict=True)], axis=0)
    assert np.allclose(found, by_hand, atol=1e-4), (found, by_hand)


def check_operations_in_a_session() -> None:
    size, rank = hvd.size(), hvd.rank()
    with tf.Graph().as_default():
        value = tf.placeholder(tf.float32, [2])
        total = hvd.allreduce(value, op=hvd.Sum)
        slope = tf.gradients(total, value)[0]
        rows = hvd.allgather(value)
        variable = tf.get_variable("v", initializer=float(rank))
        with tf.Session(config=settings()) as session:
            session.run(tf.global_variables_initializer())
            session.run(hvd.broadcast_global_variables(size - 1))
            for _ in range(2):
                found = session.run([total, slope, rows, variable, hvd.size_op()], {value: [rank, 1.0]})
            assert np.allclose(found[0], [sum(range(size)), size])
            assert np.allclose(found[1], [size, size])
            assert np.allclose(found[2], [one for other in range(size) for one in (other, 1.0)])
            assert found[3] == size - 1
            assert found[4] == size


def check_several_passes_in_one_step() -> None:
    size, rank = hvd.size(), hvd.rank()
    for mean in (False, True):
        with tf.Graph().as_default():
            value = tf.placeholder(tf.float32, [])
            weight = tf.get_variable("weight", initializer=0.0)
            optimizer = hvd.DistributedOptimizer(
                tf.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2, average_aggregated_gradients=mean
            )
            train = optimizer.minimize(weight * value)
            seen = []
            with tf.Session(config=settings()) as session:
                session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
                for number in range(4):
                    session.run(train, {value: float(rank + number)})
                    seen.append(float(session.run(weight)))
        others = (size - 1) / 2
        first, second = (2 * others + 1) / (2 if mean else 1), (2 * others + 5) / (2 if mean else 1)
        assert np.allclose(seen, [0.0, -first, -first, -first - second]), (seen, first, second)


if __name__ == "__main__":
    run(checks_of(globals()))
