"""Refuses layers with state that Keras does not know: it could not be saved, and would differ between workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn

from unisono.errors import UsageError
from unisono.model.keras.pure import layers_of

REMEDY = "so it would be neither saved nor the same on all workers; create it with self.add_weight(..., trainable=False)"
FOREIGN: Mapping[str, str] = {
    "TorchModuleWrapper": "a torch module hides its parameters from Keras; write the whole model in torch, or all of it in Keras",
    "TFSMLayer": "a SavedModel hides its variables from Keras; load the layers instead",
}


def refuse_hidden(model: Any) -> None:
    """Local: refuses a model of which a layer has variables of the framework itself among its attributes."""
    import keras

    is_variable = _variable_of(keras.config.backend())
    known = {id(variable._value) for variable in model.variables}
    for layer in layers_of(model):
        if type(layer).__name__ in FOREIGN and _is_of_keras(layer):
            raise UsageError(f"the layer {layer.name} cannot be trained on several workers: {FOREIGN[type(layer).__name__]}")
        if _is_of_keras(layer):
            continue
        for name, value in _attributes(layer):
            if is_variable(value) and id(value) not in known:
                raise UsageError(f"{_place_text(layer, name)} is a {type(value).__name__} that Keras does not track, {REMEDY}")


def refuse_changes(model: Any, inputs: Any) -> None:
    """Local, blocking: refuses a model of which a pass in training changes attributes of a layer that are no variables of Keras."""
    from keras import StatelessScope, ops

    own = [layer for layer in layers_of(model) if not _is_of_keras(layer)]
    if not own:
        return
    before = {(layer.name, name): _frozen(value) for layer in own for name, value in _attributes(layer)}
    variables = [(variable, ops.convert_to_tensor(variable.value)) for variable in model.variables]
    with StatelessScope(variables, collect_losses=True):  # whatever it assigns to variables is forgotten
        model(inputs, **({"training": True} if model._call_has_training_arg else {}))
        model._clear_losses()
    for layer in own:
        for name, value in _attributes(layer):
            held = before.get((layer.name, name))
            if held is not None and not _is_same(held, _frozen(value)):
                raise UsageError(f"{_place_text(layer, name)} changes with every batch, and Keras does not track it, {REMEDY}")


def _place_text(layer: Any, name: str) -> str:
    return f"{name} of the layer {layer.name} ({type(layer).__name__})"


def _is_of_keras(layer: Any) -> bool:
    return bool(type(layer).__module__.startswith("keras."))


def _attributes(layer: Any) -> Iterator[tuple[str, Any]]:
    """Yields the attributes of a layer that the user's class sets, in dicts of torch too; those of Keras itself begin with an
    underscore."""
    for name, value in vars(layer).items():
        if name in ("_parameters", "_buffers"):
            yield from ((inner, one) for inner, one in value.items() if one is not None)
        elif not name.startswith("__"):
            yield name, value


def _frozen(value: Any) -> Any:
    """Returns a copy of a value to compare with; None for what is no number."""
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Tensor):
        return value.detach().cpu().numpy().copy()
    if isinstance(value, np.ndarray):
        return value.copy()
    if hasattr(value, "numpy") and hasattr(value, "dtype") and hasattr(value, "shape") and not hasattr(value, "_value"):
        return np.array(value.numpy())
    return np.asarray(value).copy() if type(value).__module__.startswith("jaxlib") else None


def _is_same(before: Any, after: Any) -> bool:
    """Returns whether the arrays are equal, NaN being equal to NaN; False if `after` is None."""
    return after is not None and np.array_equal(before, after, equal_nan=np.asarray(before).dtype.kind == "f")


def _variable_of(backend: str) -> Callable[[Any], bool]:
    """Returns a function that tells whether a value is a variable of this backend itself, which Keras does not track."""
    if backend == "tensorflow":
        import tensorflow as tf

        return lambda value: isinstance(value, tf.Variable)
    return lambda value: backend == "torch" and isinstance(value, nn.Parameter)
