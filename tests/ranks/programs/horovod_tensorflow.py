"""horovod.tensorflow: every operation, eagerly and in graphs, with gradients and errors."""
# mypy: disable-error-code="no-untyped-call,no-untyped-def,misc,untyped-decorator,no-any-return"
# TensorFlow has no types.

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

import unisono.horovod.tensorflow as hvd
from unisono.errors import UsageError

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.ranks.programs.horovod_checks import checks_of, raises, run

tf.config.threading.set_inter_op_parallelism_threads(2)
tf.config.threading.set_intra_op_parallelism_threads(1)

FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
WHOLE = (tf.uint8, tf.int8, tf.int16, tf.int32, tf.int64)
MOVED = (*FLOATS, *WHOLE, tf.bool, tf.uint16, tf.uint32, tf.uint64)

Function = Callable[..., Any]


def both(function: Function) -> tuple[Function, Function]:
    """Eagerly, and as a graph."""
    return function, tf.function(function)


def of(rank: int, dtype: tf.DType, *shape: int) -> Any:
    """Small numbers, different on each rank, whose sums and products fit every type."""
    count = int(np.prod(shape))
    return tf.cast(tf.reshape((tf.range(count) + rank) % 3 + 1, shape), dtype)


def mine(dtype: tf.DType, *shape: int) -> Any:
    return of(hvd.rank(), dtype, *shape)


def wide(dtype: tf.DType, *shape: int) -> Any:
    return np.stack([tf.cast(of(rank, dtype, *shape), tf.float64).numpy() for rank in range(hvd.size())])


def close(found: Any, wanted: Any, tolerance: float = 1e-6) -> None:
    found = np.asarray(tf.cast(found, tf.float64))
    assert np.allclose(found, np.asarray(wanted, np.float64), rtol=tolerance, atol=tolerance), (found, wanted)


def check_a_function_whose_first_trace_has_no_operation() -> None:
    """The first check of all: what the first operation of a process makes for itself must be allowed in a second trace too."""
    traced: list[bool] = []

    @tf.function
    def step(x: Any, training: bool) -> Any:
        traced.append(training)
        return hvd.allreduce(x, op=hvd.Sum, name="loss") if training else x

    close(step(tf.ones(1), False), [1])
    close(step(tf.ones(1), True), [hvd.size()])
    assert traced == [False, True]


def check_allreduce_of_every_type() -> None:
    for dtype in (*FLOATS, *WHOLE):
        graph_too = dtype in (tf.bfloat16, tf.float32, tf.uint8)  # tracing takes its time
        everybodys = wide(dtype, 3, 5)
        wanted = (everybodys.sum(0), everybodys.min(0), everybodys.max(0), everybodys.prod(0))

        def on_all_ranks(tensor: Any) -> list[Any]:
            return [hvd.allreduce(tensor, op=op) for op in (hvd.Sum, hvd.Min, hvd.Max, hvd.Product)]

        for one in both(on_all_ranks)[: 1 + graph_too]:
            for found, value in zip(one(mine(dtype, 3, 5)), wanted, strict=True):
                assert found.dtype == dtype
                assert found.shape == (3, 5)
                close(found, value, 1e-2 if dtype.size == 2 and dtype.is_floating else 1e-6)
    for one in both(hvd.allreduce):
        close(one(mine(tf.float32, 4)), wide(tf.float32, 4).mean(0))
        close(one(mine(tf.int32, 4)), np.trunc(wide(tf.int32, 4).mean(0)))
        close(one(mine(tf.float32)), wide(tf.float32).mean(0))
        close(one(mine(tf.bfloat16)), wide(tf.bfloat16).mean(0), 1e-2)
        assert one(tf.zeros([0, 3])).shape == (0, 3)


