"""The embedded digits are those of scikit-learn, and they travel with the package."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from unisono.data.sources import digits as module
from unisono.data.sources.digits import digits, raw_digits


def test_the_images_are_those_of_scikit_learn() -> None:
    images, labels = raw_digits()
    assert images.shape == (1797, 8, 8) and images.dtype == np.uint8 and images.max() == 16
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    # of sklearn.datasets.load_digits(), images and target as uint8
    told = hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()
    assert told == "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"


def test_ready_for_training_they_are_rows_of_small_numbers() -> None:
    inputs, labels = digits()
    assert inputs.shape == (1797, 64) and inputs.dtype == np.float32
    assert labels.dtype == np.int64 and set(labels) == set(range(10))
    assert inputs.min() == 0 and inputs.max() == 1
    assert np.array_equal(inputs.reshape(-1, 8, 8) * 16, raw_digits()[0])


def test_origin_and_licence_lie_beside_the_file() -> None:
    text = Path(module.__file__).with_suffix(".md").read_text()
    assert "UCI" in text and "CC BY 4.0" in text
