"""horovod.keras on the backend that KERAS_BACKEND names. What N ranks learn is compared with one process on all data."""
# mypy: disable-error-code="no-untyped-call,no-untyped-def,misc"

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import keras
import numpy as np

import unisono.horovod.keras as hvd
from unisono.errors import UsageError
from unisono.horovod._impl.keras import old_names

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.ranks.programs.horovod_checks import checks_of, raises, run

STEPS, ROWS = 4, 6
BACKEND = keras.config.backend()
Make = Callable[[], Any]
Batch = tuple[np.ndarray, np.ndarray]


def model() -> Any:
    """Every rank begins elsewhere, unless it is told."""
    keras.utils.set_random_seed(3)
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(3)])


def sgd() -> Any:
    return keras.optimizers.SGD(0.1, momentum=0.9)


def batch(step: int, rank: int) -> Batch:
    draw = np.random.default_rng(100 * step + rank)
    return draw.normal(size=(ROWS, 4)).astype("float32"), draw.normal(size=(ROWS, 3)).astype("float32")


def text_batch(step: int, rank: int) -> Batch:
    draw = np.random.default_rng(100 * step + rank)
    return draw.integers(0, 20, (ROWS, 5)), draw.normal(size=(ROWS, 3)).astype("float32")


def joined(batches: Sequence[Batch]) -> Batch:
    inputs, targets = zip(*batches, strict=True)
    return np.concatenate(inputs), np.concatenate(targets)


@cache  # several checks compare with the same one, and it is compiled each time
def alone(make: Make, make_model: Make = model, data: Callable[[int, int], Batch] = batch, passes: int = 1) -> Any:
    """One process, all data of each step."""
    net = make_model()
    net.compile(make(), "mse")
    for step in range(STEPS // passes):
        parts = [data(step * passes + part, rank) for part in range(passes) for rank in range(hvd.size())]
        net.train_on_batch(*joined(parts))
    return net


def fitted(net: Any, data: Callable[[int, int], Batch] = batch, callbacks: Sequence[Any] = (), epochs: int = 1) -> Any:
    """This rank's batches, by `fit`."""
    inputs, targets = joined([data(step, hvd.rank()) for step in range(STEPS)])
    net.fit(inputs, targets, ROWS, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks))
    return net


def on_all_ranks(optimizer: Any, make_model: Make = model, data: Callable[[int, int], Batch] = batch) -> Any:
    net = make_model()
    net.compile(optimizer, "mse")
    return fitted(net, data)


def same(net: Any, other: Any, tolerance: float = 1e-6) -> None:
    for one, two in zip(net.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(one, two, rtol=tolerance, atol=tolerance)


def number(value: Any) -> float:
    return float(keras.ops.convert_to_numpy(value))


# ---- learning ------------------------------------------------------------------------------------------------------------


def check_fit_is_that_of_one_process() -> None:
    for make in (sgd, lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.5)):
        net = model()
        if hvd.rank():
            net.set_weights([weight + hvd.rank() for weight in net.get_weights()])
        net.compile(hvd.DistributedOptimizer(make()), "mse")
        callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        same(fitted(net, callbacks=[callback]), alone(make))
        assert callback.broadcast_done
        assert int(number(net.optimizer.iterations)) == STEPS


