"""What augmentations do with NumPy arrays; `tensor_operations` has the same functions for tensors. All of them are pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from unisono.data.declared import Declared

Array = npt.NDArray[Any]


def constant(owner: Declared, name: str, values: Array, like: Array) -> Array:  # noqa: ARG001 - tensors have devices
    """Returns constants of an augmentation where `like` is."""
    return values


def flipped_where(leaf: Array, is_flipped: Array, axis: int) -> Array:
    """Returns the samples, those of which the flag is set with an axis in reverse order."""
    return np.where(is_flipped.reshape(-1, *(1,) * (leaf.ndim - 1)), np.flip(leaf, axis), leaf)


def windows_at(leaf: Array, axes: Sequence[int], starts: Sequence[Array], margins: Sequence[int], fill: float) -> Array:
    """Returns a window of each sample, as large as the sample, after margins of `fill` were laid around it. `starts` says for each
    axis where the windows of the samples begin."""
    edges = [(0, 0)] * leaf.ndim
    index: list[Any] = [np.arange(len(leaf)), *[slice(None)] * (leaf.ndim - 1)]
    for axis, start, margin in zip(axes, starts, margins, strict=True):
        edges[axis], index[axis] = (margin, margin), start
    padded = np.pad(leaf, edges, constant_values=fill)
    windows = np.lib.stride_tricks.sliding_window_view(padded, [leaf.shape[axis] for axis in axes], tuple(axes))
    # The axes of a window are the last ones here; those that say where it begins go.
    return np.ascontiguousarray(np.moveaxis(windows[tuple(index)], range(-len(axes), 0), axes))


def centred(size: int, like: Array) -> Array:  # noqa: ARG001 - as above
    """Returns twice the distance of each place of an axis from its centre, whole numbers."""
    return 2 * np.arange(size) - (size - 1)


def taken(leaf: Array, axes: Sequence[int], places: Array, is_inside: Array | None, fill: float) -> Array:
    """Returns the samples with every place of a plane taken from another one of the same sample, or `fill` where that lies outside.
    `places` and `is_inside` are (sample, place); places are counted row by row."""
    moved = np.moveaxis(leaf, axes, (1, 2))
    flat = moved.reshape(len(moved), prod(moved.shape[1:3]), prod(moved.shape[3:]))
    found = flat[np.arange(len(flat))[:, None], places]
    if is_inside is not None:
        found[~is_inside] = fill
    return np.ascontiguousarray(np.moveaxis(found.reshape(moved.shape), (1, 2), axes))
