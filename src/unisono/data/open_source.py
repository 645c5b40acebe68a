"""Anything that holds samples, as a source: arrays, data sets, and files by their suffix."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from unisono.data.arrays import Arrays
from unisono.data.files import checked
from unisono.data.hdf5 import HDF5
from unisono.data.idx import Idx
from unisono.data.images import ImageFolder, ImageTable
from unisono.data.matlab import Scene
from unisono.data.nifti import NIfTI
from unisono.data.numpy_files import Npy, Npz
from unisono.data.sequence import Items
from unisono.data.source import Source
from unisono.data.tiff import TIFF
from unisono.data.tree import leaves
from unisono.data.zarr import Zarr
from unisono.errors import UsageError

SUFFIXES: tuple[tuple[tuple[str, ...], Callable[..., Source]], ...] = (
    ((".npz",), Npz),
    ((".npy",), Npy),
    ((".h5", ".hdf5", ".he5"), HDF5),
    ((".zarr",), Zarr),
    ((".nii", ".nii.gz"), NIfTI),
    ((".tif", ".tiff"), TIFF),
    ((".mat",), Scene),
    ((".csv",), ImageTable),
    (("-ubyte", "-ubyte.gz", ".idx", ".idx.gz"), Idx),
)


def as_source(data: Any, **options: Any) -> Source:
    """Local: a source as it is; a path (or a list of paths, or a pattern) by its suffix, `options` being those of its source; a
    tuple (inputs, targets[, weights]) of arrays; or anything with `__len__` and `__getitem__`."""
    if isinstance(data, (str, PathLike)):
        return _opener(fspath(data))(data, **options)
    if isinstance(data, (list, tuple)) and data and all(isinstance(part, (str, PathLike)) for part in data):
        return _opener(fspath(data[0]))(data, **options)
    if options:
        raise UsageError(f"{', '.join(options)} are options of files; they mean nothing for {type(data).__name__}")
    if isinstance(data, Source):
        return data
    if isinstance(data, tuple) and 1 <= len(data) <= 3 and all(_is_array(leaf) for _, leaf in leaves(data)):
        return Arrays(*data)
    if _is_array(data) or (isinstance(data, dict) and all(_is_array(leaf) for _, leaf in leaves(data))):
        return Arrays(data)
    return Items(data)


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _opener(name: str) -> Callable[..., Source]:
    for suffixes, source in SUFFIXES:
        if name.lower().rstrip("/").endswith(suffixes):
            return source
    path = Path(name).expanduser()
    if path.is_dir():
        is_zarr = (path / "zarr.json").exists() or (path / ".zgroup").exists()
        return Zarr if is_zarr else ImageFolder
    checked(path, "data")
    known = ", ".join(suffix for suffixes, _ in SUFFIXES for suffix in suffixes)
    raise UsageError(f"{path} has a suffix that says nothing about its kind; use a source by its name, or one of {known}")
