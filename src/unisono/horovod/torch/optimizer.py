"""What `from horovod.torch.optimizer import ...` gives."""

from unisono.compat.horovod.torch.optimizer import DistributedOptimizer
from unisono.compat.horovod.torch.reduced_optimizer import _DistributedOptimizer

__all__ = [
    "DistributedOptimizer",
    "_DistributedOptimizer",
]
