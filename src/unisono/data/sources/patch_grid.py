"""Patches of a volume on a regular grid. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt


def corners(shape: Sequence[int], patch: Sequence[int], stride: Sequence[int]) -> list[tuple[int, ...]]:
    """Returns the corners of patches that cover the volume; the last patch along an axis is moved back to end with it."""
    return list(product(*(_patch_starts(length, size, step) for length, size, step in zip(shape, patch, stride, strict=True))))


def _patch_starts(length: int, size: int, step: int) -> list[int]:
    """Returns where patches of this size begin along an axis; the last ends with the axis."""
    last = max(0, length - size)
    return [*range(0, last, step), last]


def cut_out(volume: npt.NDArray[Any], corner: Sequence[int], patch: Sequence[int]) -> npt.NDArray[Any]:
    """Returns the patch at a corner, of the last axes of a volume; zeros where the patch reaches out of it."""
    window: Any = (..., *(slice(start, start + size) for start, size in zip(corner, patch, strict=True)))
    found: npt.NDArray[Any] = volume[window]
    missing = [size - have for size, have in zip(patch, found.shape[-len(patch) :], strict=True)]
    if not any(missing):
        return found
    return np.pad(found, [(0, 0)] * (found.ndim - len(patch)) + [(0, more) for more in missing])


def crop_or_pad(volume: npt.NDArray[Any], shape: Sequence[int]) -> npt.NDArray[Any]:
    """Returns a volume with its last axes brought to `shape` around its centre: cropped where longer, padded with zeros where
    shorter."""
    have = volume.shape[-len(shape) :]
    before = [max(0, (length - size) // 2) for length, size in zip(have, shape, strict=True)]
    window: Any = (..., *(slice(start, start + size) for start, size in zip(before, shape, strict=True)))
    around = [(max(0, size - length) // 2, max(0, size - length + 1) // 2) for length, size in zip(have, shape, strict=True)]
    return np.pad(volume[window], [(0, 0)] * (volume.ndim - len(shape)) + around)
