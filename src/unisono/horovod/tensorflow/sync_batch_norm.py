"""What `horovod.tensorflow.sync_batch_norm` gives."""

from unisono.horovod._impl.tensorflow.sync_batch_norm import SyncBatchNormalization

__all__ = ["SyncBatchNormalization"]
