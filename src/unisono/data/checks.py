"""Checks of data: empty or overlapping parts, labels out of range, values that are not finite."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from unisono.data.data_differences import PART_NAMES
from unisono.data.source import Indices, Mapped, Source, Subset
from unisono.data.sources.arrays import Arrays
from unisono.data.tree import leaves, map_tree
from unisono.errors import UsageError

CHECKED_BYTES = 1 << 30
"""Bytes of one part that are checked for values that are not finite; that takes about a second."""
SHOWN_CLASSES = 12
"""Maximum number of names of classes in a message."""


def origin(source: Source) -> tuple[Source, Indices | None]:
    """Pure: returns the source that the samples were taken from, and their numbers in it; None stands for all, in order."""
    indices: Indices | None = None
    while isinstance(source, (Subset, Mapped)):
        if isinstance(source, Subset):
            indices = source.indices if indices is None else source.indices[indices]
        source = source.source
    return source, indices


def sample_ids(source: Source) -> tuple[Source, Indices]:
    """Pure: as `origin`, with the numbers of all samples written out."""
    whole, indices = origin(source)
    return whole, np.arange(len(whole), dtype=np.int64) if indices is None else indices


def is_changed(source: Source) -> bool:
    """Pure: whether a function changes the batches that a source gives."""
    while isinstance(source, Subset):
        source = source.source
    return isinstance(source, Mapped)


def before_changes(source: Source) -> Source:
    """Pure: the samples as their source gives them, before any function that changes their batches."""
    whole, indices = origin(source)
    return whole if indices is None else whole.subset(indices)


def ids_in_data_set(source: Source) -> tuple[Any, Indices] | None:
    """Pure: for samples of a Subset of torch, as random_split makes it, its data set and their numbers in that; else None."""
    whole, indices = origin(source)
    found: tuple[Any, Indices] | None = getattr(whole, "in_data_set", None)  # `Items` has it, which is loaded where it is used
    return found if found is None or indices is None else (found[0], found[1][indices])


def check_parts(parts: Mapping[str, Source]) -> None:
    """Local: refuses an empty part, and a sample that is in two parts where both were taken from one source."""
    for name, part in parts.items():
        if not len(part):
            remedy = "give at least one sample" if name == "train" else "give at least one sample, or leave the part out"
            raise UsageError(f"the {PART_NAMES[name]} data are empty; {remedy}")
    names = list(parts)
    for position, first in enumerate(names):
        for second in names[position + 1 :]:
            _refuse_common_samples(first, parts[first], second, parts[second])
            _refuse_other_classes(first, parts[first], second, parts[second])


def numbered_classes(source: Source) -> tuple[str, ...]:
    """Pure: returns the names of the classes that the labels of a source number; () where it has none, or where a change of whole
    batches may have numbered them otherwise."""
    while isinstance(source, (Subset, Mapped)):
        if isinstance(source, Mapped) and not source.inputs_only:
            return ()
        source = source.source
    names = getattr(source, "classes", ())
    return tuple(names) if isinstance(names, (tuple, list)) else ()


def check_labels(part: str, source: Source, num_outputs: int, ignored: Collection[int] = ()) -> None:
    """Local, blocking for one read of the labels: refuses class labels outside 0..num_outputs-1. Targets that are not whole
    numbers, or that the source cannot give at once, are not checked."""
    labels = source.targets()
    if labels is None or not np.issubdtype(labels.dtype, np.integer):
        return
    wrong = (labels < 0) | (labels >= num_outputs)
    if ignored and wrong.any():
        wrong &= ~np.isin(labels, list(ignored))
    if not wrong.any():
        return
    place = tuple(int(at[0]) for at in np.nonzero(wrong))
    raise UsageError(
        f"sample {place[0]} of the {PART_NAMES[part]} data has label {labels[place]}, but the model has {num_outputs} outputs, so "
        f"labels must lie in 0..{num_outputs - 1}; correct it, give the model more outputs, or set ignore_label (loss_options)"
    )


def targets_in_memory(source: Source) -> npt.NDArray[Any] | None:
    """Local: all targets as one array where they lie in memory as they are used, and are no more than `CHECKED_BYTES`; else
    None."""
    targets = source.targets() if isinstance(origin(source)[0], Arrays) else None
    return None if targets is None or targets.nbytes > CHECKED_BYTES else targets


def check_finite(part: str, source: Source, with_targets: bool) -> None:
    """Local, blocking for one pass over at most `CHECKED_BYTES`: refuses NaN and infinity in the inputs, and where asked in the
    targets, of samples that lie in memory as they are used. Others show when their loss is not finite."""
    indices: Indices | None = None
    while isinstance(source, Subset):
        indices = source.indices if indices is None else source.indices[indices]
        source = source.source
    if not isinstance(source, Arrays):
        return
    checked = source.batch[: 2 if with_targets else 1]
    if sum(leaf.nbytes for _, leaf in leaves(checked)) > CHECKED_BYTES or first_not_finite(checked) is None:
        return
    used = checked if indices is None else map_tree(lambda leaf: leaf[indices], checked)
    if (found := first_not_finite(used)) is not None:
        place, row = found
        where = f"{('inputs', 'targets')[int(place[1])]}{place[3:]}"
        raise UsageError(
            f"sample {row} of the {PART_NAMES[part]} data has NaN or infinity ({where}); correct or remove the sample, "
            "or skip the updates that are not finite with --on-nan skip"
        )


def first_not_finite(batch: Any) -> tuple[str, int] | None:
    """Pure: returns leaf and row of the first value that is NaN or infinite, e.g. ("[0].image", 3); None where all are finite."""
    for place, leaf in leaves(batch):
        values = np.asarray(leaf)
        if not np.issubdtype(values.dtype, np.inexact):
            continue
        with np.errstate(all="ignore"):
            if np.isfinite(values.sum()):  # one pass without a copy; a finite sum has finite terms
                continue
        rows = np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))
        if rows.size:
            return place, int(rows[0])
    return None


def _refuse_common_samples(first: str, one: Source, second: str, other: Source) -> None:
    """Refuses two parts that share samples of one source."""
    (whole, mine), (other_whole, theirs) = sample_ids(one), sample_ids(other)
    if whole is not other_whole:
        return
    common = np.unique(mine[np.isin(mine, theirs)])  # of millions in a tenth of a second; intersect1d takes ten
    if common.size:
        raise UsageError(
            f"{common.size} sample{'s are' if common.size > 1 else ' is'} in both the {PART_NAMES[first]} and the "
            f"{PART_NAMES[second]} data (the first is sample {common[0]}); put each sample into one part only"
        )


def _refuse_other_classes(first: str, one: Source, second: str, other: Source) -> None:
    """Refuses two parts in which a label stands for different classes, as where each numbers the classes that it has."""
    mine, theirs = numbered_classes(one), numbered_classes(other)
    for label, (name, other_name) in enumerate(zip(mine, theirs, strict=False)):
        if name != other_name:
            all_names = _shown(list(dict.fromkeys(mine + theirs)))
            raise UsageError(
                f"label {label} is {name!r} in the {PART_NAMES[first]} data but {other_name!r} in the {PART_NAMES[second]} data, "
                f"as each numbers the classes that it has; give both the same, e.g. classes={all_names}"
            )


def _shown(names: list[str]) -> str:
    """Returns a list of names for a message; of a long one its beginning."""
    return str(names) if len(names) <= SHOWN_CLASSES else f"[{', '.join(map(repr, names[:SHOWN_CLASSES]))}, ...]"