def check_arguments_of_allreduce() -> None:
    total = wide(tf.float32, 4).sum(0)
    found = hvd.allreduce(mine(tf.float32, 4), op=hvd.Sum, prescale_factor=2.0, postscale_factor=3.0)
    close(found, 6 * total)
    found = hvd.allreduce(mine(tf.float32, 4), op=hvd.Sum, compression=hvd.Compression.fp16)
    assert found.dtype == tf.float32
    close(found, total)
    close(hvd.allreduce(tf.Variable(mine(tf.float32, 4)), op=hvd.Sum, name="variable"), total)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        close(hvd.allreduce(mine(tf.float32, 4), average=False), total)
    assert any(issubclass(one.category, DeprecationWarning) for one in seen)
    with raises(ValueError, "both given"):
        hvd.allreduce(mine(tf.float32, 4), average=True, op=hvd.Sum)
    close(hvd.allreduce(tf.ones(3), op=hvd.Adasum), np.ones(3))
    with raises(ValueError, "string"):
        hvd.allreduce(tf.constant("words"))


def check_groups() -> None:
    size = hvd.size()

    def on_all_ranks(a: Any, b: Any) -> Any:
        sums = hvd.grouped_allreduce([a, tf.cast(b, tf.float64)], op=hvd.Sum)
        rows = hvd.grouped_allgather([a, b])
        parts = hvd.grouped_reducescatter([tf.repeat(a, size), tf.repeat(b, size)], op=hvd.Sum)
        return sums, rows, parts

    for one in both(on_all_ranks):
        sums, rows, parts = one(mine(tf.float32, 2), mine(tf.int32, 3))
        close(sums[0], wide(tf.float32, 2).sum(0))
        assert sums[1].dtype == tf.float64
        close(sums[1], wide(tf.int32, 3).sum(0))
        close(rows[0], wide(tf.float32, 2).reshape(-1))
        close(rows[1], wide(tf.int32, 3).reshape(-1))
        assert rows[1].dtype == tf.int32
        close(parts[0], np.repeat(wide(tf.float32, 2).sum(0), size)[hvd.rank() * 2 : hvd.rank() * 2 + 2])
        assert parts[1].shape == (3,)
    assert hvd.grouped_allreduce([]) == []


def check_moves_of_every_type() -> None:
    size, rank = hvd.size(), hvd.rank()
    for dtype in MOVED:

        def on_all_ranks(tensor: Any) -> Any:
            rows = hvd.allgather(tensor[: rank + 1])
            root = hvd.broadcast(tensor, size - 1)
            swapped, counts = hvd.alltoall(tensor[:size], splits=tf.ones([size], tf.int32))
            return rows, root, swapped, counts

        for one in both(on_all_ranks)[: 2 if dtype in (tf.bfloat16, tf.bool, tf.uint16, tf.float64) else 1]:
            rows, root, swapped, counts = one(mine(dtype, 4, 2))
            assert {found.dtype for found in (rows, root, swapped)} == {dtype}
            gathered = [tf.cast(of(other, dtype, 4, 2)[: other + 1], tf.float64).numpy() for other in range(size)]
            close(rows, np.concatenate(gathered))
            close(root, tf.cast(of(size - 1, dtype, 4, 2), tf.float64))
            close(swapped, np.stack([tf.cast(of(other, dtype, 4, 2), tf.float64)[rank].numpy() for other in range(size)]))
            assert counts.dtype == tf.int32
            close(counts, np.ones(size))
    assert hvd.alltoall(tf.ones([size, 2])).shape == (size, 2)


def check_uneven_rows() -> None:
    size, rank = hvd.size(), hvd.rank()
    rows, counts = hvd.alltoall(tf.fill([size * (rank + 1)], float(rank)), splits=[rank + 1] * size)
    close(counts, np.arange(1, size + 1))
    close(rows, np.repeat(np.arange(size), np.arange(1, size + 1)))
    part = hvd.reducescatter(tf.range(2.0 * size + 1), op=hvd.Sum)
    assert part.shape == (3 if rank == 0 else 2,)
    assert part.numpy()[0] == size * (0 if rank == 0 else 2 * rank + 1)


