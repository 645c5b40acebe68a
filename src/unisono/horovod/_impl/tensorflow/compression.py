"""Compression of gradients: none, or halves."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from unisono.horovod._impl.compressor import Compressor, NoneCompressor


class FP16Compressor(Compressor):
    """Sends floating-point numbers as float16."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        held = tf.convert_to_tensor(tensor)
        return (tf.cast(held, tf.float16) if held.dtype.is_floating else held), held.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tf.cast(tensor, ctx)


class Compression:
    """The compressions by name."""

    none = NoneCompressor
    fp16 = FP16Compressor
