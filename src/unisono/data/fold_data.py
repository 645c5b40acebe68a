"""The data of a trial: the folds of a task's training and validation samples, and in the end both together.

Folds are made of training and validation together where both were taken from one source, else of the training part alone. The test
part is in no fold. A sample goes through the changes (`map`, `map_inputs`) of the part that it is in for this fold: those of the
task's training part in training, those of its validation part in validation. As a change treats each sample alone, they can be
applied to other samples of the same source; one that is fitted to the training part (`un.map_fitted`) is fitted again. Nothing is
copied but the numbers of the samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from unisono.data.checks import sample_ids
from unisono.data.data_differences import PART_NAMES
from unisono.data.fitted_inputs import as_fitted_to, changes_of, describe_unfitted, fits_of, with_changes
from unisono.data.source import Indices, Mapped, Source
from unisono.data.splits import METHODS, Splits, folds
from unisono.errors import UsageError


@dataclass(frozen=True)
class Folding:
    """How the data of a trial are divided into folds. One for all trials of a study, so that they are compared on the same
    samples."""

    folds: int = 1
    """1: the task's own division into training and validation."""
    by: str | None = None
    """random, stratified, group or blocks; None: as the task's data were divided, else stratified where the targets are classes,
    else random."""
    seed: int = 0
    block_size: int | None = None
    """Pixels, for blocks only."""

    def __post_init__(self) -> None:
        if self.folds < 1:
            raise UsageError(f"--folds must be at least 1; received {self.folds}")
        if self.by is not None and self.by not in METHODS:
            raise UsageError(f"--fold-by must be one of {', '.join(METHODS)}; received {self.by!r}")
        if self.folds == 1 and (self.by is not None or self.block_size is not None):
            given = "--block-size" if self.by is None else "--fold-by"
            raise UsageError(f"--folds 1 keeps the task's own division, so {given} has no effect; leave it out, or give --folds 3")


def make_folds(splits: Splits, folding: Folding, only: int | None = None) -> list[Splits]:
    """Local, blocking for one read of the labels, and for what `un.map_fitted` reads: returns the data of each fold. The test part
    is in none of them, so that nothing of it can steer a search.

    Each sample of training and validation is in the validation part of one fold and in the training part of all others (with
    blocks, less the guard margin). One that the task repeats is repeated in training, and counts once in validation. A validation
    part from another source is used with one fold only; with several, the warnings say so. `only`: the one fold to be returned.
    """
    if folding.folds == 1:
        return [_as_divided(splits)]
    joined = _join_parts(splits)
    by = _method_of(splits, folding, joined)
    if folding.block_size is not None and by != "blocks":
        raise UsageError(
            f"--block-size {folding.block_size} has no effect with --fold-by {by}; leave it out, or use --fold-by blocks"
        )
    _refuse_unknown(by, folding, joined)
    pool = joined.source.subset(joined.indices)
    try:
        made = folds(pool, folding.folds, by, folding.seed, block_size=folding.block_size)
    except UsageError as error:
        raise UsageError(
            f"{folding.folds} folds (--fold-by {by}) cannot be made of {joined}: {error}; "
            "or change --folds, --fold-by or --block-size"
        ) from None
    notes = _warnings_that_stay(splits)
    if splits.validation is not None and not joined.with_validation:
        notes.append("the validation data come from another source than the training data, so the folds do not use them")
    notes += describe_unfitted([*joined.train_changes, *joined.validation_changes])
    return [_splits_of_fold(one, joined, notes, by, folding.seed) for one in (made if only is None else [made[only]])]


def merge_train_validation(splits: Splits) -> Splits:
    """Local: returns data with training and validation merged into the training part, and the test part; for the last training
    with the settings that were found. A validation part from another source stays as it is, and the warnings say so."""
    if splits.validation is None:
        return splits
    joined = _join_parts(splits)
    if not joined.with_validation:
        note = "the validation data come from another source than the training data, so they are not added to the training data"
        notes = (*splits.warnings, *(text for text in [note] if text not in splits.warnings))
        return Splits(splits.train, splits.validation, splits.test, splits.how, splits.seed, splits.num_dropped, notes)
    train = joined.training(joined.indices)
    return Splits(
        train,
        test=as_fitted_to(train, splits.test),
        how=f"{splits.how}, validation joined to training",
        seed=splits.seed,
        num_dropped=splits.num_dropped,
        warnings=_warnings_that_stay(splits, "test"),
    )


def apply_division(splits: Splits, how: Mapping[str, Any] | None) -> Splits:
    """Local, blocking as `make_folds`: returns the data as a run divides them. None leaves them as they are; {"fold": 1, ...}
    with the fields of a `Folding` is one fold, with the numbers of samples that are `held_out` of all of them; {"fold": None} is
    `merge_train_validation`."""
    if how is None:
        return splits
    if how["fold"] is None:
        return merge_train_validation(splits)
    fold: int = how["fold"]
    folding = Folding(**{name: value for name, value in how.items() if name not in ("fold", "held_out")})
    return make_folds(splits, folding, fold)[0]


