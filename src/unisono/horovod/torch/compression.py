"""What `from horovod.torch.compression import ...` gives."""

from unisono.horovod._impl.compressor import Compressor, NoneCompressor
from unisono.horovod._impl.torch.compression import Compression, FP16Compressor

__all__ = [
    "Compression",
    "Compressor",
    "FP16Compressor",
    "NoneCompressor",
]
