"""Whether something is of Keras, told without loading it."""

from __future__ import annotations

import sys
from typing import Any


def is_keras(value: object) -> bool:
    """Local: whether it is a Keras model. Who has one has loaded Keras."""
    return _is(value, "Model")


def is_keras_optimizer(value: object) -> bool:
    """Local: an optimiser of Keras, or its class."""
    kind = value if isinstance(value, type) else type(value)
    found = _kind("Optimizer")
    return found is not None and issubclass(kind, found)


def _is(value: object, name: str) -> bool:
    found = _kind(name)
    return found is not None and isinstance(value, found)


def _kind(name: str) -> Any:
    return getattr(sys.modules.get("keras"), name, None)
