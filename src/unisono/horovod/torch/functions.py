"""What `from horovod.torch.functions import ...` gives."""

from unisono.compat.horovod.torch.objects import (
    allgather_object,
    broadcast_object,
)
from unisono.compat.horovod.torch.replicas import (
    broadcast_optimizer_state,
    broadcast_parameters,
)

__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]
