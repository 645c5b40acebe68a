"""`un.augment.Shift`: samples moved by whole pixels at random."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from unisono.data.augmentations.augmentation import Augmentation
from unisono.data.augmentations.fill import check_fill, fill_for
from unisono.errors import UsageError


class Shift(Augmentation):
    """Moves samples by whole pixels at random, for `augment` of a task.

    Along each axis a sample is moved by a whole number from -pixels to pixels, all equally likely, and in an epoch always
    alike, in whichever batch it is. What leaves on one side is lost; the other side becomes `fill`. Inputs come here as the
    data give them: where a scaling made black -0.42, fill with -0.42.

    Axes are counted from the last one: -2 and -1 are height and width of (sample, height, width) and of (sample, channel,
    height, width), and -3, -2 and -1 those of a volume. Arrays in dicts and tuples are moved alike and must be equally long
    along the axes; those of one number for each sample stay. A shift by the whole length or more is refused, and so is a
    fill that the type of the inputs cannot hold, before the first step. It is declared, so that a GPU can compute it, with
    the same result. Local.

    Example:
        import numpy as np
        import unisono as un

        shift = un.augment.Shift(2, fill=-1.0)
        batch = np.zeros((3, 1, 8, 8), dtype=np.float32), np.arange(3)
        images, labels = shift(batch, un.SampleRandom(seed=0, epoch=0, indices=[4, 5, 6]))
        images.shape  # -> (3, 1, 8, 8)

    Args:
        pixels: The largest shift in both directions, or one for each axis.
        fill: The value of places that nothing was moved to.
        axes: The axes, as negative numbers.
        targets: True also moves the targets, such as the masks of a segmentation, as their inputs.
        fill_targets: As fill, of the targets, e.g. a class that the loss ignores; left out, 0.
    """

    def __init__(
        self,
        pixels: int | tuple[int, ...],
        fill: float = 0,
        *,
        axes: int | tuple[int, ...] = (-2, -1),
        targets: bool = False,
        fill_targets: float | None = None,
    ) -> None:
        super().__init__(axes, targets)
        given = tuple(pixels) if isinstance(pixels, (tuple, list)) else (pixels,) * len(self.axes)
        if any(isinstance(one, bool) or not isinstance(one, int) or one < 0 for one in given) or not any(given):
            raise UsageError(f"pixels of un.augment.Shift must be whole numbers, 0 or more and not all 0; received {pixels!r}")
        if len(given) != len(self.axes):
            raise UsageError(f"un.augment.Shift has {len(given)} numbers of pixels for {len(self.axes)} axes; give one for each")
        in_order = (axes,) if isinstance(axes, int) else tuple(axes)
        self.pixels = tuple(given[in_order.index(axis)] for axis in self.axes)
        check_fill("un.augment.Shift", fill, fill_targets, targets)
        self.fill, self.fill_targets = fill, fill_targets

    def _draw(self, random: Any) -> Any:
        # Spans differ from axis to axis, and `integers` takes one: this is what it does with the same bits.
        drawn = random.integers(0, 2**32, (len(self.axes),))
        return [(drawn[:, number] * (2 * most + 1)) >> 32 for number, most in enumerate(self.pixels)]

    def _change(self, leaf: Any, drawn: Any, operations: ModuleType, of_targets: bool) -> Any:
        return operations.windows_at(leaf, self.axes, drawn, self.pixels, fill_for(self, leaf, of_targets))

    def _check_sizes(self, place: str, sizes: tuple[int, ...]) -> None:
        for axis, most, size in zip(self.axes, self.pixels, sizes, strict=True):
            if most >= size:
                raise UsageError(
                    f"{self!r} moves samples out of sight: {place} have {size} places along axis {axis}, and the largest shift is "
                    f"{most}; use fewer than {size} pixels, or other axes"
                )

    def __repr__(self) -> str:
        pixels = self.pixels[0] if len(set(self.pixels)) == 1 else self.pixels
        more = ", targets=True" if self.targets else ""
        more += "" if self.fill_targets is None else f", fill_targets={self.fill_targets:g}"
        return f"un.augment.Shift({pixels}, fill={self.fill:g}, axes={self.axes}{more})"
