"""Compression of the gradients of a Keras optimiser: none, or halves. Compression is a part of the compiled step."""

from __future__ import annotations

from typing import Any

from unisono.horovod._impl.compressor import Compressor, NoneCompressor


class FP16Compressor(Compressor):
    """Sends floating-point numbers as float16."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        from keras import ops

        kind = dtype_of(tensor)
        return (ops.cast(tensor, "float16") if "float" in kind else tensor), kind

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        from keras import ops

        return ops.cast(tensor, ctx)


class Compression:
    """The compressions by name."""

    none = NoneCompressor
    fp16 = FP16Compressor


def dtype_of(tensor: Any) -> str:
    """Returns the name of a type, the same word on all backends. Local."""
    from keras import backend

    name: str = backend.standardize_dtype(tensor.dtype)
    return name
