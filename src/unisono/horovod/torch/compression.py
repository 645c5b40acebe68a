"""What `from horovod.torch.compression import ...` gives."""

from unisono.compat.horovod.compressor import Compressor, NoneCompressor
from unisono.compat.horovod.torch.compression import Compression, FP16Compressor

__all__ = [
    "Compression",
    "Compressor",
    "FP16Compressor",
    "NoneCompressor",
]
