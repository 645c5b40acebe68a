"""Scaling, averages and products, as programs written for Horovod expect them. Local, in place."""

from __future__ import annotations

import torch
from torch import Tensor

from unisono.comm.arithmetic import HALF_TYPES
from unisono.horovod._impl.engine.operation_request import ReduceOp


def scale(vector: Tensor, factor: float) -> None:
    """Multiplies a tensor by `factor`, in place. Whole numbers are scaled in float64 and cut towards zero, halves in float32."""
    if factor == 1.0:
        return
    if vector.dtype.is_floating_point:
        vector.mul_(factor)
    else:
        vector.copy_(vector.to(torch.float64).mul_(factor))


def reduction_type(dtype: torch.dtype, op: int) -> torch.dtype:
    """Returns the type in which a reduction is carried out: the sum on the way to a mean of whole numbers needs a wider type."""
    if op != ReduceOp.AVERAGE or dtype.is_floating_point:
        return dtype
    return torch.int32 if dtype.itemsize < 4 else torch.int64


def finish_reduction(vector: Tensor, factor: float, by: int) -> None:
    """Multiplies a sum by `factor` and divides it by `by`, in place. Floating-point numbers in one step: between two of them halves
    may overflow."""
    if vector.dtype.is_floating_point and factor != 1.0:
        scale(vector, factor / by)
    else:
        scale(vector, factor)
        divide(vector, by)


def divide(vector: Tensor, by: int) -> None:
    """Divides a tensor in place; whole numbers are cut towards zero."""
    if by != 1:
        vector.div_(by, rounding_mode=None if vector.dtype.is_floating_point else "trunc")


def product(out: Tensor, rows: Tensor) -> None:
    """Writes the product of the rows to `out`; halves are multiplied in float32 and rounded once."""
    wide = torch.float32 if out.dtype in HALF_TYPES else out.dtype
    total = rows[0].to(wide, copy=True)
    for row in rows[1:]:
        total.mul_(row)
    out.copy_(total)
