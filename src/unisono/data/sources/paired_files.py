"""Pairs files with those of their labels by the part of the names that varies. Sorting alone may pair others: case1, case10, case2
but case10_seg, case1_seg, case2_seg."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from itertools import takewhile
from os import PathLike
from pathlib import Path

from unisono.data.sources.file_list import Files, expand
from unisono.errors import UsageError

DIGITS = "0123456789"


def expand_labels(labels: Files, files: Sequence[Path], what: str) -> tuple[Path, ...]:
    """Local: returns the files that `labels` stands for, as `expand`, in the order of the files that they belong to.

    A pattern is paired by the names, and refused where they do not tell. A list stays in its order, which is refused where the
    names tell of another. Different numbers of files are left to the caller."""
    found = expand(labels, what)
    if len(found) != len(files) or len(found) == 1:
        return found
    paired = _paired_by_name(files, found)
    is_list = not isinstance(labels, (str, PathLike)) or Path(labels).suffix == ".txt"
    if paired is None:
        if is_list:
            return found
        raise UsageError(
            f"{what}: the names do not tell which belong to which files, e.g. {found[0]} to {files[0]}; "
            "name them alike but for a part that is the same in all (case1.nii, case1_seg.nii), or give both as lists in one order"
        )
    if is_list and paired != found:
        at = next(at for at in range(len(found)) if paired[at] != found[at])
        raise UsageError(
            f"{what}: the list gives {found[at].name} to {files[at].name}, but by its name {paired[at].name} belongs to it; "
            "give both lists in one order, or as patterns, which are paired by their names"
        )
    return paired


def _paired_by_name(files: Sequence[Path], labels: Sequence[Path]) -> tuple[Path, ...] | None:
    """Pure: returns the labels in the order of the files; None where neither names nor numbers in the names pair them all."""
    for with_folders in (False, True):
        parts, label_parts = (_varying_parts([_text(path, with_folders) for path in some]) for some in (files, labels))
        for keys, label_keys in ((parts, label_parts), (_numbers(parts), _numbers(label_parts))):
            belonging: dict[Hashable, Path] = dict(zip(label_keys, labels, strict=True))
            if len(belonging) == len(set(keys)) == len(files) and belonging.keys() == set(keys):
                return tuple(belonging[key] for key in keys)
    return None


def _text(path: Path, with_folders: bool) -> str:
    """Returns the name of a file, or its whole path, without the suffix."""
    name = Path(path.name.removesuffix(".gz")).stem
    return str(path.parent / name) if with_folders else name


def _varying_parts(names: Sequence[str]) -> list[str]:
    """Returns the names without the beginning and the end that all share, which divide no number."""
    rest = _without_common_start(names)
    return [one[::-1] for one in _without_common_start([one[::-1] for one in rest])]


def _without_common_start(names: Sequence[str]) -> list[str]:
    """Returns the names without the beginning that all share, which ends before a number that they share in part."""
    shared = sum(1 for _ in takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False)))
    start = len(names[0][:shared].rstrip(DIGITS))
    return [name[start:] for name in names]


def _numbers(parts: Sequence[str]) -> list[tuple[int, ...]]:
    """Returns the whole numbers in each text: 1 and 01 are one number."""
    return [tuple(map(int, re.findall(r"[0-9]+", part))) for part in parts]
