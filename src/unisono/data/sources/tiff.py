"""TIFF stacks: pages as samples, or whole stacks; with a stack of labels beside each, or one value for each sample."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from unisono.data.batch import batch_of
from unisono.data.source import Indices, Source
from unisono.data.sources.file_list import Files, expand, file_facts, unreadable
from unisono.data.sources.label_maps import as_label_map
from unisono.data.sources.optional_packages import load
from unisono.data.sources.paired_files import expand_labels
from unisono.data.sources.recent_reads import RecentlyUsed
from unisono.errors import UsageError

OPEN_FILES = 64
UNITS = ("page", "stack")


class TIFF(Source):
    """Samples in TIFF stacks: every page, or every whole stack.

    A page is (channels, rows, columns), a stack (channels, pages, rows, columns), in the type of the file. Targets are
    int64: the same page of the label stack, (rows, columns), or for stacks (pages, rows, columns). `groups()` is the number
    of the stack. Needs the package tifffile, and imagecodecs for some compressions. Local.

    Pages of one source must be alike; with whole stacks, their numbers of pages too. Stacks and label stacks are paired by
    the part of their names that varies, lists by their order. Refused are different numbers, sizes or types, names that do
    not tell or that contradict a list, labels that are not whole numbers, and files that are cut off.

    Example:
        import numpy as np
        import tifffile
        import unisono as un

        tifffile.imwrite("cells.tif", np.zeros((10, 32, 32), np.uint16))
        tifffile.imwrite("cells_labels.tif", np.ones((10, 32, 32), np.uint8))
        source = un.TIFF("cells.tif", "cells_labels.tif")
        inputs, targets = source.read([0, 5])
        len(source), inputs.shape, targets.shape  # -> (10, (2, 1, 32, 32), (2, 32, 32))

    Args:
        stacks: A path, a pattern such as "stacks/*.tif" (sorted by name), a list of these, or a `.txt` file with one path
            on each line.
        labels: The files of the label stacks, in the same forms, a list in the same order; or an array with one row for each
            sample; left out, the samples have no target.
        unit: "page" if every page is a sample, "stack" if every file is.
    """

    def __init__(self, stacks: Files, labels: Files | npt.NDArray[Any] | None = None, unit: str = "page") -> None:
        if unit not in UNITS:
            raise UsageError(f"unit of a TIFF source must be one of {', '.join(UNITS)}; received {unit!r}")
        self.unit = unit
        self.stacks = expand(stacks, "TIFF stacks")
        per_sample = isinstance(labels, np.ndarray)
        self.labels = () if labels is None or per_sample else expand_labels(cast(Files, labels), self.stacks, "TIFF labels")
        self._values = cast("npt.NDArray[Any]", labels) if per_sample else None
        if self.labels and len(self.labels) != len(self.stacks):
            raise UsageError(
                f"there are {len(self.stacks)} stacks but {len(self.labels)} stacks of labels; give one for each, in order"
            )
        self.shapes, types = zip(*(_form_of_file(path) for path in self.stacks), strict=True)
        self._expect_alike(types)
        for stack, label, shape in zip(self.stacks, self.labels, self.shapes, strict=False):
            if (found := _form_of_file(label)[0])[:3] != shape[:3]:
                raise UsageError(
                    f"{stack} has pages, rows, columns {shape[:3]}, its labels {label} {found[:3]}; "
                    "give stacks and labels in the same order"
                )
        lengths = [shape[0] if unit == "page" else 1 for shape in self.shapes]
        self._starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        if self._values is not None and len(self._values) != len(self):
            raise UsageError(
                f"there are {len(self)} samples ({unit}s) in the TIFF stacks but {len(self._values)} labels; give one for each"
            )
        self._open: RecentlyUsed[Path, Stack] = RecentlyUsed(OPEN_FILES, _close)

    def _expect_alike(self, types: Sequence[np.dtype[Any]]) -> None:
        """Refuses stacks whose samples differ in shape or type: numbers of different types have different scales."""
        compared = 1 if self.unit == "page" else 0
        for path, shape, kind in zip(self.stacks, self.shapes, types, strict=True):
            if kind != types[0]:
                raise UsageError(f"{path} has pixels of {kind} but {self.stacks[0]} of {types[0]}; convert them to one type")
            if shape[compared:] != self.shapes[0][compared:]:
                raise UsageError(
                    f"{path} has {self.unit}s of {shape[compared:]} but {self.stacks[0]} of {self.shapes[0][compared:]}; "
                    "samples of one source must be alike"
                )

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, indices: Indices) -> Any:
        numbers = np.searchsorted(self._starts, indices, side="right") - 1
        pages = np.asarray(indices) - self._starts[numbers]
        picked = [(int(number), int(page) if self.unit == "page" else None) for number, page in zip(numbers, pages, strict=True)]
        inputs = np.stack([self._channels_first(number, page) for number, page in picked])
        if self._values is not None:
            return batch_of(inputs, self._values[indices])
        if not self.labels:
            return batch_of(inputs)
        maps = [as_label_map(self._read_pages(self.labels[number], page), self.labels[number]) for number, page in picked]
        return batch_of(inputs, np.stack(maps))

    def groups(self) -> npt.NDArray[Any] | None:
        return np.repeat(np.arange(len(self.stacks)), np.diff(self._starts))

    def targets(self) -> npt.NDArray[Any] | None:
        return self._values

    def describe(self) -> Mapping[str, Any]:
        facts = {
            "files": file_facts(self.stacks),
            "labels": file_facts(self.labels),
            "shapes": sorted({min(self.shapes), max(self.shapes)}),
        }
        return {**super().describe(), **facts, "unit": self.unit}

    def close(self) -> None:
        self._open.clear()

    def _channels_first(self, number: int, page: int | None) -> npt.NDArray[Any]:
        """Returns a page of this stack, or all of them, with channels first; an axis for them is added where there is none."""
        found = self._read_pages(self.stacks[number], page)
        has_channels = len(self.shapes[number]) == 4
        return np.moveaxis(found, -1, 0) if has_channels else found[None]

    def _read_pages(self, path: Path, page: int | None) -> npt.NDArray[Any]:
        """Returns a page of the file, or all for None, which stays open for a while."""
        return self._open.get(path, lambda: Stack(path)).read(page)


class Stack:
    """One open file: pages of (rows, columns) or (rows, columns, channels). Constructing it checks that the file is whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        tifffile = load("tifffile", "TIFF stacks")
        try:
            self.file = tifffile.TiffFile(path)
            try:
                self._find_shape()
            except BaseException:
                self.file.close()
                raise
        except (tifffile.TiffFileError, OSError, ValueError, IndexError, struct.error) as error:
            raise unreadable(path, "TIFF", error) from None

    def _find_shape(self) -> None:
        """Finds out the shape of the stack, and maps it into memory if it lies in one piece; refuses one that is cut off."""
        pages = self.file.pages
        if self._chain_is_cut_off():
            raise UsageError(f"{self.path} is truncated (its pages lie beyond its end); get it again")
        series = self.file.series
        if len({(tuple(one.keyframe.shape), one.keyframe.dtype) for one in series}) > 1:
            raise UsageError(
                f"{self.path} has pages of different sizes or types, but samples of one source must be alike; split the file"
            )
        page = pages[0]
        self.planar = page.axes == "SYX"
        self.mapped: npt.NDArray[Any] | None = None
        num_pages = len(pages)
        if len(series) == 1 and series[0].dataoffset is not None:
            # In one piece: mapped it costs least, and large stacks of ImageJ have one page that stands for all.
            kind = np.dtype(series[0].dtype).newbyteorder(self.file.byteorder)
            whole = np.memmap(self.path, kind, "r", series[0].dataoffset, series[0].shape)
            self.mapped = np.asarray(whole).reshape(-1, *page.shape)
            num_pages = len(self.mapped)
        promised = (self.file.imagej_metadata or {}).get("images", num_pages)
        if promised > num_pages:
            raise UsageError(f"{self.path} is truncated (it has {num_pages} of {promised} pages); get it again")
        self.dtype = np.dtype(page.dtype).newbyteorder("=")
        shape = tuple(int(length) for length in page.shape)
        self.shape = (num_pages, *(shape[1:] + shape[:1] if self.planar else shape))

    def read(self, page: int | None) -> npt.NDArray[Any]:
        """Local, blocking: returns one page, or all."""
        if self.mapped is not None:
            found = self.mapped if page is None else self.mapped[page]
        else:
            try:
                found = self.file.asarray(key=range(self.shape[0]) if page is None else page)
            except Exception as error:  # noqa: BLE001 - decoders of damaged pages fail in many ways
                where = f"{self.path} cannot be read" if page is None else f"page {page} of {self.path} cannot be read"
                raise UsageError(f"{where} ({error}); get the file again; some compressions need pip install imagecodecs") from None
        found = np.moveaxis(found, -3, -1) if self.planar else found
        return found.reshape(self.shape if page is None else self.shape[1:]).astype(found.dtype.newbyteorder("="), copy=False)

    def close(self) -> None:
        self.file.close()

    def _chain_is_cut_off(self) -> bool:
        """Whether the file ends before its pages do: a whole chain of pages ends in a zero, and its last page lies inside the
        file."""
        handle, tiff, pages = self.file.filehandle, self.file.tiff, self.file.pages
        handle.seek(pages.next_page_offset)
        chain_ends = handle.read(tiff.offsetsize) == bytes(tiff.offsetsize)
        last = pages[-1]
        end = max((start + size for start, size in zip(last.dataoffsets, last.databytecounts, strict=True)), default=0)
        return not chain_ends or end > handle.size


def _close(stack: Stack) -> None:
    stack.close()


def _form_of_file(path: Path) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Returns the shape of this stack as (pages, rows, columns), with channels last if it has any, and the type of its pixels."""
    stack = Stack(path)
    stack.close()
    return stack.shape, stack.dtype
