"""Compression of gradients: none, or halves."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unisono.horovod._impl.compressor import Compressor, NoneCompressor


class FP16Compressor(Compressor):
    """Sends floating-point numbers as float16."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        return (tensor.to(torch.float16) if tensor.dtype.is_floating_point else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        return tensor.to(ctx)


class Compression:
    """The compressions by name."""

    none = NoneCompressor
    fp16 = FP16Compressor
