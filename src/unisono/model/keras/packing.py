"""Many tensors as one vector of each type, on its way into a framework that cannot share their memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor


class Packing:
    """Where each of some tensors lies in the vectors."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.shapes = [tuple(tensor.shape) for tensor in tensors]
        self.kinds = [str(tensor.dtype).removeprefix("torch.") for tensor in tensors]

    def packed(self, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
        """Local: one copy of all of them, which nobody else knows; so a framework may take it for its own."""
        with torch.no_grad():
            return {
                kind: torch.cat([one.detach().reshape(-1) for one, its in zip(tensors, self.kinds, strict=True) if its == kind])
                for kind in dict.fromkeys(self.kinds)
            }

    def joined(self, arrays: Sequence[Any]) -> dict[str, Any]:
        """Pure, in the framework: arrays of these shapes as vectors."""
        from keras import ops

        return {
            kind: ops.concatenate([ops.reshape(one, (-1,)) for one, its in zip(arrays, self.kinds, strict=True) if its == kind])
            for kind in dict.fromkeys(self.kinds)
        }

    def parts(self, vectors: dict[str, Any]) -> list[Any]:
        """Pure, in the framework: the arrays in such vectors."""
        from keras import ops

        cut = {}
        for kind in dict.fromkeys(self.kinds):
            sizes = [prod(shape) for shape, its in zip(self.shapes, self.kinds, strict=True) if its == kind]
            ends = [sum(sizes[: position + 1]) for position in range(len(sizes) - 1)]
            cut[kind] = iter(ops.split(vectors[kind], ends) if ends else [vectors[kind]])
        return [ops.reshape(next(cut[kind]), shape) for shape, kind in zip(self.shapes, self.kinds, strict=True)]

    def views(self, vectors: dict[str, Tensor]) -> list[Tensor]:
        """Local: the tensors in such vectors of torch, without a copy."""
        cut = {}
        for kind in dict.fromkeys(self.kinds):
            sizes = [prod(shape) for shape, its in zip(self.shapes, self.kinds, strict=True) if its == kind]
            cut[kind] = iter(torch.split(vectors[kind], sizes))
        return [next(cut[kind]).view(shape) for shape, kind in zip(self.shapes, self.kinds, strict=True)]
