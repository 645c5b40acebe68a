"""Uses of horovod.keras that are out of the ordinary: ranks that differ, steps that fail, optimisers around optimisers. They are
run by `horovod_keras.py`, in the same processes."""
# mypy: disable-error-code="no-untyped-call,no-untyped-def,misc,untyped-decorator"

from __future__ import annotations

import copy
import pickle
import tempfile
import warnings
from typing import Any
from unittest import mock

import keras
import numpy as np

import unisono.horovod.keras as hvd
import unisono.horovod.tensorflow.keras as hvd_of_tensorflow
from tests.ranks.programs.horovod_checks import raises
from tests.ranks.programs.horovod_keras import (
    BACKEND,
    ROWS,
    Recorder,
    alone,
    batch,
    fitted,
    model,
    number,
    on_all_ranks,
    same,
    sgd,
    slope,
)
from unisono.horovod._impl.keras.rate_callbacks import correct_momentum

LossScaleOptimizer = keras.optimizers.LossScaleOptimizer


def tensor(*values: float) -> Any:
    return keras.ops.convert_to_tensor(np.array(values, "float32"))


def variable(*values: float) -> Any:
    return keras.Variable(np.array(values, "float32"))


def values_of(one: Any) -> list[Any]:
    found: list[Any] = keras.ops.convert_to_numpy(one).tolist()
    return found


def equal_on_all_ranks(net: Any) -> None:
    weights = hvd.allgather_object(net.get_weights())
    for one, two in zip(weights[0], weights[-1], strict=True):
        np.testing.assert_array_equal(one, two)


# ---- ranks that differ ---------------------------------------------------------------------------------------------------


def check_an_optimizer_of_one_rank_only() -> None:
    """Rank 0 looks at a model from a file, which nobody else loads."""
    if hvd.rank() == 0:
        made = hvd.DistributedOptimizer(sgd())
        type(made).from_config(made.get_config())
    one = variable(0.0)
    hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)).apply([tensor(hvd.rank() + 1.0)], [one])
    assert values_of(one) == [-(hvd.size() + 1) / 2]


def check_ranks_with_different_optimizers() -> None:
    """An error for all, not a wait, and not replicas that differ."""
    if hvd.size() == 1:
        return
    first, one = hvd.rank() == 0, variable(0.0)
    chosen: dict[str, dict[str, Any]] = {
        "op='SUM' on rank 0, 'AVERAGE' on rank 1": {"op": hvd.Sum if first else hvd.Average},
        "sparse_as_dense=True on rank 0": {"sparse_as_dense": first},
        "name='mine' on rank 0": {"name": "mine" if first else "yours"},
    }
    for words, options in chosen.items():
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), **options)
        for _ in range(2):  # and again, as long as nothing is done about it
            with raises(ValueError, "different optimizers", words, "the same arguments"):
                optimizer.apply([tensor(1.0)], [one])
    assert values_of(one) == [0.0]
    sums = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0), backward_passes_per_step=2, average_aggregated_gradients=hvd.rank() == 0
    )
    sums.apply([tensor(1.0)], [one])
    with raises(Exception, "average_aggregated_gradients=True on rank 0, False on rank 1", "hvd.load_model"):
        sums.apply([tensor(1.0)], [one])


