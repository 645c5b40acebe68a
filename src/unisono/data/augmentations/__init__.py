"""Declared augmentations, public as `un.augment`: one file each, on arrays and on tensors with the same numbers.

Imported by unisono; imports data.
"""

from unisono.data.augmentations.chain import Chain
from unisono.data.augmentations.flip import Flip
from unisono.data.augmentations.rotate import Rotate
from unisono.data.augmentations.shift import Shift

__all__ = [
    "Chain",
    "Flip",
    "Rotate",
    "Shift",
]
