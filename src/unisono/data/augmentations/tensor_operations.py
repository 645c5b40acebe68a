"""What augmentations do with torch tensors; `array_operations` has the same functions for arrays. All of them are pure.

None waits for the device or depends on values, so that they can be captured. Torch moves few types without a sign: their bits are
moved as those of a type that has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from unisono.data.declared import Declared

SIGNED = ((torch.uint16, torch.int16), (torch.uint32, torch.int32), (torch.uint64, torch.int64))


def constant(owner: Declared, name: str, values: npt.NDArray[Any], like: Tensor) -> Tensor:
    """Returns constants of an augmentation where `like` is."""
    return owner._constant_on(name, values, like.device)


def flipped_where(leaf: Tensor, is_flipped: Tensor, axis: int) -> Tensor:
    """As of arrays."""
    bits, _ = _signed(leaf)
    return torch.where(is_flipped.reshape(-1, *(1,) * (leaf.ndim - 1)), bits.flip(axis), bits).view(leaf.dtype)


def windows_at(leaf: Tensor, axes: Sequence[int], starts: Sequence[Tensor], margins: Sequence[int], fill: float) -> Tensor:
    """As of arrays."""
    edges = [0] * (-2 * min(axes))  # two numbers for each axis, from the last one on
    index: list[Any] = [torch.arange(len(leaf), device=leaf.device), *[slice(None)] * (leaf.ndim - 1)]
    for axis, start, margin in zip(axes, starts, margins, strict=True):
        edges[-2 * axis - 2], edges[-2 * axis - 1], index[axis] = margin, margin, start
    bits, fill = _signed(leaf, fill)
    windows = torch.nn.functional.pad(bits, edges, value=fill)
    for axis in axes:
        windows = windows.unfold(leaf.ndim + axis, leaf.shape[axis], 1)
    return windows[tuple(index)].movedim(tuple(range(-len(axes), 0)), tuple(axes)).contiguous().view(leaf.dtype)


def centred(size: int, like: Tensor) -> Tensor:
    """As of arrays."""
    return 2 * torch.arange(size, device=like.device) - (size - 1)


def taken(leaf: Tensor, axes: Sequence[int], places: Tensor, is_inside: Tensor | None, fill: float) -> Tensor:
    """As of arrays."""
    bits, fill = _signed(leaf, fill)
    moved = bits.movedim(tuple(axes), (-2, -1))
    flat = moved.reshape(len(moved), prod(moved.shape[1:-2]), prod(moved.shape[-2:]))
    found = flat.gather(2, places[:, None].expand(-1, flat.shape[1], -1))
    if is_inside is not None:
        found.masked_fill_(~is_inside[:, None], fill)
    return found.reshape(moved.shape).movedim((-2, -1), tuple(axes)).contiguous().view(leaf.dtype)


def _signed(leaf: Tensor, fill: float = 0) -> tuple[Tensor, float]:
    """Returns a tensor and a number of its type with the same bits in a type that torch can move."""
    signed = dict(SIGNED).get(leaf.dtype)
    if signed is None:
        return leaf, fill
    return leaf.view(signed), fill if fill <= torch.iinfo(signed).max else fill - 2 ** torch.iinfo(signed).bits