def check_one_rank_resumes_several_passes() -> None:
    """As Horovod's examples do: rank 0 loads the model, and sends it to the others."""
    options: dict[str, Any] = {"backward_passes_per_step": 2, "average_aggregated_gradients": False}

    def made() -> Any:
        net = model()
        net.compile(hvd.DistributedOptimizer(sgd(), **options), "mse")
        return net

    with tempfile.TemporaryDirectory() as folder:
        saved = fitted(made())
        saved.save(f"{folder}/net.keras")
        again = hvd.load_model(f"{folder}/net.keras", **options) if hvd.rank() == 0 else made()
    fitted(again, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    same(again, fitted(saved))
    equal_on_all_ranks(again)


# ---- steps that fail -----------------------------------------------------------------------------------------------------


def check_a_failed_step_does_not_bring_back_what_was_undone() -> None:
    """In a loop of `train_on_batch`, which on JAX leaves the values of the step before outside the variables."""
    net = model()
    net.compile(hvd.DistributedOptimizer(sgd()), "mse")
    state = hvd.elastic.KerasState(net, batch=0)
    net.train_on_batch(*batch(0, hvd.rank()))
    state.commit()
    committed = net.get_weights()
    net.train_on_batch(*batch(1, hvd.rank()))

    def broken(*_: Any) -> None:
        raise RuntimeError("HorovodInternalError: somebody was lost")

    net.train_function = broken
    with raises(RuntimeError, "somebody was lost"):
        net.train_on_batch(*batch(2, hvd.rank()))
    state.restore()
    state.sync()
    state.save()
    for one, two in zip(net.get_weights(), committed, strict=True):
        np.testing.assert_array_equal(one, two)
    state.reset()
    net.train_on_batch(*batch(1, hvd.rank()))
    assert any((one != two).any() for one, two in zip(net.get_weights(), committed, strict=True))


class Leaves(keras.callbacks.Callback):
    """In the middle of an epoch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        if batch == 1:
            raise RuntimeError("hosts have changed")


def check_a_fit_that_is_left_without_a_commit_keeps_its_last_step() -> None:
    net = model()
    net.compile(hvd.DistributedOptimizer(sgd()), "mse")
    state = hvd.elastic.KerasState(net)
    with raises(RuntimeError, "hosts have changed"):
        fitted(net, callbacks=[Leaves()])
    state.sync()
    two_steps = model()
    two_steps.compile(hvd.DistributedOptimizer(sgd()), "mse")
    for step in range(2):
        two_steps.train_on_batch(*batch(step, hvd.rank()))
    same(net, two_steps)


# ---- optimisers around and inside ----------------------------------------------------------------------------------------


def scaled_step(optimizer: Any, gradient: Any, one: Any) -> None:
    """On JAX a `LossScaleOptimizer` of Keras steps only without state."""
    if BACKEND != "jax":
        optimizer.apply([gradient], [one])
        return
    import jax

    if not optimizer.built:
        optimizer.build([one])
    held = [variable.value for variable in optimizer.variables]
    trained, kept = jax.jit(optimizer.stateless_apply)(held, [gradient], [one.value])
    for variable, value in zip([one, *optimizer.variables], [*trained, *kept], strict=True):
        variable.assign(value)


def check_scaled_losses_without_compile() -> None:
    """A step that is not finite on rank 0 is skipped on all, in whichever order the two are put together."""
    around = LossScaleOptimizer(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)), initial_scale=1.0)
    inside = hvd.DistributedOptimizer(LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=1.0))
    for optimizer in (around, inside):
        one = variable(0.0)
        for step in range(3):
            is_bad = step == 0 and hvd.rank() == 0
            scaled_step(optimizer, tensor(np.inf if is_bad else 10.0**step), one)
        assert number(optimizer.dynamic_scale) == 0.5
        assert values_of(one) == [-(10.0 + 100.0) / 0.5]


def check_scaled_losses_of_old_programs() -> None:
    optimizer = hvd.DistributedOptimizer(LossScaleOptimizer(keras.optimizers.SGD(0.5), initial_scale=1.0))
    assert type(optimizer).__name__ == "LossScaleOptimizer" and isinstance(optimizer, LossScaleOptimizer)
    one, mine = variable(0.0), hvd.rank() + 1.0
    optimizer.build([one])
    if BACKEND != "jax":
        optimizer.apply_gradients([(tensor(mine), one)], skip_gradients_aggregation=True)
        assert values_of(one) == [-0.5 * mine]
    assert optimizer.variables() == optimizer.variables and len(optimizer.variables()) > 3
    assert number(optimizer.lr) == 0.5
    optimizer.lr = 0.25
    assert number(optimizer.inner_optimizer.learning_rate) == 0.25


def check_variables_without_decay() -> None:
    def make() -> Any:
        optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.9)
        optimizer.exclude_from_weight_decay(var_names=["kernel"])
        return optimizer

    same(on_all_ranks(hvd.DistributedOptimizer(make())), alone(make))
    one, two = variable(1.0), variable(1.0)
    plain = keras.optimizers.SGD(0.5, weight_decay=0.5)
    plain.exclude_from_weight_decay(var_list=[one])
    hvd.DistributedOptimizer(plain).apply([tensor(0.0), tensor(0.0)], [one, two])
    assert (values_of(one), values_of(two)) == ([1.0], [0.75])


def check_copies_are_distributed_too() -> None:
    """Keras by itself makes a plain one, with which every rank would learn alone."""
    scaled = LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=1.0)
    for plain in (keras.optimizers.SGD(1.0, momentum=0.5), Unregistered(1.0), scaled):
        made, one, mine = hvd.DistributedOptimizer(plain, op=hvd.Sum), variable(0.0), variable(0.0)
        getattr(made, "inner_optimizer", made).register_local_var(mine)
        if plain is not scaled or BACKEND != "jax":  # where it steps only without state
            made.apply([tensor(0.0), tensor(0.0)], [one, mine])
        copies = [copy.copy(made), copy.deepcopy(made), copy.deepcopy(copy.deepcopy(made))]
        for held in copies:
            assert type(held).__name__ == type(plain).__name__ and isinstance(held, type(plain))
            assert held.get_config() == made.get_config() and number(held.iterations) == number(made.iterations)
            inner: Any = getattr(held, "inner_optimizer", held)
            before = values_of(one), values_of(mine)
            inner.apply([tensor(hvd.rank() + 1.0), tensor(1.0)], [one, mine])
            assert values_of(one) == [before[0][0] - hvd.size() * (hvd.size() + 1) / 2]
            assert values_of(mine) == [np.float32(before[1][0] - 1 / hvd.size())]
        with raises(TypeError, "cannot be pickled", "hvd.load_model"):
            pickle.dumps(made)
    around = LossScaleOptimizer(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)))
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with raises(TypeError, "cannot be pickled", "hvd.load_model"):
            attempt(around)
    assert type(copy.deepcopy(LossScaleOptimizer(keras.optimizers.SGD(1.0)))) is LossScaleOptimizer


@keras.saving.register_keras_serializable("unisono")
class Registered(keras.optimizers.SGD):
    """One of the user's."""


class Unregistered(keras.optimizers.SGD):
    """Another one."""


def check_files_with_optimizers_of_ones_own() -> None:
    for kind in (Registered, Unregistered):
        net = on_all_ranks(hvd.DistributedOptimizer(kind(0.1, momentum=0.9)))
        known = {} if kind is Registered else {"Unregistered": Unregistered}
        with tempfile.TemporaryDirectory() as folder:
            net.save(f"{folder}/net.keras")
            plain = keras.models.load_model(f"{folder}/net.keras", custom_objects=known)
            again = hvd.load_model(f"{folder}/net.keras", custom_optimizers=list(known.values()))
        assert type(plain.optimizer) is kind, type(plain.optimizer)
        assert isinstance(again.optimizer, kind) and hasattr(again.optimizer, "register_local_var")
        for one, two in zip(again.optimizer.variables, net.optimizer.variables, strict=True):
            np.testing.assert_array_equal(keras.ops.convert_to_numpy(one), keras.ops.convert_to_numpy(two))


def check_gradients_whose_shape_is_known_late() -> None:
    if BACKEND != "tensorflow":
        return
    import tensorflow as tf

    one = keras.Variable(np.zeros((1, 2), "float32"))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))

    @tf.function
    def step() -> None:
        gradient = tf.numpy_function(lambda: np.full((1, 2), hvd.rank() + 1.0, "float32"), [], tf.float32)
        optimizer.apply([gradient], [one])

    step()
    assert values_of(one) == [[-(hvd.size() + 1) / 2] * 2]


