"""What `from horovod.torch.optimizer import ...` gives."""

from unisono.horovod._impl.torch.distributed_optimizer import DistributedOptimizer
from unisono.horovod._impl.torch.reduced_optimizer import _DistributedOptimizer

__all__ = [
    "DistributedOptimizer",
    "_DistributedOptimizer",
]
