"""Zarr stores (format 2 and 3): one or many folders, arrays by key, groups as several inputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unisono.data.sources.chunked import ChunkedFiles
from unisono.data.sources.optional_packages import load
from unisono.data.sources.packed_values import SCALES
from unisono.errors import UsageError


class Zarr(ChunkedFiles):
    """Samples in Zarr stores (format 2 and 3): one store or many, arrays by their keys.

    The first axis of every array is the sample. Several stores count as one long one, in the order given; their arrays must
    be alike except for their lengths. Whole chunks are read, and a shuffle takes whole chunks too, so that each is read
    once in an epoch: chunks of some tens of samples suit training. Needs the package zarr. Local.

    Numbers that are packed by the CF conventions are unpacked, as for `HDF5`.

    Without `inputs`, the store must hold exactly one usual pair of names, as for `HDF5`. An unknown key is refused with the
    nearest names; so is a folder that is no Zarr group.

    Example:
        import numpy as np
        import unisono as un
        import zarr

        store = zarr.open_group("train.zarr", mode="w")
        store.create_array("images", shape=(100, 8, 8), chunks=(20, 8, 8), dtype="float32")
        store.create_array("labels", data=np.arange(100) % 10, chunks=(20,))
        source = un.Zarr("train.zarr", inputs="images", targets="labels")
        len(source), source.chunk_samples  # -> (100, 20)

    Args:
        files: The folder of a store, a pattern such as "part-*.zarr" (sorted by name), a list of these, or a `.txt` file
            with one path on each line.
        inputs: The key of the inputs; a group gives a dict of its arrays, and a dict or tuple of keys gives a dict or
            tuple.
        targets: The key of the targets, in the same forms; left out, the samples have none.
        weights: The key of the weights of the samples.
        cached_chunks: Number of chunks that are kept in memory.
    """

    kind = "a Zarr store"
    folders = True

    def _open(self, path: Path) -> Any:
        zarr = load("zarr", "Zarr stores")
        try:
            return zarr.open_group(path, mode="r")
        except FileNotFoundError:
            raise UsageError(
                f"{path} is not a Zarr group (no zarr.json or .zgroup in it); give the folder that holds the arrays"
            ) from None

    def _chunk_samples(self, array: Any) -> int | None:
        return int(array.chunks[0])

    def _attributes(self, array: Any) -> Mapping[str, Any]:
        found = super()._attributes(array)
        if array.metadata.zarr_format == 2 and array.fill_value is not None and any(name in found for name in SCALES):
            return {"_FillValue": array.fill_value, **found}  # where Xarray writes it in format 2
        return found