# ---- callbacks and arguments ---------------------------------------------------------------------------------------------


def check_warm_up_of_one_epoch_and_a_half() -> None:
    ones = np.ones((2 * ROWS, 1), "float32")
    net, recorder = slope(), Recorder()
    net.fit(ones, ones, 3, epochs=3, verbose=0, callbacks=[hvd.callbacks.LearningRateWarmupCallback(0.8, 1.5), recorder])
    assert max(recorder.rates) == np.float32(0.8)
    assert recorder.rates == sorted(recorder.rates)


def check_momentum_that_knows_no_rate() -> None:
    """Only what an optimiser remembers as steps is scaled with the rate."""
    for make, scaled in (
        (lambda: keras.optimizers.RMSprop(0.1, momentum=0.5), True),
        (lambda: keras.optimizers.Muon(0.1, momentum=0.5), False),
    ):
        optimizer, one = make(), keras.Variable(np.ones((2, 2), "float32"), name="kernel")
        optimizer.apply([keras.ops.ones((2, 2))], [one])
        before = [keras.ops.convert_to_numpy(held).copy() for held in optimizer.variables[2:]]
        correct_momentum(optimizer, 0.5)
        after = [keras.ops.convert_to_numpy(held) for held in optimizer.variables[2:]]
        assert any((old != new).any() for old, new in zip(before, after, strict=True)) == scaled
    for callback in (hvd.callbacks.LearningRateWarmupCallback, hvd.callbacks.LearningRateScheduleCallback):
        with raises(ValueError, "needs initial_lr", callback.__name__):
            callback()


