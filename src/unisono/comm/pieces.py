"""Sums, minima and maxima over the ranks' parts, in rank order: the arithmetic of the shared-memory engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from unisono.comm.arithmetic import HALVES
from unisono.comm.calls import Op

_NUMPY_REDUCE: Mapping[Op, np.ufunc] = {Op.SUM: np.add, Op.MIN: np.minimum, Op.MAX: np.maximum}
_REDUCE: Mapping[Op, Callable[..., Tensor]] = {Op.SUM: torch.add, Op.MIN: torch.minimum, Op.MAX: torch.maximum}


def reduce_into(out: Tensor, parts: list[Tensor], op: Op) -> None:
    """out = parts[0] op parts[1] op ..., in this order. `out` may be one of the parts only if it is the first."""
    if len(parts) == 1:
        out.copy_(parts[0])
        return
    reduce = _REDUCE[op]
    if out.dtype in HALVES:
        total = parts[0].float()
        for part in parts[1:]:
            reduce(total, part.float(), out=total)
        out.copy_(total)
        return
    reduce(parts[0], parts[1], out=out)
    for part in parts[2:]:
        reduce(out, part, out=out)


class Pieces:
    """Lists of pieces, one piece of each rank in a list.

    NumPy's kernels are quicker than PyTorch's where one thread works, but they have one thread only, and no halves.
    """

    def __init__(self, tensors: list[list[Tensor]], in_numpy: bool) -> None:
        self._tensors = tensors
        self._arrays = [[piece.numpy() for piece in pieces] for pieces in tensors] if in_numpy else None

    def reduce(self, op: Op) -> None:
        """In each list, every piece becomes the reduction of all of them, in their order."""
        if self._arrays is not None:
            combine = _NUMPY_REDUCE[op]
            with np.errstate(all="ignore"):  # infinities are the user's business, as they are with PyTorch
                for first, *others in self._arrays:
                    for other in others:
                        combine(first, other, out=first)
                    for other in others:
                        np.copyto(other, first)
            return
        for pieces in self._tensors:
            reduce_into(pieces[0], pieces, op)
            for piece in pieces[1:]:
                piece.copy_(pieces[0])
