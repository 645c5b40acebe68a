"""DistributedOptimizer: an optimiser of the user's class whose gradients are those of all ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from unisono.horovod._impl.compressor import Compressor
from unisono.horovod._impl.job.process_sets import ProcessSet, global_process_set
from unisono.horovod._impl.keras.compile_hooks import agree_on_finite, watch_compile
from unisono.horovod._impl.keras.compression import Compression
from unisono.horovod._impl.keras.gradient_groups import Groups, check_groups
from unisono.horovod._impl.keras.gradient_transport import ReductionOptions
from unisono.horovod._impl.keras.reduced_updates import ReducedUpdates, ScaledLosses, inner_of
from unisono.horovod._impl.torch.submission import Average, Sum

EXCLUDED = ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern")
"""What `exclude_from_weight_decay` leaves in an optimiser: keys of variables, and a pattern of names. No configuration has it."""


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",  # noqa: ARG001 -- where TensorFlow would reduce; here it is the host
    device_sparse: str = "",  # noqa: ARG001
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Returns an optimiser of the same class, made from the configuration of the given one, with its state if it has one. Its
    updates are collective over the process set and blocking, in `fit` and in loops of your own. Local."""
    groups = check_groups(num_groups, groups)
    _check_arguments(optimizer, op, gradient_predivide_factor, backward_passes_per_step)
    options = ReductionOptions(
        title=name or f"Distributed{type(optimizer).__name__}",
        compression=compression,
        op=int(op),
        predivide=float(gradient_predivide_factor),
        sparse_as_dense=sparse_as_dense,
        groups=groups,
        process_set=process_set,
        scale_local=scale_local_gradients,
        passes=backward_passes_per_step,
        averages_passes=average_aggregated_gradients,
    )
    watch_compile()
    agree_on_finite()
    return _make_from(optimizer, options)


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Returns a distributed optimiser with which each rank keeps the variables of `local_layers` (one layer or several, built) for
    itself. Local."""
    made = DistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    inner = inner_of(made)
    for layer in _checked_layers(local_layers):
        for variable in layer.trainable_weights:
            inner.register_local_var(variable)
    return made


def _check_arguments(optimizer: Any, op: int, predivide: float, passes: int) -> None:
    """Raises `ValueError` for an optimiser that cannot be distributed, and for options that do not go together."""
    from keras.optimizers import Optimizer

    if not isinstance(optimizer, Optimizer):
        raise ValueError(
            f"optimizer must be an optimizer of Keras 3; received a {type(optimizer).__name__} (hvd.DistributedOptimizer); "
            "give keras.optimizers.SGD(...) or another of them"
        )
    if isinstance(inner_of(optimizer), ReducedUpdates):
        raise ValueError("the optimizer is already a DistributedOptimizer; pass the original optimizer")
    if not _scales_losses(optimizer) and any(
        getattr(type(optimizer), method) is not getattr(Optimizer, method) for method in ("apply", "_clip_gradients")
    ):
        raise ValueError(
            f"{type(optimizer).__name__} has its own apply(), so its gradients would not be reduced; wrap the optimizers inside it "
            "instead"
        )
    if op not in (Average, Sum):
        raise ValueError(f"op must be hvd.Average or hvd.Sum; received {op!r} (hvd.DistributedOptimizer)")
    if predivide != 1.0 and op != Average:
        raise ValueError(f"gradient_predivide_factor is for op=hvd.Average only; received {predivide} with op={op}")
    if passes < 1:
        raise ValueError(f"backward_passes_per_step must be at least 1; received {passes}")
    steps = inner_of(optimizer).gradient_accumulation_steps
    if passes > 1 and steps not in (None, passes):  # the same number is that of an optimiser that comes from a file
        raise ValueError(
            f"backward_passes_per_step={passes} and gradient_accumulation_steps={steps} of the optimizer are both given "
            "(hvd.DistributedOptimizer); give one of them"
        )


def _make_from(optimizer: Any, options: ReductionOptions) -> Any:
    """Returns an optimiser of the same class that reduces gradients with these options, with the state of the given one if it has
    one."""
    made = _make_with_scaled_losses(optimizer, options) if _scales_losses(optimizer) else _make_same_class(optimizer, options)
    if optimizer.built:
        _copy_state(made, optimizer)
    return made


def _scales_losses(optimizer: Any) -> bool:
    """Whether an optimiser is the one of mixed precision, with another one inside."""
    from keras.optimizers import LossScaleOptimizer

    return isinstance(optimizer, LossScaleOptimizer)


def _make_with_scaled_losses(optimizer: Any, options: ReductionOptions) -> Any:
    """An optimiser of mixed precision whose inner optimiser is distributed, and for which all ranks agree whether a step counts."""
    config = optimizer.get_config()
    del config["inner_optimizer"]
    agree_on_finite(type(optimizer))
    return _derived_class(optimizer, ScaledLosses)(_make_same_class(optimizer.inner_optimizer, options), **config)


def _make_same_class(optimizer: Any, options: ReductionOptions) -> Any:
    """Returns a new optimiser with the configuration of the given one, of a class derived from its class that reduces gradients."""
    config = optimizer.get_config()
    if not hasattr(optimizer._learning_rate, "assign"):
        config["learning_rate"] = optimizer._learning_rate  # a schedule; itself, as it may not be registered with Keras
    if options.passes > 1:
        config["gradient_accumulation_steps"] = options.passes
    made = _derived_class(optimizer, ReducedUpdates, _reduction_options=options).from_config(config)
    for name in EXCLUDED:
        if hasattr(optimizer, name):
            setattr(made, name, getattr(optimizer, name))
    return made


def _distributed_copy(optimizer: Any, memo: Any = None) -> Any:  # noqa: ARG001 -- as `copy.deepcopy` calls it
    """A copy that is as distributed as the given optimiser and for the same variables; the copy of Keras would be a plain one."""
    held = inner_of(optimizer)
    copy = _make_from(optimizer, held._reduction_options)
    transport = inner_of(copy)._transport
    transport.local, transport.is_elastic = set(held._transport.local), held._transport.is_elastic
    return copy


def _derived_class(optimizer: Any, front: type, **attributes: Any) -> Any:
    """A class of the same name that is derived from the user's, so that `isinstance` works. A saved model names the plain one."""
    from keras import saving

    own: type = getattr(optimizer, "_own", type(optimizer))
    attributes |= {"__module__": _module_for_saving(own), "_own": own}
    attributes |= {"__copy__": _distributed_copy, "__deepcopy__": _distributed_copy}
    kind: Any = type(own.__name__, (front, own), attributes)
    registered = saving.get_registered_name(own)
    package, is_registered, name = registered.partition(">")
    if is_registered and saving.get_custom_objects().get(registered) is own:
        saving.register_keras_serializable(package, name)(kind)
        saving.get_custom_objects()[registered] = own  # what a file is loaded with, as before
    return kind


