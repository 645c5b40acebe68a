"""Scikit-learn's handwritten digits, a real data set small enough to be part of the package; `digits.md` tells its origin."""

from __future__ import annotations

from importlib import resources

import numpy as np
import numpy.typing as npt

BRIGHTEST = 16
"""The largest value of a pixel."""


def digits() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Returns 1,797 images of handwritten digits, and their labels: a real data set that is part of the package.

    Images are float32 of shape (1797, 64), from 0 to 1; labels are int64, from 0 to 9. They are scikit-learn's, from the
    UCI repository (CC BY 4.0). Nothing is downloaded. Local.

    Example:
        import unisono as un

        images, labels = un.digits()
        images.shape, labels[:5].tolist()  # -> ((1797, 64), [0, 1, 2, 3, 4])
    """
    images, labels = raw_digits()
    return (images.reshape(len(images), -1) / np.float32(BRIGHTEST)).astype(np.float32), labels.astype(np.int64)


def raw_digits() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Local: returns the images as they were published, (1797, 8, 8) with values 0..16, and their labels 0..9."""
    with resources.files("unisono.data.sources").joinpath("digits.npz").open("rb") as file, np.load(file) as held:
        return held["images"], held["labels"]