def check_shapes_in_graphs() -> None:
    seen: list[Any] = []

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32)])
    def traced(tensor: Any) -> Any:
        found = hvd.allreduce(tensor), hvd.allgather(tensor), hvd.broadcast(tensor, 0), hvd.reducescatter(tensor)
        seen.extend(one.shape.as_list() for one in found)
        return found

    traced(tf.ones([2, 3]))
    traced(tf.ones([4, 3]))
    assert seen == [[None, 3]] * 4, seen


def check_gradients() -> None:
    size, rank = hvd.size(), hvd.rank()
    total = sum(range(1, size + 1))

    def slope(function: Function, tensor: Any, weight: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(tensor)
            loss = tf.reduce_sum(function(tensor) * weight)
        return tape.gradient(loss, tensor)

    for how in both(slope):
        weight = tf.fill([2, 2], float(rank + 1))
        close(how(lambda x: hvd.allreduce(x, op=hvd.Sum), tf.ones([2, 2]), weight), np.full([2, 2], total))
        close(how(hvd.allreduce, tf.ones([2, 2]), weight), np.full([2, 2], total / size))
        close(how(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5), tf.ones([2, 2]), weight), np.full([2, 2], total / 2))
        wanted = total / size if rank == 0 else 0.0
        close(how(lambda x: hvd.broadcast(x, 0), tf.ones([2, 2]), weight), np.full([2, 2], wanted))
        rows = sum(range(1, size + 1))
        weights = tf.reshape(tf.range(2.0 * rows), [rows, 2])
        begin = sum(range(1, rank + 1))
        close(how(hvd.allgather, tf.ones([rank + 1, 2]), weights), weights[begin : begin + rank + 1])
        close(how(lambda x: hvd.alltoall(x, [rank + 1] * size)[0], tf.ones([size * (rank + 1), 2]), float(rank)), [
            [float(other)] * 2 for other in range(size) for _ in range(rank + 1)
        ])  # fmt: skip
        back = how(lambda x: hvd.reducescatter(x, op=hvd.Sum), tf.ones([size, 2]), weight[:1])
        close(back, [[size * (other + 1.0)] * 2 for other in range(size)])
        two = how(lambda x: tf.add_n(hvd.grouped_allreduce([x, 2 * x], op=hvd.Sum)), tf.ones([2, 2]), weight)
        close(two, np.full([2, 2], 3 * total))


def check_slices() -> None:
    size, rank = hvd.size(), hvd.rank()

    def reduced(values: Any, indices: Any) -> Any:
        slices = tf.IndexedSlices(values, indices, dense_shape=tf.constant([size + 1, 2]))
        return hvd.allreduce(slices), hvd.grouped_allreduce([slices, values], op=hvd.Sum)

    for one in both(reduced):
        mean, (total, dense) = one(tf.fill([2, 2], rank + 1.0), tf.constant([rank, size]))
        assert isinstance(mean, tf.IndexedSlices)
        wanted = [[(other + 1.0)] * 2 for other in range(size)] + [[size * (size + 1) / 2] * 2]
        close(tf.convert_to_tensor(total), wanted)
        close(tf.convert_to_tensor(mean), np.array(wanted) / size)
        close(dense, np.full([2, 2], size * (size + 1) / 2))
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]))
    for wrong in ({"op": hvd.Adasum}, {"op": hvd.Max}, {"prescale_factor": 2.0}):
        with raises(NotImplementedError, "dense"):
            hvd.allreduce(slices, **wrong)


def check_any_order_in_graphs() -> None:
    """Far more operations than threads, in another order on every rank, and some that need results of others."""
    order = [(number * 7 + hvd.rank() * 5) % 24 for number in range(24)]

    @tf.function
    def traced(tensor: Any) -> Any:
        found = {}
        for number in order:
            once = hvd.allreduce(tensor + float(number), op=hvd.Sum, name=f"first{number}")
            found[number] = hvd.allreduce(once, op=hvd.Max, name=f"second{number}")
        return [found[number] for number in range(24)]

    for _ in range(3):
        for number, found in enumerate(traced(tf.ones(2))):
            close(found, np.full(2, hvd.size() * (1.0 + number)))


