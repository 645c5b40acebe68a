"""Opens anything that holds samples as a source: arrays, data sets, and files by their suffix."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from unisono.data.source import Source
from unisono.data.sources.arrays import Arrays
from unisono.data.tree import leaves
from unisono.errors import UsageError

SUFFIXES: tuple[tuple[tuple[str, ...], str, str], ...] = (
    ((".npz",), "numpy_files", "Npz"),
    ((".npy",), "numpy_files", "Npy"),
    ((".h5", ".hdf5", ".he5"), "hdf5", "HDF5"),
    ((".zarr",), "zarr", "Zarr"),
    ((".nii", ".nii.gz"), "nifti", "NIfTI"),
    ((".tif", ".tiff"), "tiff", "TIFF"),
    ((".mat",), "matlab", "Scene"),
    ((".csv",), "images", "ImageTable"),
    (("-ubyte", "-ubyte.gz", ".idx", ".idx.gz"), "idx", "Idx"),
)
"""Suffix -> module and class of the source, which is loaded when it is used."""


def as_source(data: Any, **options: Any) -> Source:
    """Opens anything that holds samples as a `Source`.

    - A path: by its suffix, see below. For `HDF5`, `Zarr`, `NIfTI` and `TIFF` also a pattern ("part-*.h5") or a list of paths.
    - A tuple (inputs,), (inputs, targets) or (inputs, targets, weights) of arrays, a single array, or a dict of arrays: `Arrays`.
    - Anything with `__len__` and `__getitem__`, such as a torch Dataset: one sample by its number.
    - A `Source` is returned as it is.

    Suffixes: .npz and .npy (NumPy), .h5, .hdf5 and .he5 (`HDF5`), .zarr (`Zarr`), .nii and .nii.gz (`NIfTI`), .tif and
    .tiff (`TIFF`), .mat (`Scene`), .csv (`ImageTable`), -ubyte, .idx and these with .gz (`Idx`). A folder is a Zarr store
    if it looks like one, else an `ImageFolder`. Of several files the first decides. An unknown suffix, a missing or empty
    file, and an empty list are refused; an iterator or a DataLoader is too, as samples must be had by number. Local.

    Example:
        import numpy as np
        import unisono as un

        np.savez("train.npz", x=np.zeros((10, 3), np.float32), y=np.arange(10))
        source = un.as_source("train.npz")
        inputs, targets = source.read([0, 9])
        targets.tolist()  # -> [0, 9]

    Args:
        data: The arrays, the path or paths, or the data set.
        options: What the class for this kind of file takes, for example `inputs="images"` for HDF5; refused for anything
            else.
    """
    if isinstance(data, (str, PathLike)):
        return _source_for(fspath(data))(data, **options)
    if isinstance(data, (list, tuple)) and data and all(isinstance(part, (str, PathLike)) for part in data):
        return _source_for(fspath(data[0]))(data, **options)
    if options:
        raise UsageError(
            f"{', '.join(options)}: options for files, which have no effect with {type(data).__name__}; leave them out"
        )
    if isinstance(data, Source):
        return data
    if isinstance(data, tuple) and 1 <= len(data) <= 3 and all(_is_array(leaf) for _, leaf in leaves(data)):
        return Arrays(*data)
    if _is_array(data) or (isinstance(data, dict) and all(_is_array(leaf) for _, leaf in leaves(data))):
        return Arrays(data)
    return _import_source("sequence", "Items")(data)


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _source_for(name: str) -> Callable[..., Source]:
    """Returns the source that reads what has this name, by its suffix, or by what the folder holds; refuses other kinds."""
    for suffixes, file, kind in SUFFIXES:
        if name.lower().rstrip("/").endswith(suffixes):
            return _import_source(file, kind)
    path = Path(name).expanduser()
    if path.is_dir():
        is_zarr = (path / "zarr.json").exists() or (path / ".zgroup").exists()
        return _import_source("zarr", "Zarr") if is_zarr else _import_source("images", "ImageFolder")
    from unisono.data.sources.file_list import require_file

    require_file(path, "data")
    known = ", ".join(suffix for suffixes, _, _ in SUFFIXES for suffix in suffixes)
    raise UsageError(
        f"the suffix of {path} is not known ({known}); rename the file, or use the class of its format, e.g. un.HDF5(...)"
    )


def _import_source(file: str, kind: str) -> Callable[..., Source]:
    found: Callable[..., Source] = getattr(import_module(f"unisono.data.sources.{file}"), kind)
    return found
