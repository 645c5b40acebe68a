"""What `import horovod.tensorflow.keras as hvd` gives: the same as `horovod.keras`, on any backend of Keras 3. Some arguments have
another order, as in Horovod."""

from importlib import import_module
from typing import Any

from unisono.horovod._impl.keras import distributed_optimizer as optimizer
from unisono.horovod.keras import *

# Another order of arguments:
DistributedOptimizer = optimizer.DistributedOptimizer  # type: ignore[assignment]
PartialDistributedOptimizer = optimizer.PartialDistributedOptimizer  # type: ignore[assignment]


def __getattr__(name: str) -> Any:
    """Keras itself is imported with the first callback, not before the program does."""
    if name in ("callbacks", "elastic"):
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
