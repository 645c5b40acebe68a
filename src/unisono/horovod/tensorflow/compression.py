"""What `horovod.tensorflow.compression` gives."""

from unisono.compat.horovod.compressor import Compressor, NoneCompressor
from unisono.compat.horovod.tensorflow.compression import Compression, FP16Compressor

__all__ = ["Compression", "Compressor", "NoneCompressor", "FP16Compressor"]
