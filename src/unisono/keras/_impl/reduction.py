"""Reduces a value of all workers, as `strategy.reduce` returns it. Workers may have different numbers of samples."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from unisono.comm.base import MAX, MIN, SUM, Communicator, Op
from unisono.errors import UsageError

MEAN = "MEAN"
OPS: Mapping[str, Op] = {"SUM": SUM, MEAN: SUM, "MAX": MAX, "MIN": MIN}


def reduce_array(comm: Communicator, name: str, value: Any, axis: int | None) -> Any:
    """Collective, blocking: the value reduced over all workers, and over `axis` if it is not None, whose length may differ between
    workers. Whole numbers are summed as int64, short floating numbers as float32."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and tensorflow.is_symbolic_tensor(value):
        raise UsageError(
            "strategy.reduce was called inside tf.function, where values are unknown; reduce what that function returns"
        )
    array = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    if axis is None:
        array, axis = array[None], 0
    if not -array.ndim <= axis < array.ndim:
        raise UsageError(f"axis {axis} is not an axis of a value of shape {array.shape} (strategy.reduce)")
    part = _reduce_axis(name, array, axis)
    reduced = torch.from_numpy(np.array(part, ndmin=1)).to(comm.device)
    count = torch.tensor([array.shape[axis]], dtype=torch.int64, device=comm.device)
    comm.allreduce(reduced, OPS[name])
    comm.allreduce(count)
    if not int(count) and name != "SUM":
        raise UsageError(f"no worker has a value along axis {axis}, so there is no {name} (strategy.reduce)")
    found = reduced.cpu().numpy().reshape(np.shape(part))
    return found / int(count) if name == MEAN else found


def _reduce_axis(name: str, array: Any, axis: int) -> Any:
    """Pure: the value of one worker, which may have no samples."""
    if name in ("MAX", "MIN"):
        return (np.max if name == "MAX" else np.min)(array, axis=axis, initial=_neutral_value(name, array.dtype))
    return np.sum(array, axis=axis, dtype=np.int64 if array.dtype.kind in "biu" else np.result_type(array, np.float32))


def _neutral_value(name: str, dtype: Any) -> Any:
    """Pure: the value that changes no maximum, or no minimum."""
    if dtype.kind == "b":
        return name == "MIN"
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return limits.min if name == "MAX" else limits.max
    return -np.inf if name == "MAX" else np.inf
