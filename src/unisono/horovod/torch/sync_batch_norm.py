"""What `from horovod.torch.sync_batch_norm import ...` gives."""

from unisono.horovod._impl.torch.sync_batch_norm import (
    SyncBatchNorm,
)

__all__ = [
    "SyncBatchNorm",
]
