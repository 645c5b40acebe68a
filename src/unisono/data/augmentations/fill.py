"""The number that augmentations put where a sample has no values."""

from __future__ import annotations

from typing import Any

import numpy as np

from unisono.errors import UsageError


def check_fill(name: str, fill: Any, fill_targets: Any, targets: bool) -> None:
    """Pure: refuses what is no number, and a number for targets that stay as they are."""
    for what, value in (("fill", fill), ("fill_targets", 0 if fill_targets is None else fill_targets)):
        if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
            raise UsageError(f"{what} of {name} must be a number; received {value!r}")
    if fill_targets is not None and not targets:
        raise UsageError(f"fill_targets of {name} has no effect, as targets stay; leave it out, or add targets=True")


def fill_for(owner: Any, leaf: Any, of_targets: bool) -> float:
    """Pure: returns the fill of an augmentation, rounded to the type of an array or tensor; refuses one that whole numbers of that
    type cannot hold."""
    what, fill = ("fill_targets", owner.fill_targets or 0) if of_targets else ("fill", owner.fill)
    kind = str(leaf.dtype).removeprefix("torch.")
    if kind.startswith(("float", "bfloat", "complex")):
        return float(np.asarray(fill, dtype=kind)) if kind in ("float16", "float32") else float(fill)
    lowest, highest = (0, 1) if kind == "bool" else (np.iinfo(kind).min, np.iinfo(kind).max)
    if not (lowest <= fill <= highest and fill == int(fill)):
        raise UsageError(f"{owner!r} cannot put {what} {fill:g} into {kind}; choose a whole number from {lowest} to {highest}")
    return int(fill)
