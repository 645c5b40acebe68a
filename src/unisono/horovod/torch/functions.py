"""What `from horovod.torch.functions import ...` gives."""

from unisono.horovod._impl.torch.object_exchange import (
    allgather_object,
    broadcast_object,
)
from unisono.horovod._impl.torch.replicas import (
    broadcast_optimizer_state,
    broadcast_parameters,
)

__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]
