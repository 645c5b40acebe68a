"""HDF5 files: one or many, arrays by key, groups as several inputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unisono.data.sources.chunked import ChunkedFiles
from unisono.data.sources.file_list import require_file
from unisono.data.sources.optional_packages import load
from unisono.errors import UsageError


class HDF5(ChunkedFiles):
    """`HDF5("part-*.h5", inputs="features", targets="labels")`; a `.txt` file may list the files. Opened lazily in each process."""

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
        raise UsageError(
            f"{path} cannot be read as a MATLAB file ({error}); it is cut off or of another kind: get it again"
        ) from None
