"""What `horovod.tensorflow.sync_batch_norm` gives."""

from unisono.compat.horovod.tensorflow.sync_batch_norm import SyncBatchNormalization

__all__ = ["SyncBatchNormalization"]
