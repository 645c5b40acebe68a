"""Makes a replica of a Keras model of a task; refuses, before any work starts, models that cannot be trained exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unisono.errors import UsageError
from unisono.model.keras.additivity import refuse_what_cannot_be_added, try_losses
from unisono.model.keras.backends import make_backend
from unisono.model.keras.hidden_state import refuse_changes, refuse_hidden
from unisono.model.keras.module import KerasModule
from unisono.model.keras.pure import Pure
from unisono.model.torch.body import call


def make_replica(model: Any, learns: bool = True) -> KerasModule:
    """Local: returns the replica of a Keras model. A model that is only applied (`learns` false) may be frozen as a whole."""
    name = type(model).__name__
    if not model.built:
        raise UsageError(
            f"the Keras model {name} is not built, so it has no weights yet; begin it with keras.Input(shape=...), or call "
            "model.build(input_shape) in model()"
        )
    _refuse_own_steps(model)
    if learns and not model.trainable_variables:
        raise UsageError(f"the Keras model {name} has no trainable weights; set trainable=True on a layer")
    for variable in model.trainable_variables:
        if variable.overwrite_with_gradient:
            raise UsageError(
                f"{variable.path} is overwritten with its gradient (float8), which cannot be averaged over workers; use another "
                "dtype policy"
            )
    if any(variable.dtype == "float64" for variable in model.trainable_variables):
        _keep_doubles()
    pure = Pure(model)
    module = KerasModule(pure, make_backend(pure))
    refuse_hidden(model)
    return module


def _keep_doubles() -> None:
    """Local, for the whole process: keeps float64. On torch and JAX Keras takes float32 for the result of many operations on
    float64, whatever `floatx` says; who asks for float64 gets it."""
    from keras.src.backend.common import dtypes

    dtypes.BIT64_TO_BIT32_DTYPE["float64"] = "float64"


def compile_as(module: KerasModule, loss: Any, metrics: Sequence[Any]) -> None:
    """Local: compiles a model that is not compiled with the loss and the metrics of the task; a compiled one has its own."""
    model, name = module.pure.model, type(module.pure.model).__name__
    if model.compiled and model._compile_loss is not None:
        for what, given in (("loss", loss), ("metrics", metrics or None)):
            if given is not None:
                raise UsageError(f"the task and compile() of the Keras model {name} both give {what}; leave one out")
        return
    says_it_itself = not type(model).compute_loss.__module__.startswith("keras.") or bool(model.losses)
    if model.compiled and says_it_itself and loss is None and not metrics:
        return  # compiling it again would drop its metrics, and its compile() may be its own, with other arguments
    if loss is None and not says_it_itself:
        raise UsageError(
            f"the Keras model {name} has no loss; compile it with one, or name one in the task, e.g. loss='cross_entropy'"
        )
    optimizer = model.optimizer if model.compiled else None
    try:
        model.compile(optimizer=optimizer, loss=_loss_for_keras(loss), metrics=list(metrics) or None)
    except ValueError as error:
        raise UsageError(f"the Keras model {name} cannot be compiled: {str(error).splitlines()[0]}") from error


def build_with(module: KerasModule, inputs: Any, targets: Any) -> None:
    """Local, blocking: builds losses and metrics, which take their shapes from two samples, tensors on the host."""
    from keras import StatelessScope, ops, tree

    model = module.pure.model
    refuse_changes(model, tree.map_structure(lambda one: ops.convert_to_tensor(one.cpu().numpy()), inputs))
    targets = tree.map_structure(lambda one: ops.convert_to_tensor(one.cpu().numpy()), targets)
    found = call(module, inputs)
    outputs = tree.map_structure(lambda one: ops.convert_to_tensor(one.detach().float().cpu().numpy()), found)
    try:
        if model._compile_loss is not None and not model._compile_loss.built:
            model._compile_loss.build(targets, outputs)
        if model._compile_metrics is not None and not model._compile_metrics.built:
            model._compile_metrics.build(targets, outputs)
        if model._compile_metrics is not None:
            with StatelessScope():  # some create their variables at the first update, outside of a graph
                model._compile_metrics.update_state(targets, outputs)
        module.pure.mixing_loss = try_losses(model, targets, outputs)
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise UsageError(f"the loss or the metrics of the Keras model do not fit the data: {str(error).splitlines()[0]}") from error
    module.pure.compute_metrics_with_batches()
    if model._compile_metrics is not None:
        refuse_what_cannot_be_added(model._compile_metrics, targets, outputs)


def _loss_for_keras(loss: Any) -> Any:
    """Returns Keras's loss for the names "cross_entropy" and "bce", from logits; any other loss as it is."""
    import keras

    if loss == "cross_entropy":
        return _cross_entropy
    if loss == "bce":
        return keras.losses.BinaryCrossentropy(from_logits=True)
    return loss


def _cross_entropy(targets: Any, outputs: Any) -> Any:
    """Returns the cross entropy of scores that are not normalised, as in torch: targets are labels, or one probability for each
    class."""
    from keras import losses

    if len(targets.shape) == len(outputs.shape) and targets.shape[-1] == outputs.shape[-1]:
        return losses.categorical_crossentropy(targets, outputs, from_logits=True)
    return losses.sparse_categorical_crossentropy(targets, outputs, from_logits=True)


def _refuse_own_steps(model: Any) -> None:
    """Refuses models with a train_step, test_step or predict_step of the user, and compile options that cannot be honoured."""
    import keras

    name = type(model).__name__
    for step in ("train_step", "test_step", "predict_step"):
        written = getattr(type(model), step, None)
        if written is not None and not written.__module__.startswith("keras."):
            raise UsageError(
                f"the Keras model {name} has its own {step}, which would run on one worker only; define the loss in compute_loss, "
                "which is used on every backend"
            )
    if keras.config.backend() == "torch" and model.compiled and model.jit_compile:
        raise UsageError(f"jit_compile of {name} is not possible on the backend torch; leave it out")
    if model.compiled and model.steps_per_execution > 1:
        raise UsageError(
            f"steps_per_execution {model.steps_per_execution} of {name} is not possible, as the workers synchronize after every "
            "step; leave it out"
        )
