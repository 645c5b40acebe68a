"""Writes predictions to a file: a table with chosen columns (.csv) or one array (.npy, .h5), wholly or not at all."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unisono.data.sources.hdf5 import write_rows
from unisono.errors import UsageError
from unisono.files.atomic import atomic_replacement

Rows = Iterable[tuple[slice, np.ndarray[Any, Any]]]
"""Pieces in order, with their places."""


@dataclass(frozen=True)
class Columns:
    """The columns of a table: their headers and the field of each."""

    id_name: str
    headers: tuple[str, ...]
    chosen: tuple[int, ...]
    """Places among the numbers of a sample."""


@dataclass(frozen=True)
class Layout:
    """The names of samples and columns that are written with the numbers."""

    num_samples: int
    names: Sequence[str] | None
    """Names of the samples; None: their numbers."""
    columns: Columns | None
    words: Sequence[str] = ()
    """Names of the labels 0, 1, ... in a table; empty: numbers."""
    numbers: Sequence[int] | None = None
    """Numbers of the samples in their source, where they have no names; None: all, in order."""


def choose_columns(requested: Sequence[str], fields: Sequence[str] | None, id_name: str | None, has_names: bool) -> Columns:
    """Pure: the columns that were requested: NAME=FIELD writes a field under another name; names that are all no fields rename all,
    in order."""
    if fields is None:
        raise UsageError("a table has one row for each sample, but these predictions have several axes; use --out with .npy or .h5")
    header = id_name or ("id" if has_names else "index")
    if not requested:
        return Columns(header, tuple(fields), tuple(range(len(fields))))
    pairs = [(name, source if equals else name) for name, equals, source in (one.partition("=") for one in requested)]
    unknown = [source for _, source in pairs if source not in fields]
    if unknown and (len(pairs) != len(fields) or len(unknown) < len(pairs) or any("=" in one for one in requested)):
        shown = ", ".join(fields[:10]) + (", ..." if len(fields) > 10 else "")
        raise UsageError(
            f"there is no field {unknown[0]!r} (--columns); the fields are {shown} ({len(fields)} in all); rename one with "
            f"NAME={fields[-1]}"
        )
    chosen = tuple(range(len(fields))) if unknown else tuple(fields.index(source) for _, source in pairs)
    headers = tuple(name for name, _ in pairs)
    if len({header, *headers}) <= len(headers):
        raise UsageError(f"two columns have the same name: {', '.join((header, *headers))} (--id, --columns); give each its own")
    return Columns(header, headers, chosen)


def writer(out: Path) -> Callable[[Path, Layout, Rows], None]:
    """Pure: the function that writes the format of a path, by its suffix."""
    if out.suffix.lower() not in WRITERS:
        raise UsageError(f"--out {out} must end in {', '.join(WRITERS)}; its suffix chooses the format")
    return WRITERS[out.suffix.lower()]


def is_table(out: Path) -> bool:
    """Pure: whether the output is a table, by its suffix."""
    return out.suffix.lower() == ".csv"


def write_csv(out: Path, layout: Layout, rows: Rows) -> None:
    """Local, blocking: writes a table. Numbers have as many digits as are needed to read them back unchanged."""
    columns = layout.columns
    assert columns is not None
    known = layout.numbers if layout.names is None else layout.names
    with atomic_replacement(out) as draft, draft.open("w", newline="", encoding="utf-8") as text:
        table = csv.writer(text, lineterminator="\n")
        table.writerow((columns.id_name, *columns.headers))
        for where, values in rows:
            shown = values.reshape(len(values), -1)[:, columns.chosen]
            for index, row in zip(range(where.start, where.stop), shown, strict=True):
                words = [layout.words[value] for value in row] if layout.words else [str(value) for value in row]
                called = index if known is None else known[index]
                table.writerow((called, *words))


def write_npy(out: Path, layout: Layout, rows: Rows) -> None:
    """Local, blocking: writes one array with a row for each sample."""
    with atomic_replacement(out) as draft:
        array: Any = None
        for where, values in rows:
            if array is None:
                array = np.lib.format.open_memmap(draft, "w+", values.dtype, (layout.num_samples, *values.shape[1:]))
            array[where] = values
        array.flush()


def write_hdf5(out: Path, layout: Layout, rows: Rows) -> None:
    """Local, blocking: writes `predictions` with a row for each sample and, where samples have names, `id`."""
    with atomic_replacement(out) as draft:
        write_rows(draft, "predictions", layout.num_samples, rows, layout.names)


WRITERS: Mapping[str, Callable[[Path, Layout, Rows], None]] = {
    ".csv": write_csv,
    ".npy": write_npy,
    ".h5": write_hdf5,
    ".hdf5": write_hdf5,
}
