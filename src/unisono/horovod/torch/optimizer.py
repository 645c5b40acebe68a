"""What `from horovod.torch.optimizer import ...` gives."""

from unisono.compat.horovod.torch.optimizer import (
    DistributedOptimizer,
    _DistributedOptimizer,
)

__all__ = [
    "DistributedOptimizer",
    "_DistributedOptimizer",
]
