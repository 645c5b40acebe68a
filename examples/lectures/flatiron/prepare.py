"""HDF5 files for the other two programs here, in runs/lectures/nnlo: the digits of Unisono.

    python examples/lectures/flatiron/prepare.py

Ten files, digits_0.h5 to digits_9.h5, hold the images as `features` and the digits as `labels`, one-hot.
"""

from pathlib import Path

import h5py
import numpy as np

import unisono as un

FOLDER = Path("runs/lectures/nnlo")
NUM_FILES = 10


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    images, digits = un.digits()
    for number in range(NUM_FILES):
        with h5py.File(FOLDER / f"digits_{number}.h5", "w") as file:
            file["features"] = images[number::NUM_FILES].reshape(-1, 8, 8, 1)
            file["labels"] = np.eye(10, dtype=np.float32)[digits[number::NUM_FILES]]


if __name__ == "__main__":
    main()
