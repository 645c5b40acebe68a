"""horovod.tensorflow: tapes, optimisers and layers. What ranks learn together is what one would learn from all their data."""
# mypy: disable-error-code="no-untyped-call,no-untyped-def,misc,untyped-decorator,no-any-return"
# TensorFlow has no types.

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import unisono.horovod.tensorflow as hvd

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.ranks.programs.horovod_checks import checks_of, raises, run

tf.config.threading.set_inter_op_parallelism_threads(2)
tf.config.threading.set_intra_op_parallelism_threads(1)

FEATURES, ROWS, STEPS = 5, 4, 4

Function = Callable[..., Any]


def data(step: int) -> tuple[Any, Any]:
    """Of all ranks together; a rank has the rows of its own number."""
    numbers = np.random.default_rng(step)
    x = numbers.normal(size=(hvd.size() * ROWS, FEATURES)).astype(np.float32)
    return tf.constant(x), tf.constant(x.sum(1, keepdims=True))


def ours(tensor: Any) -> Any:
    return tensor[hvd.rank() * ROWS : (hvd.rank() + 1) * ROWS]


def net(seed: int, *more: Any) -> Any:
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.layers.Dense(4, activation="tanh"), *more, keras.layers.Dense(1)])
    model.build((None, FEATURES))
    return model


def loss_of(model: Any, x: Any, y: Any, **options: Any) -> Any:
    return tf.reduce_mean(tf.square(model(x, **options) - y))


def weights(model: Any) -> list[Any]:
    return [np.asarray(one) for one in model.trainable_variables]


def same(found: Sequence[Any], wanted: Sequence[Any]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert np.allclose(one, other, rtol=1e-4, atol=1e-5), (one, other)


def check_random_generators_stay_with_their_ranks() -> None:
    model = net(hvd.rank(), keras.layers.Dropout(0.5, seed=hvd.rank()))
    (seed,) = (one for one in model.variables if one.name == "seed_generator_state")
    before = np.asarray(seed)
    hvd.broadcast_variables(model.variables, root_rank=0)
    assert (np.asarray(seed) == before).all()
    everybodys = hvd.allgather_object(weights(model))
    same(everybodys[0], everybodys[-1])


def check_xla_is_refused_with_our_message() -> None:
    """At once, while the function is traced, so that nobody waits."""

    @tf.function(jit_compile=True)
    def compiled(x: Any) -> Any:
        return hvd.allreduce(x)

    @tf.function
    def around(x: Any) -> Any:
        return compiled(x)

    optimizer, variable = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)), tf.Variable([0.0, 0.0])
    optimizer.build([variable])
    updated = tf.function(lambda gradient: optimizer.apply([gradient], [variable]), jit_compile=True)
    for step in (compiled, around, *([updated] if hvd.size() > 1 else ())):
        with raises(Exception, "jit_compile=False"):  # AutoGraph makes one of its own of ours
            step(tf.ones(2))


def learned_alone(seed: int) -> list[Any]:
    model, optimizer = net(seed), keras.optimizers.SGD(0.1, momentum=0.9)
    for step in range(STEPS):
        with tf.GradientTape() as tape:
            loss = loss_of(model, *data(step))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
    return weights(model)


def learned_on_all_ranks(seed: int, graph: bool, **options: Any) -> list[Any]:
    model, optimizer = net(seed + hvd.rank()), keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(model.trainable_variables)

    def learn(x: Any, y: Any, first: bool) -> None:
        if first:
            hvd.broadcast_variables(model.variables, root_rank=0)
            hvd.broadcast_variables(optimizer.variables, root_rank=0)
        with tf.GradientTape() as tape:
            loss = loss_of(model, x, y)
        tape = hvd.DistributedGradientTape(tape, **options)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    once = tf.function(learn) if graph else learn
    for step in range(STEPS):
        x, y = data(step)
        once(ours(x), ours(y), step == 0)
    return weights(model)


def check_tapes_equal_one_process() -> None:
    wanted = learned_alone(1)
    for graph in (False, True):
        same(learned_on_all_ranks(1, graph), wanted)
    same(learned_on_all_ranks(1, True, groups=2), wanted)
    same(learned_on_all_ranks(1, False, gradient_predivide_factor=2.0, groups=1), wanted)
    found = learned_on_all_ranks(1, False, compression=hvd.Compression.fp16)
    assert all(np.allclose(one, other, atol=5e-2) for one, other in zip(found, wanted, strict=True))


