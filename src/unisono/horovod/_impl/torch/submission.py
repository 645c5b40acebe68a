"""Submission of an operation: what may be submitted, and under which name. Local, not blocking."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from unisono.comm.calls import DTYPES
from unisono.horovod._impl.engine.handles import Finish
from unisono.horovod._impl.engine.operation_entry import Entry
from unisono.horovod._impl.engine.operation_request import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BROADCAST,
    MOVED,
    REDUCESCATTER,
    UNNAMED,
    ReduceOp,
    Request,
)
from unisono.horovod._impl.exceptions import HorovodInternalError
from unisono.horovod._impl.job.process_sets import ProcessSet
from unisono.horovod._impl.job.process_state import PROCESS

__all__ = ["Adasum", "Average", "Max", "Min", "Product", "Sum"]

Average, Sum, Adasum, Min, Max, Product = _OPS = tuple(int(op) for op in ReduceOp)

_OF_TRUTH = (Min, Max, Product)
"""Reductions that make truth values of truth values."""

_COUNT_ROWS = (ALLGATHER, ALLTOALL, REDUCESCATTER)


def start(
    kind: str,
    tensors: Sequence[Tensor],
    process_set: ProcessSet,
    finish: Finish,
    *,
    name: str | None = None,
    outputs: Sequence[Tensor] = (),
    grouped: bool = False,
    op: int = Sum,
    root: int = 0,
    prescale: float = 1.0,
    postscale: float = 1.0,
    splits: Tensor | Sequence[int] | None = None,
) -> int:
    """Submits an operation and returns its handle; `finish` makes the result from its entry. `outputs` is `tensors` for operations
    in place."""
    if not isinstance(process_set, ProcessSet):
        raise ValueError(f"process_set must be a ProcessSet; received {process_set!r} (hvd.{kind}); leave it out for all ranks")
    channel = process_set.channel()
    title = f"grouped_{kind}" if grouped else kind
    # The number is drawn before anything is looked at: a rank that is refused must count as the others do.
    full_name = f"{title}.{name}" if name is not None else f"{title}.{UNNAMED}.{channel.number(title)}"
    for tensor in tensors:
        _check_tensor(kind, full_name, tensor, op)
    if (prescale != 1.0 or postscale != 1.0) and any(tensor.dtype == torch.bool for tensor in tensors):
        raise ValueError(f"{full_name}: boolean tensors cannot be scaled; leave prescale_factor and postscale_factor out")
    if kind == BROADCAST and root not in channel.ranks:
        raise ValueError(f"{full_name}: root_rank must be a rank of {process_set} ({list(channel.ranks)}); received {root!r}")
    request = Request(  # by position, which takes half the time of names
        full_name,
        kind,
        tuple([(tensor.dtype, tuple(tensor.shape)) for tensor in tensors]),
        int(op),
        int(root),
        float(prescale),
        float(postscale),
        tuple(splits_of(tensors[0], splits, len(channel.ranks))) if kind == ALLTOALL else (),
        _common_device(full_name, tensors),
        name is not None,
    )
    entry = Entry(request, tensors, outputs)
    channel.submit(entry)
    return PROCESS.handles.add(entry, finish)


def splits_of(tensor: Tensor, splits: Tensor | Sequence[int] | None, size: int) -> list[int]:
    """Returns how many rows go to each rank. Local."""
    num_rows = tensor.shape[0]
    if splits is None:
        if num_rows % size:
            raise ValueError(f"alltoall: {num_rows} rows cannot be divided equally among {size} ranks; give splits")
        return [num_rows // size] * size
    if isinstance(splits, Tensor) and (splits.dtype != torch.int32 or splits.dim() != 1):
        raise ValueError(f"alltoall: splits must be a vector of int32; received {splits.dtype} with shape {list(splits.shape)}")
    rows = [int(count) for count in (splits.tolist() if isinstance(splits, Tensor) else splits)]
    if len(rows) != size or min(rows) < 0 or sum(rows) > num_rows:
        raise ValueError(
            f"alltoall: splits must be {size} numbers, 0 or more, with a sum of at most {num_rows} rows; received {rows}"
        )
    return rows


def _check_tensor(kind: str, name: str, tensor: Tensor, op: int) -> None:
    """Raises an error with a remedy for a tensor that an operation of this kind cannot take."""
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{name}: received a {type(tensor).__name__}; give a torch.Tensor")
    if tensor.layout != torch.strided:
        raise ValueError(
            f"{name}: {kind} of a sparse tensor is not possible; give tensor.to_dense(), or call hvd.sparse_allreduce_async"
        )
    if not tensor.is_contiguous():
        raise ValueError(f"{name}: the tensor of shape {list(tensor.shape)} is not contiguous; give tensor.contiguous()")
    if tensor.is_neg():
        raise ValueError(f"{name}: the tensor is a view that negates another one; give tensor.resolve_neg()")
    reduces = kind in (ALLREDUCE, REDUCESCATTER)
    if tensor.dtype not in (DTYPES if reduces and op not in _OF_TRUTH else MOVED):
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in (DTYPES if reduces else MOVED))
        truth = "; for boolean tensors use hvd.Min (all), hvd.Max (any) or hvd.Product" if tensor.dtype == torch.bool else ""
        raise ValueError(f"{name}: {kind} of {tensor.dtype} is not possible; give one of {known}{truth}")
    if kind in _COUNT_ROWS and tensor.dim() == 0:
        raise ValueError(f"{name}: {kind} needs tensors with at least one dimension; received a scalar; give tensor.view(1)")
    if kind == REDUCESCATTER and op not in (Average, Sum):
        raise HorovodInternalError(f"{name}: reducescatter supports hvd.Average and hvd.Sum only; received op={op!r}")
    if reduces and op == Adasum and not tensor.dtype.is_floating_point:
        raise ValueError(f"{name}: Adasum of {tensor.dtype} is not possible; give floating-point numbers")


def _common_device(name: str, tensors: Sequence[Tensor]) -> str:
    """Returns "cpu" or "cuda", where all tensors are. Raises `ValueError` if they are on several kinds of devices, or on others."""
    for tensor in tensors:
        if not tensor.is_cpu:
            break
    else:
        return "cpu"
    kinds = {tensor.device.type for tensor in tensors}
    if len(kinds) > 1 or not kinds <= {"cpu", "cuda"}:
        raise ValueError(
            f"{name}: the tensors are on {', '.join(sorted(kinds))}; give tensors that are all on the CPU or all on CUDA"
        )
    return kinds.pop()


def choose_op(op: int | None, average: bool | None) -> int:
    """Returns the reduction that is meant by `op` or, in old programs, `average`. Pure."""
    if op is not None and average is not None:
        raise ValueError("op and average are both given; give op=hvd.Average or op=hvd.Sum, and leave average out")
    if average is not None:
        warnings.warn("average= is deprecated; give op=hvd.Average or op=hvd.Sum", DeprecationWarning, stacklevel=3)
        return Average if average else Sum
    if op is None:
        return Average
    if op not in _OPS:
        raise ValueError(f"op must be one of hvd.Average, Sum, Adasum, Min, Max, Product; received {op!r}")
    return int(op)
