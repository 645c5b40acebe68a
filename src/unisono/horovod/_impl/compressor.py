"""The interface of a compression of gradients, whatever the framework. Local."""

from __future__ import annotations

from typing import Any


class Compressor:
    """A compression of gradients. Users may write their own: two static methods on tensors of their framework."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor that is sent, and what is needed to undo the compression. Local."""
        raise NotImplementedError("a Compressor must define compress(tensor), which returns (tensor, ctx)")

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns the tensor in its original form. Local."""
        raise NotImplementedError("a Compressor must define decompress(tensor, ctx), which returns the tensor")


class NoneCompressor(Compressor):
    """Sends gradients as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:  # noqa: ARG004 -- there is nothing to undo
        return tensor
