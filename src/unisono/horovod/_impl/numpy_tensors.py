"""NumPy arrays as tensors of PyTorch and back, without a copy where that is possible: how other frameworks reach the engine. Local,
not blocking."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from unisono.errors import UsageError

_BFLOAT16 = "bfloat16"
"""A type that NumPy knows only through the package ml_dtypes, and PyTorch cannot exchange with it."""


def as_tensor(array: np.ndarray) -> Tensor:
    """Returns a tensor in the array's memory; a copy where that is read-only or not contiguous."""
    held = np.require(array, requirements=("C", "W"))
    if held.dtype.name == _BFLOAT16:
        return torch.from_numpy(held.view(np.int16)).view(torch.bfloat16)
    try:
        return torch.from_numpy(held)
    except TypeError as error:
        raise UsageError(
            f"arrays of {held.dtype} cannot be sent; convert them to a type that PyTorch has, such as float32"
        ) from error


def as_array(tensor: Tensor, like: np.dtype | None = None) -> np.ndarray:
    """Returns an array in the tensor's memory; `like` is its type where NumPy does not know it."""
    held = tensor.detach().cpu()
    if held.dtype == torch.bfloat16:
        plain: np.ndarray = held.view(torch.int16).numpy()
        return plain.view(_bfloat16_dtype() if like is None else like)
    array: np.ndarray = held.numpy()
    return array


def _bfloat16_dtype() -> np.dtype:
    """Returns NumPy's type for bfloat16, which comes from the package ml_dtypes."""
    import ml_dtypes

    dtype: np.dtype = np.dtype(ml_dtypes.bfloat16)
    return dtype