def check_names_in_graphs() -> None:
    """The same function twice, branches, loops, and results that nobody uses."""

    @tf.function
    def traced(tensor: Any, double: Any) -> Any:
        hvd.allreduce(tensor, op=hvd.Sum)
        total = hvd.allreduce(tensor, op=hvd.Sum)
        total = hvd.allreduce(total, op=hvd.Max) * 2.0 if double else hvd.allreduce(total, op=hvd.Min)
        for _ in tf.range(3):
            total = hvd.allreduce(total)
        return total + hvd.allreduce(tf.constant(1.0))

    for _ in range(2):
        close(traced(tf.ones(2), tf.constant(True)), np.full(2, 2 * hvd.size() + 1))
        close(traced(tf.ones(2), tf.constant(False)), np.full(2, hvd.size() + 1))


def late(tensor: Any, is_late: bool) -> Any:
    """The same, after a while: so that ranks come to what follows in different orders, if nothing keeps them from it."""

    def taken(held: Any) -> Any:
        if is_late:
            threading.Event().wait(0.3)
        return held

    found = tf.numpy_function(taken, [tensor], tensor.dtype, stateful=False)
    found.set_shape(tensor.shape)
    return found


def check_functions_inside_functions() -> None:
    """Names of those that were traced before may come again in what calls them, and nothing gets what is not its own."""
    size, rank = hvd.size(), hvd.rank()

    def reduced(x: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum, name="loss")

    one, other = tf.function(reduced), tf.function(reduced)
    for function in (one, other):
        close(function(tf.ones(1)), [size])

    @tf.function
    def around(a: Any, b: Any, further: bool) -> Any:
        found = [one(late(a, rank == 1)), other(late(b, rank == 0))]
        return [*found, reduced(a + b), one(a)] if further else found

    for further in (False, True):
        for found, wanted in zip(around(tf.ones(1), 100 * tf.ones(1), further), (1, 100, 101, 1), strict=False):
            close(found, [size * wanted])
    one, other, x = tf.function(reduced), tf.function(reduced), tf.ones(1)
    both_of_them = tf.function(lambda x: one(x) + 10 * other(x))
    with tf.GradientTape() as tape:  # outside, so that the gradients of both are in a graph whose calls have no order
        tape.watch(x)
        loss = tf.reduce_sum(both_of_them(x))
    close(tape.gradient(loss, x), [11 * size])


def check_functions_that_are_first_traced_inside_another() -> None:
    """The graph around them has operations of its own already."""
    size, rank = hvd.size(), hvd.rank()

    def reduced(x: Any) -> Any:
        return hvd.allreduce(tf.reduce_sum(x, keepdims=True), op=hvd.Sum, name="loss")

    one, other, third = (tf.function(reduced) for _ in range(3))

    @tf.function
    def around(a: Any, b: Any) -> Any:
        return hvd.allreduce(a, op=hvd.Sum, name="first"), one(late(a, rank == 1)), other(late(b, rank == 0))

    for found, wanted in zip(around(tf.ones(1), 100 * tf.ones(1)), (1, 1, 100), strict=True):
        close(found, [size * wanted])

    @tf.function
    def last(x: Any, batch: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum, name="loss"), third(batch)

    close(third(tf.ones([2])), [2 * size])
    for shorter in (0, 1):  # the second time rank 0 alone traces again, also what is inside
        found = last(tf.ones(1), tf.ones([2 - shorter * (rank == 0)]))
        close(found[0], [size])
        close(found[1], [2 * size - shorter])

    @tf.function
    def branches(x: Any, first: Any) -> Any:
        chosen = tf.cond(first, lambda: one(x), lambda: one(2 * x))
        return chosen + tf.cond(
            first,
            lambda: hvd.allreduce(x, op=hvd.Sum, name="branch"),
            lambda: hvd.allreduce(3 * x, op=hvd.Sum, name="branch"),
        )

    close(branches(tf.ones(1), tf.constant(True)), [2 * size])
    close(branches(tf.ones(1), tf.constant(False)), [5 * size])


