"""HDF5 files: one or many, arrays by key, groups as several inputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unisono.data.sources.chunked import ChunkedFiles
from unisono.data.sources.file_list import require_file, unreadable
from unisono.data.sources.optional_packages import load


class HDF5(ChunkedFiles):
    """Samples in HDF5 files: one file or many, arrays by their keys.

    The first axis of every array is the sample. Several files count as one long one, in the order given; their arrays must
    be alike except for their lengths. Samples are read when they are needed. Of compressed arrays whole chunks are read,
    and a shuffle takes whole chunks too, so that each is read once in an epoch. Arrays in one piece are mapped into memory.
    Needs the package h5py. Local.

    Numbers that are packed by the CF conventions of netCDF (the attributes scale_factor, add_offset, _FillValue,
    missing_value and _Unsigned) are unpacked; missing values are NaN, and refused in whole numbers without a scale.

    Without `inputs`, the file must hold exactly one usual pair of names: x and y, inputs and targets, features and labels,
    images and labels, images and masks, data and labels, and the like. An unknown key is refused with the nearest names; so
    are arrays of different lengths, and files that are missing, empty or cut off.

    Example:
        import h5py
        import numpy as np
        import unisono as un

        for part in range(3):
            with h5py.File(f"part-{part}.h5", "w") as file:
                file["features"] = np.full((50, 16), part, np.float32)
                file["labels"] = np.zeros(50, np.int64)
        source = un.HDF5("part-*.h5", inputs="features", targets="labels")
        len(source)  # -> 150

    Args:
        files: A path, a pattern such as "part-*.h5" (sorted by name), a list of these, or a `.txt` file with one path on
            each line.
        inputs: The key of the inputs, for example "features" or "detector/tracks"; a group gives a dict of its arrays, and
            a dict or tuple of keys gives a dict or tuple.
        targets: The key of the targets, in the same forms; left out, the samples have none.
        weights: The key of the weights of the samples.
        cached_chunks: Number of compressed chunks that are kept in memory.
    """

    kind = "an HDF5 file"
    folders = False

    def _open(self, path: Path) -> Any:
        # Many parallel file systems know no locks, and readers need none.
        return load("h5py", "HDF5").File(path, "r", locking=False)

    def _chunk_samples(self, array: Any) -> int | None:
        filtered = array.chunks is not None and array.id.get_create_plist().get_nfilters() > 0
        return int(array.chunks[0]) if filtered else None

    def _readable(self, array: Any) -> Any:
        """Maps an array that is one piece of its file into memory: that is faster than reading through the library."""
        offset = array.id.get_offset()
        file = array.file
        if offset is None or array.dtype.kind not in "iuf" or array.external or file.userblock_size or file.driver != "sec2":
            return array
        if array.id.get_type() != load("h5py.h5t", "HDF5").py_create(array.dtype):  # e.g. bfloat16, or 12 bits of 16
            return array
        return np.asarray(np.memmap(file.filename, array.dtype, "r", offset, array.shape))


def write_rows(
    path: Path, name: str, num_rows: int, rows: Iterable[tuple[slice, npt.NDArray[Any]]], ids: Sequence[str] | None = None
) -> None:
    """Local, blocking: writes a new file with one array, given in pieces with their positions, and the texts `ids` where there
    are any."""
    h5py = load("h5py", "HDF5")
    with h5py.File(path, "w") as file:
        for where, values in rows:
            if name not in file:
                file.create_dataset(name, (num_rows, *values.shape[1:]), values.dtype)
            file[name][where] = values
        if ids is not None:
            file.create_dataset("id", data=list(ids), dtype=h5py.string_dtype())


def read_matlab_7_3(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Local: reads the arrays of a MATLAB 7.3 file, which is HDF5 with the axes in MATLAB's order."""
    h5py = load("h5py", "MATLAB 7.3 files")
    try:
        with h5py.File(require_file(path, "a MATLAB file"), "r", locking=False) as file:
            return {name: np.transpose(item[()]) for name, item in file.items() if hasattr(item, "shape") and item.shape}
    except OSError as error:
        raise unreadable(path, "a MATLAB file", error) from None
