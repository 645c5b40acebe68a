"""MATLAB scenes: a cube of bands and a map of labels, turned into patches around the labelled pixels as they are read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unisono.data.source import Indices, Source
from unisono.data.sources.file_list import PathName, file_facts, missing_key, require_file, unreadable
from unisono.data.sources.hdf5 import read_matlab_7_3
from unisono.data.sources.numpy_files import load_npy
from unisono.data.sources.optional_packages import load
from unisono.errors import UsageError

BORDERS: Mapping[str, Any] = {"mirror": {"mode": "reflect"}, "zero": {"mode": "constant"}}


class Scene(Source):
    """A satellite or airborne scene: a cube of bands and a map of labels, with one sample for each labelled pixel.

    A sample is the patch around its pixel, float32 of shape (bands, patch, patch), or (bands,) with a patch of 1; its
    target is the label less one. Pixels with label 0 are unlabelled and no samples. A patch of even size has one pixel more
    before its centre than after. The cube is held in memory; patches are cut when they are read. Local.

    Patches of neighbouring pixels overlap, so a random split tests on pixels that were seen in training: use `how="blocks"`
    of `un.split`. A map without labels, a map of another size, negative labels, and labels that are not whole numbers are
    refused.

    Example:
        import numpy as np
        import unisono as un

        cube = np.random.default_rng(0).random((40, 40, 5))
        labels = np.tile([1, 2, 0, 2], (40, 10))
        scene = un.Scene(cube, labels, patch_size=3)
        inputs, targets = scene.read([0, 1])
        len(scene), inputs.shape, targets.tolist()  # -> (1200, (2, 5, 3, 3), [0, 1])
        splits = un.split(scene, how="blocks", block_size=8)

    Args:
        cube: The bands, (rows, columns, bands): an array, or a `.npy` or `.mat` file (scipy or h5py reads these).
        labels: The map, (rows, columns), in the same forms.
        patch_size: Rows and columns of a patch.
        border: What lies beyond the edge of the scene: "mirror" or "zero".
        cube_key: The name of the cube in a `.mat` file that holds several arrays.
        labels_key: The name of the map in a `.mat` file that holds several arrays.
    """

    in_memory = True

    def __init__(
        self,
        cube: PathName | npt.NDArray[Any],
        labels: PathName | npt.NDArray[Any],
        patch_size: int = 1,
        border: str = "mirror",
        cube_key: str | None = None,
        labels_key: str | None = None,
    ) -> None:
        self.files = file_facts(
            Path(part).expanduser()
            for part in (cube, labels)
            if not isinstance(part, np.ndarray) and Path(part).expanduser().exists()
        )
        bands, classes = _load_array(cube, cube_key, 3), _load_array(labels, labels_key, 2)
        if bands.shape[:2] != classes.shape:
            raise UsageError(
                f"the cube has {bands.shape[:2]} pixels but the map of labels {classes.shape}; give a cube and a map of one scene"
            )
        if classes.size and (classes.min() < 0 or (classes != classes.astype(np.int64)).any()):
            raise UsageError("the map of labels must hold whole numbers, 0 for unlabelled pixels and 1, 2, ... for classes")
        if border not in BORDERS:
            raise UsageError(f"border must be one of {', '.join(BORDERS)}; received {border!r}")
        if not 1 <= patch_size <= min(classes.shape):
            raise UsageError(f"patch_size must lie in 1..{min(classes.shape)} for this scene; received {patch_size}")
        self.patch_size = patch_size
        self.border = border
        self.coordinates: npt.NDArray[np.int64] = np.argwhere(classes > 0)
        """Row and column of the pixel of each sample."""
        if not len(self.coordinates):
            raise UsageError("the map of labels has no labelled pixel (all are 0); give another map")
        self._targets = classes[tuple(self.coordinates.T)].astype(np.int64) - 1
        before = patch_size // 2
        around = (before, patch_size - 1 - before)
        self._padded = np.pad(np.moveaxis(bands.astype(np.float32), 2, 0), ((0, 0), around, around), **BORDERS[border])
        self._padded = np.ascontiguousarray(np.moveaxis(self._padded, 0, 2))

    def __len__(self) -> int:
        return len(self.coordinates)

    def read(self, indices: Indices) -> Any:
        rows, columns = self.coordinates[indices].T
        if self.patch_size == 1:
            return self._padded[rows, columns], self._targets[indices]
        patches = np.lib.stride_tricks.sliding_window_view(self._padded, (self.patch_size, self.patch_size), axis=(0, 1))
        return np.ascontiguousarray(patches[rows, columns]), self._targets[indices]

    def targets(self) -> npt.NDArray[Any] | None:
        return self._targets

    def describe(self) -> Mapping[str, Any]:
        facts = {"files": self.files, "bands": self._padded.shape[2], "num_classes": int(self._targets.max()) + 1}
        return {**super().describe(), **facts, "patch_size": self.patch_size, "border": self.border}


def _load_array(given: PathName | npt.NDArray[Any], key: str | None, num_axes: int) -> npt.NDArray[Any]:
    """Returns the given array, or that of this file; refuses one without exactly `num_axes` axes."""
    if isinstance(given, np.ndarray):
        found, where = given, "the array"
    else:
        path = require_file(Path(given).expanduser(), "a scene")
        where = str(path)
        found = load_npy(path) if path.suffix == ".npy" else _named_or_only(read_mat(path), key, num_axes, where)
    if found.ndim != num_axes:
        raise UsageError(f"{where} has {found.ndim} axes, not {num_axes}; a cube is (rows, columns, bands), a map (rows, columns)")
    return found


def _named_or_only(arrays: Mapping[str, npt.NDArray[Any]], key: str | None, num_axes: int, where: str) -> npt.NDArray[Any]:
    """Returns the array named `key`; without a key the only one with `num_axes` axes, if there is only one."""
    if key is not None:
        if key not in arrays:
            raise missing_key(key, arrays, where)
        return arrays[key]
    fitting = [name for name, array in arrays.items() if array.ndim == num_axes and array.size > 1]
    if len(fitting) != 1:
        held = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise UsageError(f"{where} holds {held or 'nothing'}; name the one to read with cube_key or labels_key")
    return arrays[fitting[0]]


def read_mat(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Local, blocking: reads all numeric arrays of a `.mat` file, of any version, with their axes as in MATLAB."""
    require_file(path, "a MATLAB file")
    with path.open("rb") as file:
        if b"MATLAB 7.3" in file.read(128):
            return read_matlab_7_3(path)
    loadmat = load("scipy.io", "MATLAB files").loadmat
    try:
        found = loadmat(path)
    except Exception as error:  # noqa: BLE001 - the reader of a damaged file fails in many ways, none of them its own class
        raise unreadable(path, "a MATLAB file", error) from None
    return {name: array for name, array in found.items() if isinstance(array, np.ndarray) and array.dtype.kind in "biuf"}
