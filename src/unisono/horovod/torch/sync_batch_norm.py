"""What `from horovod.torch.sync_batch_norm import ...` gives."""

from unisono.compat.horovod.torch.sync_batch_norm import (
    SyncBatchNorm,
)

__all__ = [
    "SyncBatchNorm",
]