def check_a_function_that_one_rank_traces_again() -> None:
    """Its names stay what they are on the others, which go on with what they have: of a last batch that is smaller, say."""
    size, rank = hvd.size(), hvd.rank()
    total = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum, name="both"))
    rows = tf.function(lambda x: hvd.allgather(x, name="both"))
    traced: list[int] = []

    @tf.function
    def around(x: Any, batch: Any) -> Any:
        traced.append(1)
        return total(x), rows(batch)

    for shorter in (0, 1):
        found, everybodys = around(tf.ones(1), tf.ones([2 - shorter * (rank == 0)]))
        close(found, [size])
        assert everybodys.shape == (2 * size - shorter,)
    assert len(traced) == 1 + (rank == 0)


def check_rank_queries_in_graphs() -> None:
    def queried() -> Any:
        ops = (hvd.rank_op, hvd.size_op, hvd.local_rank_op, hvd.local_size_op, hvd.process_set_included_op)
        return [op() for op in ops] + [hvd.process_set_included_op(77)]

    for one in both(queried):
        assert [int(found) for found in one()] == [hvd.rank(), hvd.size(), hvd.rank(), hvd.size(), 1, -3]


def check_errors_reach_all() -> None:
    if hvd.size() == 1:
        return
    rank = hvd.rank()
    with raises(tf.errors.FailedPreconditionError, "shape"):
        hvd.allreduce(tf.ones([2 + rank]), name="shapes")
    with raises(hvd.HorovodInternalError, "type"):
        hvd.allreduce(tf.ones([2], tf.float32 if rank else tf.float64), name="types")
    with raises(tf.errors.FailedPreconditionError, "root rank"):
        hvd.broadcast(tf.ones([2]), min(rank, 1), name="roots")
    with raises(tf.errors.UnknownError, "HorovodInternalError", "shape"):
        tf.function(lambda x: hvd.allreduce(x, name="in a graph"))(tf.ones([2 + rank]))
    with raises(tf.errors.InvalidArgumentError, "root_rank"):
        hvd.broadcast(tf.ones([2]), hvd.size())
    with raises(ValueError, "scalar"):
        hvd.allgather(tf.ones([]))
    with raises(tf.errors.InvalidArgumentError, "splits"):
        hvd.alltoall(tf.ones([2]), splits=[7] * hvd.size())
    with raises(tf.errors.InvalidArgumentError, "splits"):
        tf.function(lambda x: hvd.alltoall(x, splits=[7] * hvd.size()))(tf.ones([2]))
    with raises(hvd.HorovodInternalError, "Average and hvd.Sum"):
        hvd.reducescatter(tf.ones([2]), op=hvd.Max)
    again = tf.function(lambda x: hvd.allreduce(x, name="again", op=hvd.Sum))
    with raises(tf.errors.UnknownError, "shape"):
        again(tf.ones([2 + rank]))
    close(again(tf.ones([2])), np.full(2, hvd.size()))


def check_process_sets() -> None:
    size, rank = hvd.size(), hvd.rank()
    others = hvd.add_process_set(list(range(1, size)) if size > 1 else [0]) if size > 1 else hvd.global_process_set
    if others.included():

        def on_all_ranks(x: Any) -> Any:
            total = hvd.allreduce(x, op=hvd.Sum, process_set=others)
            return total, hvd.allgather(x, process_set=others), hvd.broadcast(x, size - 1, process_set=others)

        for one in both(on_all_ranks):
            total, rows, root = one(tf.fill([1], rank + 1.0))
            first = 1 if size > 1 else 0
            close(total, [sum(range(first + 1, size + 1))])
            close(rows, np.arange(first + 1, size + 1))
            close(root, [size])
    else:
        with raises(tf.errors.InvalidArgumentError, "not in process set"):
            hvd.allreduce(tf.ones(1), process_set=others)
    if size > 1:
        hvd.remove_process_set(others)


