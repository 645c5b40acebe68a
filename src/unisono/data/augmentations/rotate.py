"""`un.augment.Rotate`: samples turned at random.

    source = R(angle) (place - centre) + centre, rounded to the nearest place

computed in whole numbers: twice the distance from the centre times cosine and sine in units of 2**-30. Sums of whole numbers are
not rounded, so that every processor and every compiler takes the same place.
"""

from __future__ import annotations

from math import cos, pi, sin
from types import ModuleType
from typing import Any

import numpy as np

from unisono.data.augmentations.augmentation import Augmentation
from unisono.data.augmentations.fill import check_fill, fill_for
from unisono.errors import UsageError

BITS = 30
"""Of cosine and sine: the error stays below a hundred-thousandth of a place in samples of ten thousand places."""
STEPS = 4096
"""Angles on either side of 0."""


class Rotate(Augmentation):
    """Turns samples at random in the plane of two axes, for `augment` of a task.

    With `degrees` a sample is turned around its centre by an angle from -degrees to degrees, one of 8,193 that are equally
    likely. Every place gets the value of the nearest one, so that masks keep their classes; places that come from outside
    become `fill`. With `quarter_turns` it is turned by 0, 90, 180 or 270 degrees, which only moves values; the two axes
    must be equally long. A sample is turned alike in whichever batch it is, until the next epoch.

    Axes are counted from the last one: -2 and -1 are height and width of (sample, height, width) and of (sample, channel,
    height, width). Arrays in dicts and tuples are turned alike and must be equally long along the axes; those of one number
    for each sample stay. Inputs that do not fit are refused before the first step. It is declared, so that a GPU can compute
    it, with the same result. Local.

    Example:
        import numpy as np
        import unisono as un

        rotate = un.augment.Rotate(quarter_turns=True)
        batch = np.arange(4.0).reshape(1, 2, 2), np.array([0])
        images, labels = rotate(batch, un.SampleRandom(seed=0, epoch=0, indices=[4]))
        sorted(images.ravel().tolist())  # -> [0.0, 1.0, 2.0, 3.0]

    Args:
        degrees: The largest angle in both directions, above 0 and at most 180.
        fill: The value of places that come from outside.
        quarter_turns: True turns by quarters, instead of degrees.
        axes: The two axes of the plane, as negative numbers.
        targets: True also turns the targets, such as the masks of a segmentation, as their inputs.
        fill_targets: As fill, of the targets, e.g. a class that the loss ignores; left out, 0.
    """

    def __init__(
        self,
        degrees: float | None = None,
        fill: float = 0,
        *,
        quarter_turns: bool = False,
        axes: tuple[int, int] = (-2, -1),
        targets: bool = False,
        fill_targets: float | None = None,
    ) -> None:
        super().__init__(axes, targets)
        if len(self.axes) != 2:
            raise UsageError(f"un.augment.Rotate turns in the plane of two axes; received {axes!r}")
        if (degrees is None) != bool(quarter_turns):
            raise UsageError("un.augment.Rotate needs either degrees or quarter_turns=True; for both use un.augment.Chain of two")
        if degrees is not None and (type(degrees) not in (int, float) or not 0 < degrees <= 180):
            raise UsageError(f"degrees of un.augment.Rotate must lie above 0 and at most at 180; received {degrees!r}")
        check_fill("un.augment.Rotate", fill, fill_targets, targets)
        if quarter_turns and (fill != 0 or fill_targets is not None):
            raise UsageError(
                "the fill of un.augment.Rotate has no effect with quarter turns, which leave no place empty; leave it out"
            )
        self.degrees, self.fill, self.fill_targets = degrees, fill, fill_targets
        self._table = _table_of(degrees)

    def _draw(self, random: Any) -> Any:
        return random.integers(0, len(self._table))

    def _change(self, leaf: Any, drawn: Any, operations: ModuleType, of_targets: bool) -> Any:
        height, width = (leaf.shape[axis] for axis in self.axes)
        turned = operations.constant(self, "table", self._table, leaf)[drawn][:, :, None, None]
        cosine, sine = turned[:, 0], turned[:, 1]
        down, right = operations.centred(height, leaf)[:, None], operations.centred(width, leaf)[None, :]
        # Twice the distance in units of 2**-BITS; half a place is added and the shift rounds down.
        row = (cosine * down + sine * right + (height << BITS)) >> (BITS + 1)
        column = (cosine * right - sine * down + (width << BITS)) >> (BITS + 1)
        places = row.clip(0, height - 1) * width + column.clip(0, width - 1)
        if self.degrees is None:
            return operations.taken(leaf, self.axes, places.reshape(len(leaf), height * width), None, 0)
        is_inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        flat = (one.reshape(len(leaf), height * width) for one in (places, is_inside))
        return operations.taken(leaf, self.axes, *flat, fill_for(self, leaf, of_targets))

    def _check_sizes(self, place: str, sizes: tuple[int, ...]) -> None:
        if self.degrees is None and sizes[0] != sizes[1]:
            raise UsageError(
                f"{self!r} needs axes of one length; {place} have {sizes[0]} and {sizes[1]} places along axes {self.axes}. Use "
                "degrees, or un.augment.Flip along both axes"
            )

    def __repr__(self) -> str:
        how = "quarter_turns=True" if self.degrees is None else f"{self.degrees:g}, fill={self.fill:g}"
        more = ", targets=True" if self.targets else ""
        more += "" if self.fill_targets is None else f", fill_targets={self.fill_targets:g}"
        return f"un.augment.Rotate({how}, axes={self.axes}{more})"


def _table_of(degrees: float | None) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Pure: cosine and sine of each angle that may be drawn, in units of 2**-BITS."""
    angles = [0.0, 90.0, 180.0, 270.0] if degrees is None else [degrees * step / STEPS for step in range(-STEPS, STEPS + 1)]
    return np.array([[round(2**BITS * part(angle * pi / 180)) for part in (cos, sin)] for angle in angles], dtype=np.int64)