def _module_for_saving(own: type) -> str:
    """The module where a saved model looks for the class: it finds the plain class there, on every backend."""
    from keras import optimizers

    public = getattr(optimizers, own.__name__, None)
    return "keras.optimizers" if isinstance(public, type) and issubclass(own, public) else own.__module__


def _copy_state(made: Any, optimizer: Any) -> None:
    """Copies the state of an optimiser that has been used, and that may be built without variables."""
    from keras import ops

    if optimizer._trainable_variables:
        made.build(list(optimizer._trainable_variables))
    old = {variable.name: variable for variable in optimizer.variables}
    same = len(made.variables) == len(optimizer.variables)
    pairs = zip(made.variables, optimizer.variables if same else (old.get(one.name) for one in made.variables), strict=True)
    for variable, before in pairs:
        if before is not None:  # else it is where gradients of several passes are added up
            variable.assign(np.array(ops.convert_to_numpy(before)))  # a copy: on JAX a step uses up what it is given


def _checked_layers(local_layers: Any) -> Iterable[Any]:
    """Returns one layer or several as a list. Raises `ValueError` for what is no layer or is not built."""
    from keras.layers import Layer

    layers = [local_layers] if isinstance(local_layers, Layer) else list(local_layers or ())
    for layer in layers:
        if not isinstance(layer, Layer):
            raise ValueError(f"local_layers must be layers of Keras; received a {type(layer).__name__}")
        if not layer.built:
            raise ValueError(f"the local layer {layer.name} is not built, so its variables are not known; build the model first")
    return layers