def check_variables_and_objects() -> None:
    import keras

    rank, size = hvd.rank(), hvd.size()
    for inplace in (False, True):
        plain, whole, flag = tf.Variable([rank + 1.0, 2.0]), tf.Variable(rank), tf.Variable(rank == 0)
        of_keras = keras.Variable(np.full((2, 2), rank, np.float32))
        hvd.broadcast_variables([plain, whole, flag, of_keras], root_rank=size - 1, inplace=inplace)
        close(plain, [size, 2.0])
        close(whole, size - 1)
        assert bool(flag) == (size == 1)
        close(of_keras, np.full((2, 2), size - 1))
    variable = tf.Variable([float(rank)])
    (value,) = hvd.broadcast_([variable], size - 1)
    close(value, [size - 1])
    close(variable, [size - 1])

    @tf.function
    def traced() -> None:
        hvd.broadcast_variables([plain], root_rank=0)

    plain.assign([float(rank), 1.0])
    traced()
    close(plain, [0.0, 1.0])
    hvd.broadcast_variables([], root_rank=0)
    assert hvd.broadcast_object({"rank": rank}, size - 1) == {"rank": size - 1}
    assert hvd.broadcast_object_fn(0, name="of root")(rank) == 0
    assert hvd.allgather_object([rank] * rank) == [[other] * other for other in range(size)]
    with raises(RuntimeError, "broadcast_variables"):
        hvd.broadcast_global_variables(0)


def check_join() -> None:
    size, rank = hvd.size(), hvd.rank()
    for number in range(rank + 1):
        present = size - number
        close(hvd.allreduce(tf.ones([2]), op=hvd.Sum, name=f"with {number}"), np.full(2, present))
    assert int(hvd.join()) in range(size)


def check_private_names_are_where_programs_find_them() -> None:
    from unisono.horovod.torch.mpi_ops import num_rank_is_power_2

    assert hvd._executing_eagerly()
    for is_power in (num_rank_is_power_2, hvd.check_num_rank_power_of_2, hvd.mpi_ops.num_rank_is_power_2):
        assert [number for number in range(9) if is_power(number)] == [1, 2, 4, 8]


def programs_of_keras_2_run_as_they_are() -> None:
    model, opt = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones")]), tf.optimizers.Adam(0.001)

    @tf.function
    def training_step(first_batch: bool) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(tf.ones([1, 2]) * (hvd.rank() + 1.0)))
        tape = hvd.DistributedGradientTape(tape)
        grads = tape.gradient(loss, model.trainable_variables)
        opt.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        if first_batch:
            hvd.broadcast_variables(model.variables, root_rank=0)
            hvd.broadcast_variables(opt.variables(), root_rank=0)

    for number in range(2):
        training_step(number == 0)
    assert len(opt.variables()) == len(opt.variables) > 4
    close(model.variables[0], hvd.broadcast(model.variables[0].value, 0))


def check_names_of_tensorflow_1_are_refused_with_the_lines_to_write() -> None:
    """Where `import horovod` means us; elsewhere TensorFlow answers as it does."""
    hvd.init()
    with raises(AttributeError, "has no attribute 'Session'"):
        _ = tf.Session
    try:
        with mock.patch("unisono.horovod._impl.tensorflow.old_names.is_in_force", return_value=True):
            hvd.init()
        programs_of_keras_2_run_as_they_are()
        for old in ("tf.ConfigProto()", "tf.Session", "tf.placeholder", "tf.train.AdagradOptimizer(0.1)", "tf.summary.FileWriter"):
            with raises(UsageError, old.partition("(")[0], "import tensorflow.compat.v1 as tf; tf.disable_v2_behavior()"):
                eval(old)
        assert not hasattr(tf, "Session") and getattr(tf.train, "AdagradOptimizer", None) is None
        with raises(AttributeError, "'train.nothing'"):
            _ = tf.train.nothing
        assert tf.compat.v1.Session and tf.train.Checkpoint
    finally:
        for module in (tf, tf.train, tf.summary):
            vars(module).pop("__getattr__", None)


if __name__ == "__main__":
    run(checks_of(globals()))
