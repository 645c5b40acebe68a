"""Label maps as whole numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unisono.errors import UsageError

ROUNDING = 0.05
"""How far stored labels may lie from whole numbers: a scale factor in the file rounds them by about this much at most."""


def as_label_map(stored: npt.NDArray[Any], path: Path) -> npt.NDArray[np.int64]:
    """Pure: returns the labels of a file as whole numbers, rounded where they were stored with a scale; refuses others."""
    if stored.dtype.kind in "biu":
        return stored.astype(np.int64)
    labels: npt.NDArray[Any] = np.rint(stored)
    with np.errstate(invalid="ignore"):
        far = ~(np.abs(stored - labels) <= ROUNDING)  # NaN and infinity are far too
    if far.any():
        raise UsageError(
            f"the labels of {path} are not whole numbers ({far.sum()} of {stored.size}, e.g. {stored[far][0]:g}), as after an "
            "interpolation; store class numbers, e.g. resampled by nearest neighbour"
        )
    return labels.astype(np.int64)
