"""The common part of HDF5 and Zarr: named arrays in groups, in one file or many, often stored as compressed chunks.

Samples are numbered through all files in the order given. Where arrays are compressed, whole chunks are read and the last few are
kept, so that a shuffle by windows of chunks (`plan.Windows`) reads each of them once in an epoch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unisono.data.batch import shapes
from unisono.data.sharding_plan import Windows
from unisono.data.source import Indices, Source
from unisono.data.sources.array_keys import chosen_keys
from unisono.data.sources.file_list import Files, expand, file_facts, missing_key, unreadable
from unisono.data.sources.packed_values import ATTRIBUTES, Unpacked, packing_of
from unisono.data.sources.recent_reads import RecentlyUsed
from unisono.data.tree import leaves, map_tree, num_rows
from unisono.errors import UsageError

BRIDGED_BYTES = 65536
"""Two samples closer than this in a file are read with one call: a call costs more than so many bytes."""
OPEN_FILES = 64
"""Maximum number of open files; the least recently used is closed first."""


@dataclass(frozen=True)
class Column:
    """One array of a file: properties that must be equal in all files, and its length, which need not."""

    key: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    """Shape with all samples of its file."""
    chunk_samples: int | None
    """Samples in a chunk, where the array is compressed; else None."""

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def sample_bytes(self) -> int:
        """Size of one sample in bytes."""
        return self.dtype.itemsize * prod(self.shape[1:])


class ChunkedFiles(Source):
    """Base class of `HDF5` and `Zarr`: named arrays in groups, in one file or in many.

    A key names an array, or a group, which gives a dict of its arrays; dicts and tuples of keys give dicts and tuples.
    """

    kind: str
    """Name of the format in messages: an HDF5 file."""
    folders: bool
    """Whether a file may be a folder."""

    def __init__(
        self,
        files: Files,
        inputs: Any = None,
        targets: Any = None,
        weights: Any = None,
        cached_chunks: int = 2 * Windows.num_chunks,
    ) -> None:
        self.files = expand(files, self.kind, self.folders)
        self._opened: RecentlyUsed[int, tuple[Any, Any]] = RecentlyUsed(OPEN_FILES, _close_first)
        self._blocks: RecentlyUsed[tuple[int, int], Any] = RecentlyUsed(cached_chunks)
        first: Any = None
        self._may_miss = False
        """Whether whole numbers may be missing."""
        lengths = []
        for path in self.files:
            with self._open_or_refuse(path) as file:
                if first is None:
                    keys = chosen_keys(list(file), str(path), inputs, targets, weights)
                    self._keys = map_tree(partial(self._with_groups, file, str(path)), keys)
                columns = map_tree(partial(self._column, file, str(path)), self._keys)
            lengths.append(num_rows(columns, str(path)))
            if first is None:
                first = columns
            _expect_alike(first, columns, self.files[0], path)
        self._columns = first
        self._starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        self.chunk_samples = _unit(column for _, column in leaves(first))

    @abstractmethod
    def _open(self, path: Path) -> Any:
        """Opens a file for reading, as a mapping from keys to arrays and groups."""

    @abstractmethod
    def _chunk_samples(self, array: Any) -> int | None:
        """Returns the number of samples in a chunk, where chunks must be read whole; else None."""

    def _readable(self, array: Any) -> Any:
        """Returns an object that reads a range of samples of an open array by `[start:stop]`."""
        return array

    def _attributes(self, array: Any) -> Mapping[str, Any]:
        """Returns what is written beside an open array on how it is packed, by name."""
        return {name: array.attrs[name] for name in ATTRIBUTES if name in array.attrs}

    def _unpacked(self, readable: Any, array: Any, file: str, key: str) -> Any:
        """Returns the same for the numbers that an array stands for, where they are stored packed."""
        where = f"{key!r} of {file}"
        packing = packing_of(array, self._attributes(array), where)
        return readable if packing is None else Unpacked(readable, packing, where)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, indices: Indices) -> Any:
        indices = np.asarray(indices, dtype=np.int64)
        if indices.size and not (indices.min() >= 0 and indices.max() < len(self)):
            raise UsageError(f"samples must lie in 0..{len(self) - 1}; received {indices.min()} to {indices.max()}")
        batch = map_tree(lambda column: np.empty((len(indices), *column.shape[1:]), column.dtype), self._columns)
        units = self.chunk_samples or int(np.diff(self._starts).max())
        numbers = np.searchsorted(self._starts, indices, side="right") - 1
        rows = indices - self._starts[numbers]
        places = np.lexsort((rows, numbers))
        edges = np.flatnonzero(np.diff(numbers[places]) | np.diff(rows[places] // units)) + 1
        wanted = [own for own in np.split(places, edges) if own.size]
        # What is kept comes first, as reading another chunk could push it out; the chunks that come last are needed again soonest.
        for own in sorted(
            wanted, key=lambda own: ((int(numbers[own[0]]), int(rows[own[0]]) // units) not in self._blocks, int(own.min()))
        ):
            self._fill(batch, own, int(numbers[own[0]]), rows[own])
        return batch

    def _fill(self, batch: Any, places: Indices, number: int, rows: Indices) -> None:
        """Copies rows of one file (sorted, in one chunk where there are chunks) to their positions in the batch."""
        if self.chunk_samples:
            chunk = int(rows[0]) // self.chunk_samples
            start, parts = chunk * self.chunk_samples, self._block(number, chunk, self.chunk_samples)
        else:
            start, parts = 0, self._arrays(number)
        for (_, out), (_, part) in zip(leaves(batch), leaves(parts), strict=True):
            if isinstance(part, np.ndarray):
                out[places] = part[rows - start]
                continue
            gap = max(1, BRIDGED_BYTES // max(1, out.dtype.itemsize * prod(out.shape[1:])))
            cuts = np.flatnonzero(np.diff(rows) > gap) + 1
            for own, near in zip(np.split(places, cuts), np.split(rows, cuts), strict=True):
                out[own] = part[int(near[0]) : int(near[-1]) + 1][near - near[0]]
        if self._may_miss:  # only what is asked for is refused, not what shares its chunk
            for (_, out), (_, array) in zip(leaves(batch), leaves(self._arrays(number)), strict=True):
                if isinstance(array, Unpacked):
                    array.refuse_missing(out[places])

    def _block(self, number: int, chunk: int, samples: int) -> Any:
        """Returns one chunk of all arrays of a file, from the cache or from the file."""
        span = slice(chunk * samples, (chunk + 1) * samples)
        return self._blocks.get((number, chunk), lambda: map_tree(lambda array: np.asarray(array[span]), self._arrays(number)))

    def _arrays(self, number: int) -> Any:
        """Returns the arrays of a file, which is opened when first needed in this process."""

        def opened() -> tuple[Any, Any]:
            file = self._open(self.files[number])
            where = str(self.files[number])
            return file, map_tree(lambda key: self._unpacked(self._readable(file[key]), file[key], where, key), self._keys)

        return self._opened.get(number, opened)[1]

    def targets(self) -> npt.NDArray[Any] | None:
        if len(self._columns) < 2 or not isinstance(self._columns[1], Column) or len(self._columns[1].shape) > 2:
            return None
        parts = []
        for path in self.files:
            with self._open_or_refuse(path) as file:
                labels = self._unpacked(file[self._keys[1]], file[self._keys[1]], str(path), self._keys[1])
                parts.append(np.asarray(labels[:], dtype=self._columns[1].dtype))
        return np.concatenate(parts)

    def describe(self) -> Mapping[str, Any]:
        keys = dict(leaves(self._keys))
        facts = {"files": file_facts(self.files), "keys": keys, "shapes": shapes(self._columns)}
        return {**super().describe(), **facts, "chunk_samples": self.chunk_samples}

    def close(self) -> None:
        self._blocks.clear()
        self._opened.clear()

    @contextmanager
    def _open_or_refuse(self, path: Path) -> Iterator[Any]:
        """In this context the file is open; refuses one that cannot be opened."""
        try:
            file = self._open(path)
        except OSError as error:
            raise unreadable(path, self.kind, error) from None
        try:
            yield file
        finally:
            _close(file)

    def _with_groups(self, file: Any, where: str, key: str) -> Any:
        """Returns a key, or for a group the dict of its keys."""
        if key not in file:
            raise missing_key(key, all_keys(file), where)
        if hasattr(file[key], "shape"):
            return key
        inside = {name: self._with_groups(file, where, f"{key}/{name}") for name in sorted(file[key])}
        if not inside:
            raise UsageError(f"the group {key!r} of {where} is empty; name an array")
        return inside

    def _column(self, file: Any, where: str, key: str) -> Column:
        """Returns what this array of the file holds; refuses a key that is no array of numbers."""
        if key not in file:
            raise missing_key(key, all_keys(file), where)
        array = file[key]
        if not hasattr(array, "shape") or not array.shape:
            raise UsageError(f"{key!r} of {where} is not an array of samples; name an array whose first axis is the sample")
        try:
            kind = np.dtype(array.dtype)
        except TypeError as error:  # e.g. whole numbers of three bytes
            raise UsageError(f"{key!r} of {where} has a type that NumPy does not know ({error}); store another") from None
        if kind.hasobject:
            raise UsageError(f"{key!r} of {where} holds text or objects, not numbers; name an array of numbers")
        packing = packing_of(array, self._attributes(array), f"{key!r} of {where}")
        unpacked = kind.newbyteorder("=") if packing is None else packing.dtype
        self._may_miss |= packing is not None and not packing.has_nan
        return Column(key, unpacked, tuple(array.shape), self._chunk_samples(array))


def all_keys(group: Any, before: str = "") -> list[str]:
    """Local: returns the full names of all arrays and groups of a file."""
    found = []
    for name in group:
        found.append(before + name)
        if not hasattr(group[name], "shape"):
            found += all_keys(group[name], f"{before}{name}/")
    return found


def _expect_alike(first: Any, columns: Any, first_path: Path, path: Path) -> None:
    """Refuses two files whose samples differ in dtype or shape."""
    for (_, one), (_, other) in zip(leaves(first), leaves(columns), strict=True):
        if (one.dtype, one.shape[1:]) != (other.dtype, other.shape[1:]):
            raise UsageError(
                f"{one.key!r} has samples of {other.dtype} {other.shape[1:]} in {path} "
                f"but {one.dtype} {one.shape[1:]} in {first_path}; files of one source must be alike"
            )


def _unit(columns: Iterator[Column]) -> int | None:
    """Returns the number of samples in a chunk of the array that costs most to read; it holds for all arrays."""
    chunked = [column for column in columns if column.chunk_samples]
    return max(chunked, key=lambda column: column.sample_bytes).chunk_samples if chunked else None


def _close_first(opened: tuple[Any, Any]) -> None:
    _close(opened[0])


def _close(file: Any) -> None:
    if hasattr(file, "close"):  # a Zarr group holds nothing open
        file.close()
