"""Labels of a table as numbers: class numbers, values, or names of classes. What could be read in two ways is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unisono.data.sources.file_list import missing_key
from unisono.errors import UsageError

MISSING = frozenset({"", "#N/A", "<NA>", "N/A", "NA", "NULL", "NaN", "n/a", "nan", "null"})
"""Cells that say that there is no value, as most programs write them."""


def labels_as_numbers(
    values: Sequence[Any], classes: Sequence[str] | None, table: Path
) -> tuple[npt.NDArray[Any], tuple[str, ...]]:
    """Pure: returns the labels of all rows as numbers, and the classes if they are names; text that is all numbers is no name.
    Without `classes`, an empty cell and text among numbers are refused: either would give other numbers to all classes."""
    if classes is None:
        _refuse_missing(values, table)
        numbers = [_number(value) for value in values]
        is_text = [number is None for number in numbers]
        if any(is_text) and not all(is_text):
            row, other = is_text.index(True), is_text.index(False)
            raise UsageError(
                f"the labels of {table} mix numbers and text: {values[other]!r} in row {other + 1}, {values[row]!r} in row "
                f"{row + 1} (counted without the header); correct the cell, or name all classes as text, in order: classes=[...]"
            )
        if not any(is_text):
            found = np.array(numbers)
            return found.astype(np.int64 if found.dtype.kind in "bi" else np.float32), ()
        classes = sorted(set(values))
    places = {name: number for number, name in enumerate(classes)}
    for value in values:
        if value not in places:
            raise missing_key(str(value), list(places), f"the classes given for {table}")
    return np.array([places[value] for value in values], dtype=np.int64), tuple(classes)


def _refuse_missing(values: Sequence[Any], table: Path) -> None:
    """Refuses a row without a label: a cell that is empty, or a function that gives None or NaN."""
    for row, value in enumerate(values):
        is_text = isinstance(value, str)
        if value is None or (is_text and value.strip() in MISSING) or (isinstance(value, (float, np.floating)) and np.isnan(value)):
            raise UsageError(
                f"row {row + 1} of {table} (counted without the header) has no label: {value!r}; fill it in or leave the row out; "
                "if it is the name of a class, give all names: classes=[...]"
            )


def _number(value: Any) -> Any:
    """Returns a text as the number that it stands for, None if it is none; what is no text stays as it is."""
    if not isinstance(value, str):
        return value
    for kind in (int, float):
        try:
            found = kind(value)
        except ValueError:
            continue
        # Python reads "1_0" as ten; in a table it is a name.
        return found if math.isfinite(found) and "_" not in value else None
    return None
