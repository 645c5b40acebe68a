"""SAT-6: satellite patches of 28x28 pixels in red, green, blue and near infrared, six classes (Basu et al. 2015).

It comes as one MATLAB file (`train_x` 28x28x4xN, `train_y` 6xN) and as tables (a row of 3136 numbers, a row of 6)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unisono.data.sources.arrays import Arrays
from unisono.data.sources.file_list import PathName, file_facts, missing_key, require_file
from unisono.data.sources.matlab import read_mat
from unisono.errors import UsageError

CLASSES = ("building", "barren land", "trees", "grassland", "road", "water")
IMAGE = (28, 28, 4)


class SAT6(Arrays):
    """The SAT-6 data set: airborne patches of 28 x 28 pixels in red, green, blue and near infrared, six classes.

    Images are uint8 of shape (4, 28, 28); targets are 0 building, 1 barren land, 2 trees, 3 grassland, 4 road, 5 water. The
    files are read into memory. The `.mat` file holds both parts and the labels; of the CSV form give images and labels of
    the same part. Rows that are damaged, or whose label is not one of six, are refused. Local.

    Example:
        import numpy as np
        import unisono as un

        np.savetxt("X_train_sat6.csv", np.zeros((4, 28 * 28 * 4), np.uint8), "%d", ",")
        np.savetxt("y_train_sat6.csv", np.eye(6, dtype=np.uint8)[[2, 5, 0, 2]], "%d", ",")
        source = un.SAT6("X_train_sat6.csv", "y_train_sat6.csv")
        source.targets().tolist()  # -> [2, 5, 0, 2]

    Args:
        images: "sat-6-full.mat", or the CSV table of the images.
        labels: The CSV table of the labels; left out with the `.mat` file.
        part: "train" or "test", which the `.mat` file holds both; it has no effect with tables.
    """

    def __init__(self, images: PathName, labels: PathName | None = None, part: str = "train") -> None:
        paths = [require_file(Path(name).expanduser(), "SAT-6") for name in (images, labels) if name is not None]
        self.files = file_facts(paths)
        if paths[0].suffix == ".mat":
            if labels is not None:
                raise UsageError("the .mat file of SAT-6 holds both images and labels; leave the second file out")
            pictures, one_hot = _read_mat_file(paths[0], part)
        elif labels is None:
            raise UsageError(f"the table {paths[0]} holds images only; give the table of labels too")
        else:
            pictures, one_hot = (
                _read_csv_file(path, width) for path, width in zip(paths, (28 * 28 * 4, len(CLASSES)), strict=True)
            )
            pictures = pictures.reshape(-1, *IMAGE)
        if len(pictures) != len(one_hot):
            raise UsageError(
                f"SAT-6: {len(pictures)} images but {len(one_hot)} labels in {paths[-1]}; give images and labels of one set"
            )
        if not ((one_hot == 0) | (one_hot == 1)).all() or not (one_hot.sum(axis=1) == 1).all():
            raise UsageError(f"SAT-6: a row of labels in {paths[-1]} is not one-hot (one 1, five 0); it is damaged: get it again")
        channels_first = np.ascontiguousarray(np.moveaxis(pictures, 3, 1))
        super().__init__(channels_first, one_hot.argmax(axis=1).astype(np.int64))

    def describe(self) -> Mapping[str, Any]:
        return {**super().describe(), "files": self.files, "classes": list(CLASSES)}


def _read_mat_file(path: Path, part: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Returns pictures (sample first) and one-hot labels of "train" or "test" from the MATLAB form of SAT-6."""
    if part not in ("train", "test"):
        raise UsageError(f"part of SAT-6 must be train or test; received {part!r}")
    arrays = read_mat(path)
    for key in (f"{part}_x", f"{part}_y"):
        if key not in arrays:
            raise missing_key(key, arrays, str(path))
    pictures, one_hot = arrays[f"{part}_x"], arrays[f"{part}_y"]
    if pictures.shape[:3] != IMAGE or pictures.ndim != 4 or one_hot.ndim != 2 or one_hot.shape[0] != len(CLASSES):
        raise UsageError(
            f"{path} holds {pictures.shape} and {one_hot.shape}, not (28, 28, 4, N) and (6, N); give the file of SAT-6"
        )
    return np.moveaxis(pictures, 3, 0), one_hot.T


def _read_csv_file(path: Path, width: int) -> npt.NDArray[Any]:
    """Returns a table of the CSV form of SAT-6; refuses one without `width` columns."""
    try:
        table = np.loadtxt(path, dtype=np.uint8, delimiter=",", ndmin=2)
    except ValueError as error:
        raise UsageError(f"{path} is not a table of whole numbers 0..255 ({error}); give the CSV form of SAT-6") from None
    if table.shape[1] != width:
        raise UsageError(
            f"{path} has {table.shape[1]} columns, not {width}; give the images (3136 columns) first, then the labels (6)"
        )
    return table
