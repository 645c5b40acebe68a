"""What a compression of gradients is, whatever the framework. Local."""

from __future__ import annotations

from typing import Any


class Compressor:
    """Users may write their own: two static methods on tensors of their framework."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Local: what travels, and what is needed to undo it."""
        raise NotImplementedError("a Compressor must say how a tensor travels; define compress(tensor), which gives (tensor, ctx)")

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Local: as it was."""
        raise NotImplementedError("a Compressor must say how a tensor comes back; define decompress(tensor, ctx)")


class NoneCompressor(Compressor):
    """As it is."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:  # noqa: ARG004 -- there is nothing to undo
        return tensor
