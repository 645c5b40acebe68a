"""What `horovod.tensorflow.compression` gives."""

from unisono.horovod._impl.compressor import Compressor, NoneCompressor
from unisono.horovod._impl.tensorflow.compression import Compression, FP16Compressor

__all__ = ["Compression", "Compressor", "NoneCompressor", "FP16Compressor"]