def check_a_model_that_is_built_late_is_broadcast_after_its_first_batch() -> None:
    keras.utils.set_random_seed(hvd.rank())
    net = keras.Sequential([keras.layers.Dense(3)])
    net.compile(hvd.DistributedOptimizer(sgd()), "mse")
    fitted(net, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    weights = hvd.allgather_object(net.get_weights())
    for one, two in zip(weights[0], weights[-1], strict=True):
        np.testing.assert_array_equal(one, two)


def check_passes_add_up_to_one_step() -> None:
    for averages in (True, False):
        distributed = hvd.DistributedOptimizer(
            keras.optimizers.SGD(0.1, momentum=0.9), backward_passes_per_step=2, average_aggregated_gradients=averages
        )
        net = on_all_ranks(distributed)
        same(net, alone(lambda: keras.optimizers.SGD(0.1 if averages else 0.2, momentum=0.9), passes=2))  # noqa: B023


def embedding() -> Any:
    keras.utils.set_random_seed(5)
    return keras.Sequential(
        [keras.Input((5,)), keras.layers.Embedding(20, 4), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(3)]
    )


def check_gradients_of_some_rows() -> None:
    # Adam of Keras squares rows before it adds those of one word, so that a dense gradient gives something else.
    for as_dense, make in ((False, lambda: keras.optimizers.Adam(0.01)), (True, lambda: keras.optimizers.SGD(0.5))):
        distributed = hvd.DistributedOptimizer(make(), sparse_as_dense=as_dense)
        same(on_all_ranks(distributed, embedding, text_batch), alone(make, embedding, text_batch))


def check_rows_on_some_ranks_only() -> None:
    """A table without a gradient on rank 0: an error for all, not a wait."""
    if BACKEND != "tensorflow" or hvd.size() == 1:
        return
    import tensorflow as tf

    rows = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([3]), tf.constant([4, 2]))
    for as_dense in (False, True):
        table, weight = keras.Variable(np.zeros((4, 2), "float32")), keras.Variable(np.zeros(2, "float32"))
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), sparse_as_dense=as_dense)
        share = 0.0
        with ExitStack() as stack:
            if as_dense:
                share = (hvd.size() - 1) / hvd.size()
            else:
                stack.enter_context(raises(ValueError, "sparse_as_dense=True", f"{hvd.size() - 1} of {hvd.size()} ranks"))
            optimizer.apply([None if hvd.rank() == 0 else rows, tf.ones(2)], [table, weight])
        np.testing.assert_allclose(keras.ops.convert_to_numpy(table)[3], np.full(2, -share), rtol=1e-6)
        optimizer.apply([rows, tf.ones(2)], [table, weight])  # nothing of the step that failed is left in flight
        np.testing.assert_allclose(keras.ops.convert_to_numpy(table)[3], np.full(2, -share - 1), rtol=1e-6)


def check_ways_to_travel() -> None:
    expected = alone(sgd)
    for options in ({"groups": 2}, {"gradient_predivide_factor": 4.0}, {"name": "mine", "groups": 100}):
        same(on_all_ranks(hvd.DistributedOptimizer(sgd(), **options)), expected)
    net = model()
    net.compile(hvd.DistributedOptimizer(sgd(), groups=[net.trainable_variables[:2], net.trainable_variables[3:]]), "mse")
    same(fitted(net), expected)
    summed = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 / hvd.size()), op=hvd.Sum)
    same(on_all_ranks(summed), alone(lambda: keras.optimizers.SGD(0.1)))
    halves = on_all_ranks(hvd.DistributedOptimizer(sgd(), compression=hvd.Compression.fp16))
    same(halves, expected, tolerance=2e-3)
    assert any((one != two).any() for one, two in zip(halves.get_weights(), expected.get_weights(), strict=True))


def check_loops_of_ones_own() -> None:
    one, two, three = (keras.Variable(np.zeros(3, "float32")) for _ in range(3))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    mine = keras.ops.convert_to_tensor(np.full(3, hvd.rank() + 1.0, "float32"))
    optimizer.apply_gradients([(mine, one), (mine * 2, two)])
    mean = (hvd.size() + 1) / 2
    np.testing.assert_allclose(keras.ops.convert_to_numpy(one), np.full(3, -mean))
    np.testing.assert_allclose(keras.ops.convert_to_numpy(two), np.full(3, -2 * mean))
    for option in ({"skip_gradients_aggregation": True}, {"experimental_aggregate_gradients": False}):
        alone = keras.Variable(np.zeros(3, "float32"))
        hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)).apply_gradients([(mine, alone)], **option)
        np.testing.assert_allclose(keras.ops.convert_to_numpy(alone), np.full(3, -(hvd.rank() + 1.0)))
    # Rank 0 has no gradient for the second one.
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.apply([mine, None if hvd.rank() == 0 else mine], [one, three])
    np.testing.assert_allclose(keras.ops.convert_to_numpy(one), np.full(3, -2 * mean))
    np.testing.assert_allclose(keras.ops.convert_to_numpy(three), np.full(3, -(mean - 1 / hvd.size())), rtol=1e-6)


