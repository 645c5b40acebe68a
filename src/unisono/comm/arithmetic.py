"""The arithmetic of reductions: operands come in a given order, halves are summed in float32 and rounded once.

The order matters for the last bits: min(+0, -0) and the sum of two NaNs depend on which operand stands first. So nothing
here swaps its operands, and members that combine the same operands in the same order hold the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from unisono.comm.base import MAX, MIN, SUM, Communicator, Op

HALF_TYPES = (torch.float16, torch.bfloat16)
"""Types too narrow to sum in: they are summed in float32."""

_COMBINE: Mapping[Op, Callable[..., Tensor]] = {SUM: torch.add, MIN: torch.minimum, MAX: torch.maximum}


def combine(first: Tensor, second: Tensor, op: Op, out: Tensor) -> None:
    """Local: computes `out = first op second`; `out` may be either of them."""
    _COMBINE[op](first, second, out=out)


def reduce_parts(parts: Sequence[Tensor], op: Op) -> Tensor:
    """Local: returns a new tensor, `parts` combined from first to last."""
    dtype = parts[0].dtype
    wide = torch.float32 if op is SUM and dtype in HALF_TYPES else dtype
    total = parts[0].to(wide, copy=True)
    for part in parts[1:]:
        combine(total, part.to(wide), op, total)
    return total.to(dtype)


class Scratch:
    """Buffers that are kept from call to call: fresh pages cost more than a small message."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._kept: dict[torch.dtype, Tensor] = {}

    def get(self, numel: int, dtype: torch.dtype) -> Tensor:
        """Local: returns an uninitialised buffer, valid until the next `get` of this type."""
        kept = self._kept.get(dtype)
        if kept is None or kept.numel() < numel:
            kept = self._kept[dtype] = self._comm.empty(numel, dtype)
        return kept[:numel]
