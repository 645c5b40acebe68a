"""`un.augment.Flip`: samples mirrored at random."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from unisono.data.augmentations.augmentation import Augmentation
from unisono.errors import UsageError


class Flip(Augmentation):
    """Mirrors samples at random along an axis, for `augment` of a task.

    Each sample is mirrored with the given probability, and in an epoch always alike, in whichever batch it is. Axes are
    counted from the last one: with (sample, channel, height, width), -1 mirrors left and right and -2 top and bottom. With
    several axes each is decided by itself, so that half of the samples are mirrored along each of them.

    Arrays in dicts and tuples are mirrored alike and must have the same length along the axis; those of one number for each
    sample stay. An axis that the inputs do not have is refused before the first step. It is declared, so that a GPU can
    compute it, with the same result. Local.

    Example:
        import numpy as np
        import unisono as un

        flip = un.augment.Flip(axis=-1, probability=1.0)
        images, labels = flip((np.array([[1, 2, 3]]), np.array([0])), un.SampleRandom(seed=0, epoch=0, indices=[7]))
        images.tolist()  # -> [[3, 2, 1]]

    Args:
        axis: The axis, or several, as negative numbers.
        probability: From 0 to 1.
        targets: True also mirrors the targets, such as the masks of a segmentation, as their inputs.
    """

    def __init__(self, axis: int | tuple[int, ...] = -1, probability: float = 0.5, *, targets: bool = False) -> None:
        super().__init__(axis, targets)
        if isinstance(probability, bool) or not isinstance(probability, (int, float)) or not 0.0 <= probability <= 1.0:
            raise UsageError(f"probability of un.augment.Flip must lie in 0..1; received {probability!r}")
        self.probability = float(probability)

    def _draw(self, random: Any) -> Any:
        return random.flip(self.probability, (len(self.axes),))

    def _change(self, leaf: Any, drawn: Any, operations: ModuleType, of_targets: bool) -> Any:  # noqa: ARG002 - no fill
        for number, axis in enumerate(self.axes):
            leaf = operations.flipped_where(leaf, drawn[:, number], axis)
        return leaf

    def __repr__(self) -> str:
        axis = self.axes[0] if len(self.axes) == 1 else self.axes
        return f"un.augment.Flip(axis={axis}, probability={self.probability:g}{', targets=True' if self.targets else ''})"