def check_local_layers() -> None:
    net = model()
    local, shared = net.layers
    optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), local_layers=local)
    gradients = [
        keras.ops.convert_to_tensor(np.full(variable.shape, hvd.rank() + 1.0, "float32")) for variable in net.trainable_variables
    ]
    before = [layer.get_weights() for layer in (local, shared)]
    optimizer.apply(gradients, net.trainable_variables)
    steps = (hvd.rank() + 1) / hvd.size(), (hvd.size() + 1) / 2
    for layer, old, step in zip((local, shared), before, steps, strict=True):
        for now, then in zip(layer.get_weights(), old, strict=True):
            np.testing.assert_allclose(now, then - step, rtol=1e-5, atol=1e-5)


def check_process_sets() -> None:
    """The first and the last rank; who is not in the set keeps its own gradients. Of two ranks the last one, as both are all."""
    ends = hvd.add_process_set([0, hvd.size() - 1] if hvd.size() > 2 else [hvd.size() - 1])
    for op in (hvd.Average, hvd.Sum):
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), process_set=ends, op=op)
        one = keras.Variable(np.zeros(2, "float32"))
        for _ in range(2):
            optimizer.apply([keras.ops.convert_to_tensor(np.full(2, hvd.rank() + 1.0, "float32"))], [one])
        total = sum(rank + 1.0 for rank in ends.ranks or ())
        reduced = total if op == hvd.Sum else total / ends.size()
        expected = reduced if ends.included() else hvd.rank() + 1.0
        np.testing.assert_allclose(keras.ops.convert_to_numpy(one), np.full(2, -2 * expected))
    hvd.remove_process_set(ends)


def check_a_step_counts_on_all_ranks_or_on_none() -> None:
    for wrap in (lambda inner: keras.optimizers.LossScaleOptimizer(inner, initial_scale=4.0), None):
        net = model()
        if wrap is None:  # as `compile` does for a model of mixed precision
            net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, dtype="mixed_float16")], name="mixed")
            net.dtype_policy = keras.DTypePolicy("mixed_float16")
            net.compile(hvd.DistributedOptimizer(sgd()), "mse")
            assert isinstance(net.optimizer, keras.optimizers.LossScaleOptimizer)
        else:
            net.compile(hvd.DistributedOptimizer(wrap(sgd())), "mse")
        before = net.get_weights()
        inputs, targets = batch(0, hvd.rank())
        bad = inputs.copy()
        bad[0] = np.inf if hvd.rank() == 0 else 0
        net.train_on_batch(bad, targets)
        for one, two in zip(net.get_weights(), before, strict=True):
            np.testing.assert_array_equal(one, two)
        assert number(net.optimizer.dynamic_scale) == number(net.optimizer.initial_scale) / 2
        net.optimizer.dynamic_scale.assign(2.0)  # halves overflow with the scale that Keras begins with
        net.train_on_batch(inputs, targets)
        assert any((one != two).any() for one, two in zip(net.get_weights(), before, strict=True))
        weights = hvd.allgather_object(net.get_weights())
        for one, two in zip(weights[0], weights[-1], strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-6)


# ---- callbacks -----------------------------------------------------------------------------------------------------------


