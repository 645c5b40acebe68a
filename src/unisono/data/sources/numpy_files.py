"""NumPy's own files: `.npy` is mapped into memory and read page by page, `.npz` is loaded."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unisono.data.batch import as_arrays, batch_of, label_array, shapes
from unisono.data.source import Indices, Source
from unisono.data.sources.array_keys import chosen_keys
from unisono.data.sources.arrays import Arrays
from unisono.data.sources.file_list import PathName, file_facts, missing_key, require_file, unreadable
from unisono.data.tree import leaves, map_tree, num_rows
from unisono.data.unpacked_size import check_zip
from unisono.errors import UsageError

BROKEN = (ValueError, OSError, EOFError, zipfile.BadZipFile)
"""Exceptions that NumPy raises for a file that is cut off or of another kind."""


class Npy(Source):
    """`Npy("x.npy", "y.npy")`: a nesting of paths for inputs, targets and weights. Processes of a node share the pages."""

    def __init__(self, inputs: Any, targets: Any = None, weights: Any = None) -> None:
        self.paths = map_tree(lambda name: require_file(Path(name).expanduser(), "a .npy file"), batch_of(inputs, targets, weights))
        self._batch: Any = None
        self._num_samples = num_rows(self._memory_mapped(), "the .npy files")

    def __len__(self) -> int:
        return self._num_samples

    def read(self, indices: Indices) -> Any:
        return map_tree(lambda leaf: np.take(leaf, indices, axis=0), self._memory_mapped())

    def targets(self) -> npt.NDArray[Any] | None:
        batch = self._memory_mapped()
        labels = label_array(batch[1]) if len(batch) > 1 else None
        return np.array(labels) if labels is not None and labels.ndim == 1 else None

    def describe(self) -> Mapping[str, Any]:
        files = file_facts(path for _, path in leaves(self.paths))
        return {**super().describe(), "files": files, "shapes": shapes(self._memory_mapped())}

    def close(self) -> None:
        self._batch = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_batch": None}  # a pickled map would be a copy of the whole file

    def _memory_mapped(self) -> Any:
        """Returns the arrays of the files, mapped into memory once."""
        if self._batch is None:
            self._batch = as_arrays(map_tree(load_npy, self.paths), "a .npy file")
        return self._batch


class Npz(Arrays):
    """`Npz("file.npz", inputs="x_train", targets="y_train")`: arrays of one `.npz`, by key; nestings of keys give nestings of
    arrays. Without keys it takes a usual pair (x and y, inputs and targets, images and labels, ...) where there is one."""

    def __init__(self, file: PathName, inputs: Any = None, targets: Any = None, weights: Any = None) -> None:
        path = require_file(Path(file).expanduser(), "a .npz file")
        try:
            if zipfile.is_zipfile(path):
                check_zip(path)
            with path.open("rb") as opened:
                batch = _arrays_by_key(np.load(opened), str(path), inputs, targets, weights)
        except BROKEN as error:
            raise unreadable(path, ".npz", error) from None
        self.files = file_facts([path])
        super().__init__(*batch)

    def describe(self) -> Mapping[str, Any]:
        return {**super().describe(), "files": self.files}


def _arrays_by_key(archive: Any, where: str, inputs: Any, targets: Any, weights: Any) -> Any:
    """Returns inputs, targets and weights, picked from the archive by their keys."""
    if isinstance(archive, np.ndarray):
        raise UsageError(f"{where} holds one array, not named ones; use Npy for .npy files")

    def array(key: str) -> Any:
        if key not in archive:
            raise missing_key(key, archive, where)
        return archive[key]

    return map_tree(array, chosen_keys(list(archive), where, inputs, targets, weights))


def load_npy(path: Path) -> npt.NDArray[Any]:
    """Local: returns the array of a `.npy` file, mapped read-only."""
    try:
        found = np.load(path, mmap_mode="r")
    except BROKEN as error:
        raise unreadable(path, ".npy", error) from None
    if not isinstance(found, np.ndarray):
        found.close()
        raise UsageError(f"{path} holds several named arrays; use Npz for .npz files")
    return found
