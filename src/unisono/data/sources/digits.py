"""Scikit-learn's handwritten digits, a real data set small enough to be part of the package; `digits.md` tells its origin."""

from __future__ import annotations

from importlib import resources

import numpy as np
import numpy.typing as npt

BRIGHTEST = 16
"""The largest value of a pixel."""


def digits() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Local: returns 1,797 images of 64 pixels, scaled to 0..1, shape (1797, 64), and their labels 0..9."""
    images, labels = raw_digits()
    return (images.reshape(len(images), -1) / np.float32(BRIGHTEST)).astype(np.float32), labels.astype(np.int64)


def raw_digits() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Local: returns the images as they were published, (1797, 8, 8) with values 0..16, and their labels 0..9."""
    with resources.files("unisono.data.sources").joinpath("digits.npz").open("rb") as file, np.load(file) as held:
        return held["images"], held["labels"]