def check_arguments_by_position() -> None:
    """The two modules of Horovod differ."""
    common: Any = (None, "", "", hvd.Compression.none, False, 1.0, hvd.Average)

    def made(make: Any, *arguments: Any, **options: Any) -> Any:
        return make(sgd(), *arguments, **options)._transport.options

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert made(hvd.DistributedOptimizer, *common, 3).groups == 3
    assert any("num_groups" in str(one.message) for one in seen)
    assert made(hvd.DistributedOptimizer, *common, 0, 4).groups == 4
    assert made(hvd.DistributedOptimizer, *common, backward_passes_per_step=2).passes == 2
    options = made(hvd_of_tensorflow.DistributedOptimizer, *common, 2, True, 0, 4)
    assert (options.passes, options.averages_passes, options.groups) == (2, True, 4)
    local = model().layers[0]
    options = made(hvd_of_tensorflow.PartialDistributedOptimizer, *common, 2, True, 4, hvd.global_process_set, local, False)
    assert (options.passes, options.groups, options.scale_local) == (2, 4, False)
    options = made(hvd.PartialDistributedOptimizer, *common, 4, hvd.global_process_set, local, False, backward_passes_per_step=2)
    assert (options.passes, options.groups, options.scale_local) == (2, 4, False)
    of_keras = hvd.callbacks.BestModelCheckpoint("loss", 0, "max", 7)
    of_tensorflow = hvd_of_tensorflow.callbacks.BestModelCheckpoint("loss", 0, True, "max", 7)
    for one, weights_only in ((of_keras, False), (of_tensorflow, True)):
        assert (one.mode, one.save_freq, one.save_weights_only) == ("max", 7, weights_only)


def check_a_callback_of_an_earlier_attempt_broadcasts_again() -> None:
    """As in an elastic job that a worker has joined: it has a callback that has done nothing yet."""
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    for _ in range(2):
        net = model()
        net.set_weights([weight + hvd.rank() for weight in net.get_weights()])
        net.compile(hvd.DistributedOptimizer(sgd()), "mse")
        same(fitted(net, callbacks=[callback]), alone(sgd))
        hvd.shutdown()
        hvd.init()
        if hvd.rank():
            callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)


def check_compile_as_old_programs_call_it() -> None:
    net, optimizer = model(), hvd.DistributedOptimizer(sgd())
    with raises(TypeError, "experimental_run_tf_function"):
        net.compile(optimizer, "mse", experimental_run_tf_function=False)
    with mock.patch("unisono.horovod._impl.keras.compile_hooks.is_in_force", return_value=True):
        net.compile(optimizer, "mse", experimental_run_tf_function=False)
    same(fitted(net), alone(sgd))


def check_compile_with_the_first_optimizer_of_all() -> None:
    """Python asks the model for its `compile` before it makes the optimiser."""
    owner: Any = next(kind for kind in keras.Model.__mro__ if "compile" in vars(kind))
    owner.compile = owner.compile.__wrapped__  # as it is when a program begins
    hvd.init()
    net = model()
    with mock.patch("unisono.horovod._impl.keras.compile_hooks.check_compiled") as check_compiled:
        net.compile(hvd.DistributedOptimizer(sgd()), "mse")
    assert check_compiled.mock_calls == [mock.call(net, insists=False)]