class Recorder(keras.callbacks.Callback):
    """The rate with which each batch is begun."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()
        self.rates.append(number(self.model.optimizer.learning_rate))


def slope() -> Any:
    """Its gradient is 1, whatever it has learned."""
    net = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.8, momentum=0.5))
    net.compile(optimizer, lambda _, outputs: keras.ops.mean(outputs))
    return net


def walked(rates: Sequence[float], corrected: bool, before: float) -> float:
    """Where steps of these rates lead, by the formula of the paper."""
    place = velocity = 0.0
    for rate in rates:
        velocity = 0.5 * (rate / before if corrected else 1.0) * velocity - rate
        place, before = place + velocity, rate
    return place


def check_warm_up_step_by_step() -> None:
    steps, warm, size = 4, 2, hvd.size()
    ones = np.ones((2 * steps, 1), "float32")
    expected = [
        0.8 / size * ((epoch + (step + 1) / steps) * (size - 1) / warm + 1) if epoch < warm else 0.8
        for epoch in range(warm + 1)
        for step in range(steps)
    ]
    for corrected in (True, False):
        net, recorder = slope(), Recorder()
        warm_up = hvd.callbacks.LearningRateWarmupCallback(0.8, warmup_epochs=warm, momentum_correction=corrected, verbose=1)
        history = net.fit(ones, ones, 2, epochs=warm + 1, verbose=0, callbacks=[warm_up, recorder])
        np.testing.assert_allclose(recorder.rates, expected, rtol=1e-6)
        np.testing.assert_allclose(history.history["lr"], expected[steps - 1 :: steps], rtol=1e-6)
        # What is remembered at first is nothing, so the rate from which it begins does not matter.
        np.testing.assert_allclose(net.get_weights()[0], [[walked(expected, corrected, 0.8)]], rtol=1e-5)


def check_warm_up_ends_with_the_whole_rate() -> None:
    """Also where Keras makes several steps in one call, and callbacks come only between the calls."""
    if BACKEND == "torch":  # on which Keras never does
        return
    ones = np.ones((8, 1), "float32")
    net = slope()
    net.compile(net.optimizer, net.loss, steps_per_execution=2)
    warm_up = hvd.callbacks.LearningRateWarmupCallback(0.8, warmup_epochs=2)
    history = net.fit(ones, ones, 2, epochs=3, verbose=0, callbacks=[warm_up]).history
    np.testing.assert_allclose(history["lr"][1:], [0.8, 0.8], rtol=1e-6)


def check_schedules() -> None:
    ones = np.ones((4, 1), "float32")
    callback = hvd.callbacks.LearningRateScheduleCallback
    net, recorder = slope(), Recorder()
    chosen = [callback(0.8, 0.5, start_epoch=1, end_epoch=3), callback(0.8, lambda epoch: 1 / (epoch + 1), start_epoch=3)]
    net.fit(ones, ones, 2, epochs=5, verbose=0, callbacks=[*chosen, recorder])
    expected = [0.8, 0.8, 0.8, 0.8, 0.4, 0.4, 0.2, 0.2, 0.16, 0.16]
    np.testing.assert_allclose(recorder.rates, expected, rtol=1e-6)
    np.testing.assert_allclose(net.get_weights()[0], [[walked(expected, True, 0.8)]], rtol=1e-5)
    with raises(ValueError, "learning-rate schedule"):
        net = model()
        rate = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
        net.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(rate)), "mse")
        fitted(net, callbacks=[callback(0.1, 1.0)])


def check_metrics_are_means() -> None:
    net = model()
    net.compile(keras.optimizers.SGD(0.0), "mse", metrics=["mae"])
    plain = fitted(net, callbacks=[]).history.history
    means = fitted(net, callbacks=[hvd.callbacks.MetricAverageCallback()]).history.history
    everybodys = hvd.allgather_object(plain)
    for name in ("loss", "mae"):
        assert len({other[name][0] for other in everybodys}) == hvd.size()
        np.testing.assert_allclose(means[name], np.mean([other[name] for other in everybodys], axis=0), rtol=1e-6)
    logs: dict[str, Any] = {"loss": float(hvd.rank()), "of each class": np.array([1.0, hvd.rank()])}
    hvd.callbacks.MetricAverageCallback().on_epoch_end(0, logs)
    assert logs["loss"] == (hvd.size() - 1) / 2 and type(logs["loss"]) is float
    np.testing.assert_allclose(logs["of each class"], [1.0, (hvd.size() - 1) / 2])
    with raises(ValueError, "different metrics", "only here" if hvd.rank() == 0 else "rank 0"):
        hvd.callbacks.MetricAverageCallback().on_epoch_end(0, {"loss": 1.0, "only here": 2.0} if hvd.rank() == 0 else {"loss": 1.0})


# ---- values and files ----------------------------------------------------------------------------------------------------


def check_values() -> None:
    size, rank = hvd.size(), hvd.rank()
    assert hvd.allreduce(float(rank)) == (size - 1) / 2
    assert hvd.allreduce(rank, op=hvd.Sum) == hvd.allreduce(rank, average=False) == size * (size - 1) // 2
    np.testing.assert_allclose(hvd.allreduce([1.0, rank], prescale_factor=2.0), [2.0, size - 1])
    np.testing.assert_allclose(hvd.allreduce(np.ones(3, "float32"), compression=hvd.Compression.fp16), np.ones(3))
    tensor = keras.ops.convert_to_tensor(np.full((2, 2), rank, "float32"))
    single = keras.ops.convert_to_tensor(np.float32(rank))
    whole = hvd.allreduce(keras.ops.cast(single, "bfloat16"), op=hvd.Sum)
    assert number(keras.ops.cast(whole, "float32")) == size * (size - 1) / 2
    summed = hvd.allreduce(tensor, op=hvd.Sum, name="summed")
    assert keras.ops.is_tensor(summed)
    assert number(summed[0, 0]) == size * (size - 1) / 2
    np.testing.assert_array_equal(hvd.allgather(np.full(rank + 1, rank)), np.repeat(np.arange(size), np.arange(size) + 1))
    assert hvd.broadcast(rank, root_rank=size - 1, name="epoch") == size - 1
    np.testing.assert_allclose(hvd.reducescatter(np.arange(2.0 * size)), [2.0 * rank, 2.0 * rank + 1])
    for found in (hvd.allreduce(1.0), hvd.allgather([rank]), hvd.broadcast(1, 0), hvd.reducescatter(np.ones(size))):
        assert keras.ops.is_tensor(found) == (BACKEND == "tensorflow")
    variables = [keras.Variable(np.full(2, rank, "float32")), keras.Variable(rank, dtype="int32", trainable=False)]
    hvd.broadcast_variables(variables, root_rank=size - 1)
    assert [number(variables[0][1]), number(variables[1])] == [size - 1, size - 1]
    with raises(ValueError, "BroadcastGlobalVariablesCallback(0)", "hvd.broadcast_variables"):
        hvd.broadcast_global_variables(0)


def same_state(one: Any, two: Any) -> None:
    for mine, others in zip(one.optimizer.variables, two.optimizer.variables, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(mine), keras.ops.convert_to_numpy(others))


def check_files() -> None:
    net = model()
    net.compile(hvd.DistributedOptimizer(sgd()), keras.losses.MeanSquaredError())  # Keras cannot load a name from the older format
    fitted(net)
    with tempfile.TemporaryDirectory() as folder:
        for path in (f"{folder}/net.keras", f"{folder}/net.h5"):
            net.save(path)
            plain = keras.models.load_model(path)
            assert not hasattr(plain.optimizer, "register_local_var")
            again = hvd.load_model(path)
            assert hasattr(again.optimizer, "register_local_var")
            assert isinstance(again.optimizer, keras.optimizers.SGD)
            same_state(again, net)
            fitted(again)
            again.save(path.replace("net", "later"))
            same_state(hvd.load_model(path.replace("net", "later")), again)
            two_passes = fitted(hvd.load_model(path, backward_passes_per_step=2))
            two_passes.save(path.replace("net", "passes"))
            same_state(hvd.load_model(path.replace("net", "passes"), backward_passes_per_step=2), two_passes)
        expected, again = alone.__wrapped__(sgd), hvd.load_model(f"{folder}/net.keras")  # one of its own, which learns more
        for step in range(STEPS):
            expected.train_on_batch(*joined([batch(step, rank) for rank in range(hvd.size())]))
        same(fitted(again), expected)
        with raises(ValueError, "legacy"):
            hvd.load_model(path, legacy_opts=True)


def check_the_best_model() -> None:
    net = model()
    net.compile(hvd.DistributedOptimizer(sgd()), "mse")
    best = hvd.callbacks.BestModelCheckpoint(monitor="loss")
    with raises(ValueError, "filepath"):
        fitted(net, callbacks=[best])
    with tempfile.TemporaryDirectory() as folder:
        best.filepath = f"{folder}/best.keras"
        weights: list[Any] = []
        record = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: weights.append(net.get_weights()))
        losses = fitted(net, callbacks=[best, record], epochs=4).history.history["loss"]
        kept = keras.models.load_model(best.filepath)
    assert best.best == min(losses)
    assert isinstance(kept.optimizer, keras.optimizers.SGD) and not hasattr(kept.optimizer, "register_local_var")
    for one, two in zip(kept.get_weights(), weights[int(np.argmin(losses))], strict=True):
        np.testing.assert_array_equal(one, two)


def check_what_it_is() -> None:
    plain = keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9), clipnorm=1.0)
    made = hvd.DistributedOptimizer(plain)
    assert isinstance(made, keras.optimizers.Adam)
    assert type(made).__name__ == "Adam"
    assert made.get_config() == type(made).from_config(made.get_config()).get_config()
    assert made.variables() == made.variables
    if BACKEND == "jax":
        import jax

        made.build([keras.Variable(np.zeros(2, "float32"))])
        assert len(jax.tree.leaves(made.variables)) == len(made.variables) > 1
    assert number(hvd.DistributedOptimizer(sgd()).lr) == np.float32(0.1)


def gpu_of_old_programs(number: int) -> Any:
    """`tf.ConfigProto()`, as they fill it in."""
    return SimpleNamespace(gpu_options=SimpleNamespace(visible_device_list=str(number), allow_growth=True))


def check_old_programs_choose_a_gpu() -> None:
    """The second of two that the framework says it sees; there are none here."""
    stand_ins: dict[str, tuple[dict[str, Any], str, Any]] = {
        "tensorflow": (
            {
                "tensorflow.config.list_physical_devices": lambda _: "ab",
                "tensorflow.config.experimental.set_memory_growth": lambda *_: None,
            },
            "tensorflow.config.set_visible_devices",
            mock.call(["b"], "GPU"),
        ),
        "jax": (
            {"jax.default_backend": lambda: "gpu", "jax.local_devices": lambda: "ab"},
            "jax.config.update",
            mock.call("jax_default_device", "b"),
        ),
        "torch": (
            {"torch.cuda.device_count": lambda: 2, "keras.src.backend.torch.core.DEFAULT_DEVICE": "cuda"},
            "torch.cuda.set_device",
            mock.call(1),
        ),
    }
    seen, choose, wanted = stand_ins[BACKEND]
    with ExitStack() as stack:
        for name, value in seen.items():
            stack.enter_context(mock.patch(name, value))
        chosen = stack.enter_context(mock.patch(choose))
        old_names.set_session(old_names.OldSession(config=gpu_of_old_programs(1)))
        with raises(UsageError, "GPU 2", "sees 2", "--gpus-per-node"):
            old_names.set_session(old_names.OldSession(config=gpu_of_old_programs(2)))
    assert chosen.mock_calls == [wanted], chosen.mock_calls


def check_old_names_and_bad_input() -> None:
    with raises(ValueError, "already a DistributedOptimizer"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(sgd()))
    with raises(ValueError, "optimizer of Keras 3", "str"):
        hvd.DistributedOptimizer("sgd")
    with raises(ValueError, "hvd.Average or hvd.Sum"):
        hvd.DistributedOptimizer(sgd(), op=hvd.Adasum)
    for wrong in (-1, 0, True, ["x"]):
        with raises(ValueError, "groups must be a number of groups, 1 or more"):
            hvd.DistributedOptimizer(sgd(), groups=wrong)
    with raises(ValueError, "at least 1"):
        hvd.DistributedOptimizer(sgd(), backward_passes_per_step=0)
    with raises(ValueError, "give one of them"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, gradient_accumulation_steps=3), backward_passes_per_step=2)
    with raises(ValueError, "op=hvd.Average only"):
        hvd.DistributedOptimizer(sgd(), op=hvd.Sum, gradient_predivide_factor=2.0)
    with raises(ValueError, "not built"):
        hvd.PartialDistributedOptimizer(sgd(), local_layers=keras.layers.Dense(2))
    with raises(ValueError, "lr"):
        keras.optimizers.SGD(lr=0.5)
    plain = [keras.optimizers.SGD(0.1), keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))]
    for optimizer in plain:
        with raises(TypeError, "not callable"):
            optimizer.variables()
    old_names.accept_old_names()
    old_names.accept_old_names()
    assert number(hvd.DistributedOptimizer(keras.optimizers.SGD(lr=0.5, momentum=0.9)).lr) == 0.5
    assert number(keras.optimizers.Adam().learning_rate) == np.float32(0.001)
    for optimizer in plain:
        assert len(optimizer.variables()) == len(optimizer.variables) > 1
    keras.backend.set_session(old_names.OldSession())
    if BACKEND == "tensorflow":
        import tensorflow as tf

        assert tf.keras.backend.set_session is tf.compat.v1.keras.backend.set_session is keras.backend.set_session
    if BACKEND == "tensorflow" and hvd.size() > 1:
        with raises(ValueError, "jit_compile=True"):
            model().compile(hvd.DistributedOptimizer(sgd()), "mse", jit_compile=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore", UserWarning)
    from tests.ranks.programs import horovod_keras_odd  # which uses this one

    run(checks_of(globals()) | checks_of(vars(horovod_keras_odd)))
