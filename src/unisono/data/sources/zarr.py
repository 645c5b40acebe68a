"""Zarr stores (format 2 and 3): one or many folders, arrays by key, groups as several inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unisono.data.sources.chunked import ChunkedFiles
from unisono.data.sources.optional_packages import load
from unisono.errors import UsageError


class Zarr(ChunkedFiles):
    """`Zarr("train.zarr", inputs="images", targets="labels")`. A shuffle takes whole chunks."""

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
