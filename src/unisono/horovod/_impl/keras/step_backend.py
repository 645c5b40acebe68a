"""Which backend Keras runs on in this process, and how a step of it reaches the engine."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from unisono.errors import UsageError

BACKENDS = ("tensorflow", "jax", "torch")


def backend_name() -> str:
    """Returns the name of the Keras backend of this process. Local."""
    from keras import config

    name: str = config.backend()
    if name not in BACKENDS:
        raise UsageError(
            f"Keras runs on the backend {name!r}, which cannot train; set KERAS_BACKEND to one of {', '.join(BACKENDS)} before "
            "Python starts"
        )
    return name


def own_backend() -> ModuleType:
    """Returns the module `step_on_<backend>.py`, which imports that framework. Local."""
    return import_module(f"unisono.horovod._impl.keras.step_on_{backend_name()}")