@dataclass(frozen=True)
class _Joined:
    """The samples of which folds are made, each once and in the order of their source."""

    source: Source
    indices: Indices
    repeats: Indices
    """How often the task has each sample."""
    train_changes: Sequence[Mapped]
    validation_changes: Sequence[Mapped]
    with_validation: bool

    def training(self, indices: Indices) -> Source:
        """Returns some of the samples with the changes of the training part."""
        times = self.repeats[np.searchsorted(self.indices, indices)]
        return with_changes(self.source.subset(np.repeat(indices, times)), self.train_changes)

    def validation(self, indices: Indices, train: Source) -> Source:
        """Returns some of the samples with the changes of the validation part, as fitted to the training part."""
        return with_changes(self.source.subset(indices), self.validation_changes, fits_of(train))

    def __str__(self) -> str:
        parts = "training and validation samples" if self.with_validation else "training samples"
        return f"{len(self.indices)} {parts}"


def _join_parts(splits: Splits) -> _Joined:
    """Returns the training data together with the validation data, if these are of the same source; their common samples once."""
    source, indices = sample_ids(splits.train)
    changes = other_changes = changes_of(splits.train)
    with_validation = False
    if splits.validation is not None:
        other, others = sample_ids(splits.validation)
        with_validation = other is source
        if with_validation:
            indices, other_changes = np.concatenate([indices, others]), changes_of(splits.validation)
    each, repeats = np.unique(indices, return_counts=True)
    return _Joined(source, each, repeats, changes, other_changes, with_validation)


def _as_divided(splits: Splits) -> Splits:
    """Returns the splits as the task made them, without test data; refuses a task without validation data."""
    if splits.validation is None:
        raise UsageError(
            "--folds 1 evaluates on the validation data, and the task has none; use --folds 3, or add a validation part to the data"
        )
    notes = _warnings_that_stay(splits, "train", "validation")
    return Splits(splits.train, splits.validation, None, splits.how, splits.seed, splits.num_dropped, notes)


def _method_of(splits: Splits, folding: Folding, joined: _Joined) -> str:
    """Returns how the folds are made: as given, as the splits were made, or by classes if the targets are such, else at random."""
    if folding.by is not None:
        return folding.by
    as_made = splits.how.split(",")[0]  # "blocks, fold 0 of 3"
    if as_made in METHODS:
        return as_made
    # Of the parts and not of their source: a change of the whole batch may have made something else of its targets.
    parts = [splits.train] if splits.validation is None or not joined.with_validation else [splits.train, splits.validation]
    return "stratified" if any(_are_classes(part.targets()) for part in parts) else "random"


def _are_classes(targets: npt.NDArray[Any] | None) -> bool:
    """Whether targets are one class for each sample, as whole numbers or one-hot rows."""
    if targets is not None and targets.ndim == 2:
        return bool(((targets == 0) | (targets == 1)).all() and (targets.sum(axis=1) == 1).all())
    return targets is not None and targets.ndim == 1 and not np.issubdtype(targets.dtype, np.inexact)


def _refuse_unknown(by: str, folding: Folding, joined: _Joined) -> None:
    """Refuses folds by groups or blocks that the source does not know, as they cannot be given here."""
    why = "" if folding.by is not None else " (as in the task's own split)"
    if by == "group" and joined.source.groups() is None:
        lacking, remedy = "the group of each sample", "use a source with groups, or --fold-by random"
    elif by == "stratified" and not _are_classes(joined.source.targets()):
        lacking, remedy = "the class of each sample", "use a source whose targets are classes, or --fold-by random"
    elif by == "blocks" and not (hasattr(joined.source, "coordinates") and hasattr(joined.source, "patch_size")):
        lacking, remedy = "the row and the column of each sample", "use a scene, or --fold-by random or group"
    else:
        return
    kind = type(joined.source).__name__
    raise UsageError(f"--fold-by {by}{why} needs {lacking}, which the source ({kind}) does not have; {remedy}")


def _splits_of_fold(made: Splits, joined: _Joined, notes: Sequence[str], by: str, seed: int) -> Splits:
    """Returns training and validation data of one fold, with its warnings."""
    assert made.validation is not None
    train, validation = sample_ids(made.train)[1], sample_ids(made.validation)[1]
    learnt = joined.training(train)
    mixed = [] if by == "group" else _mixed_groups(joined.source, train, validation)
    return Splits(
        learnt,
        joined.validation(validation, learnt),
        how=made.how,
        seed=seed,
        num_dropped=made.num_dropped,
        warnings=(*made.warnings, *mixed, *notes),
    )


def _mixed_groups(source: Source, train: Indices, validation: Indices) -> list[str]:
    """Returns a warning if groups have samples in both parts; [] if none has."""
    groups = source.groups()
    if groups is None:
        return []
    held = np.unique(groups[validation])
    mixed = int(np.isin(held, groups[train]).sum())
    if not mixed:
        return []
    return [
        f"{mixed} of {len(held)} groups in the validation data of this fold also have training samples, so its result is too "
        "optimistic; use --fold-by group"
    ]


def _warnings_that_stay(splits: Splits, *unchanged: str) -> list[str]:
    """Returns the warnings of the task that stay true when its data are divided again and only the parts in `unchanged` stay."""
    recomputed = Splits(splits.train, splits.validation, splits.test).warnings  # on pixels that parts share
    others = tuple(f"the {called} data have no sample" for name, called in PART_NAMES.items() if name not in unchanged)
    return [text for text in splits.warnings if text not in recomputed and not text.startswith(others)]
