"""Recognises models of Keras and Lightning without loading either."""

from __future__ import annotations

import sys
from typing import Any

from torch import nn

MIXES_SAMPLES = "_unisono_mixes_samples"
"""Attribute of a LightningModule: whether the loss of its `training_step` is no mean over samples, once that was tried."""


def is_lightning(model: nn.Module) -> bool:
    """Pure: whether a model is a LightningModule, recognised by its attributes."""
    return all(callable(getattr(model, name, None)) for name in ("training_step", "configure_optimizers"))


def is_keras_loaded() -> bool:
    """Local: whether this process has imported Keras; without it there can be nothing of Keras."""
    return "keras" in sys.modules


def is_keras(value: object) -> bool:
    """Local: whether a value is a Keras model."""
    found = _keras_class("Model")
    return found is not None and isinstance(value, found)


def is_keras_optimizer(value: object) -> bool:
    """Local: whether a value is an optimiser of Keras, or the class of one."""
    kind = value if isinstance(value, type) else type(value)
    found = _keras_class("Optimizer")
    return found is not None and issubclass(kind, found)


def is_keras_module(model: object) -> bool:
    """Local: whether a model is the replica of a Keras model, a `KerasModule`."""
    found = sys.modules.get("unisono.model.keras.module")
    return found is not None and isinstance(model, found.KerasModule)


def _keras_class(name: str) -> Any:
    """Returns this class of Keras; None if Keras is not imported."""
    return getattr(sys.modules.get("keras"), name, None)