def check_tape_options() -> None:
    rank, size = hvd.rank(), hvd.size()
    a, b, unused = tf.Variable([1.0]), tf.Variable([1.0]), tf.Variable([1.0])
    with hvd.DistributedGradientTape(tf.GradientTape(persistent=True), groups=[[b]], op=hvd.Sum) as tape:
        loss = (rank + 1.0) * tf.reduce_sum(a + 2.0 * b)
    assert isinstance(tape, tf.GradientTape)
    of_a, of_b, of_unused = tape.gradient(loss, [a, b, unused])
    total = size * (size + 1) / 2
    same([of_a, of_b], [[total], [2 * total]])
    assert of_unused is None
    same([tape.gradient(loss, {"a": a})["a"]], [[total]])
    tape.register_local_source(b)
    local, everybodys = tape.get_local_and_global_gradients(loss, [a, b])
    assert [pair[0] is b for pair in local] == [True]
    assert [pair[0] is a for pair in everybodys] == [True]
    same([local[0][1]], [[2.0 * (rank + 1) / size]])
    layer = keras.layers.Dense(1)
    model = keras.Sequential([layer])
    model.build((None, 2))
    hvd.broadcast_variables(model.variables, 0)
    with tf.GradientTape() as plain:
        loss = tf.reduce_sum(model(tf.fill([1, 2], rank + 1.0)))
    partial = hvd.PartialDistributedGradientTape(plain, local_layers=layer, scale_local_gradients=False)
    same(partial.gradient(loss, model.trainable_variables), [np.full((2, 1), rank + 1.0), [1.0]])
    with raises(ValueError, "layers of Keras"):
        hvd.PartialDistributedGradientTape(plain, local_layers=[3])
    with raises(ValueError, "hvd.Average"):
        hvd.DistributedGradientTape(plain, op=hvd.Sum, gradient_predivide_factor=2.0)
    for wrong in (-1, 0, True, ["x"]):
        with raises(ValueError, "groups must be a number of groups, 1 or more"):
            hvd.DistributedGradientTape(plain, groups=wrong)


def check_sparse_gradients() -> None:
    size, rank = hvd.size(), hvd.rank()
    table = tf.Variable(tf.ones([size + 1, 2]))

    def slope(dense: bool) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [rank, size]))
        return hvd.DistributedGradientTape(tape, sparse_as_dense=dense).gradient(loss, [table])[0]

    wanted = np.ones((size + 1, 2)) / size
    wanted[size] = 1.0
    for dense in (False, True):
        for one in (slope, tf.function(slope)):
            found = one(dense)
            assert isinstance(found, tf.IndexedSlices) != dense
            same([tf.convert_to_tensor(found)], [wanted])


def check_optimizers_of_tensorflow_1() -> None:
    for op, wanted in ((hvd.Average, [-0.1 * (hvd.size() + 1) / 2]), (hvd.Sum, [-0.1 * hvd.size() * (hvd.size() + 1) / 2])):
        variable = tf.Variable([0.0])
        optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1), op=op)
        pairs = optimizer.compute_gradients(lambda: tf.reduce_sum(variable) * (hvd.rank() + 1.0), [variable])  # noqa: B023
        optimizer.apply_gradients(pairs)
        same([variable], [wanted])
    variable = tf.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1), op=hvd.Adasum)
    optimizer.apply_gradients(optimizer.compute_gradients(lambda: tf.reduce_sum(variable), [variable]))
    same([variable], [[-0.1]])
    with raises(ValueError, "needs a graph"):
        hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1), backward_passes_per_step=2)


def check_batch_normalisation_equals_one_process() -> None:
    x, y = data(0)
    alone, together = net(3, keras.layers.BatchNormalization()), net(3, hvd.SyncBatchNormalization())
    with tf.GradientTape() as tape:
        loss = loss_of(alone, x, y, training=True)
    wanted = tape.gradient(loss, alone.trainable_variables)

    def slope(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(together, x, y, training=True)
        return hvd.DistributedGradientTape(tape).gradient(loss, together.trainable_variables)

    same(slope(ours(x), ours(y)), wanted)
    same([one.value for one in together.non_trainable_variables], [one.value for one in alone.non_trainable_variables])
    same(tf.function(slope)(ours(x), ours(y)), wanted)
    norm, plain = hvd.SyncBatchNormalization(), keras.layers.BatchNormalization()
    last = hvd.rank() == hvd.size() - 1
    found = norm(x if last else x[:0], training=True)  # the others have no samples
    same([found], [plain(x, training=True) if last else tf.zeros([0, *x.shape[1:]])])
    same([one.value for one in norm.variables], [hvd.broadcast(one.value, hvd.size() - 1) for one in norm.variables])
    with raises(ValueError, "fused"):
        hvd.SyncBatchNormalization(fused=True)


if __name__ == "__main__":
    run(checks_of(globals()))
