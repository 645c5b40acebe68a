"""Training, validation and test data: given, or split from one source by a pure function of the seed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from unisono.data import spatial_splits, split_rules
from unisono.data.checks import check_parts, origin, sample_ids
from unisono.data.fingerprint import earlier_hash_of, hashes_of
from unisono.data.source import Source
from unisono.data.sources.open_source import as_source
from unisono.data.split_rules import DROPPED, TEST, TRAIN, VALIDATION, Parts, Wanted
from unisono.errors import UsageError

METHODS = ("random", "stratified", "group", "blocks")


@dataclass(frozen=True, init=False)
class Splits:
    """The data of a task: samples for training, and if there are any for validation and test.

    The training part is learnt from, the validation part is evaluated after every epoch and decides which epoch is best,
    the test part is evaluated once at the end. Each part is anything that `un.as_source` opens: arrays, paths, data sets.
    Use `un.split` to divide one source.

    An empty part is refused, and so is a sample that is in two parts of the same source. Local.

    Example:
        import unisono as un

        x, y = un.digits()
        splits = un.Splits(train=(x[:1500], y[:1500]), test=(x[1500:], y[1500:]))
        {name: len(part) for name, part in splits.parts().items()}  # -> {'train': 1500, 'test': 297}

    Args:
        train: What is learnt from.
        validation: What is evaluated after every epoch, or None.
        test: What is evaluated at the end, or None.
        how: How the parts were made, for the record of the run; `un.split` fills it in.
        seed: The seed that they were drawn with, for the record; None if nothing was drawn.
        num_dropped: Number of samples that are in no part, for the record.
        warnings: What a reader of the results should know; one is added if training patches of a `Scene` cover tested
            pixels.
    """

    train: Source
    validation: Source | None
    test: Source | None
    how: str
    seed: int | None
    num_dropped: int
    """Number of samples that are in no part, as a guard margin."""
    warnings: tuple[str, ...]
    """Warnings for readers of the results, e.g. that test pixels lie inside training patches."""

    def __init__(
        self,
        train: Any,
        validation: Any = None,
        test: Any = None,
        how: str = "given",
        seed: int | None = None,
        num_dropped: int = 0,
        warnings: Collection[str] = (),
    ) -> None:
        for name, part in (("train", train), ("validation", validation), ("test", test)):
            object.__setattr__(self, name, as_source(part) if part is not None or name == "train" else None)
        check_parts(self.parts())
        object.__setattr__(self, "how", how)
        object.__setattr__(self, "seed", seed)
        object.__setattr__(self, "num_dropped", num_dropped)
        said = (*warnings, *(text for text in [_covered_pixels(self)] if text and text not in warnings))
        object.__setattr__(self, "warnings", said)

    def parts(self) -> dict[str, Source]:
        """Returns the parts that there are, by name: train, then validation and test. Local."""
        named = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: part for name, part in named.items() if part is not None}

    def sha256(self) -> str:
        """Returns a hash that is the same for two splits which put the same samples of the same data into the same parts.

        Data count as the same if descriptions (`describe`) and labels are the same; folders, the order inside a part, and
        transforms do not count. Samples of a Subset of torch are those of its data set. The values of the inputs are not in
        the hash, as they may be rounded otherwise elsewhere: a run records sums of them beside it. Local, the first time
        blocking for one read of the labels.
        """
        return self._hashes[0]

    def is_recorded_as(self, sha256: str) -> bool:
        """Returns whether this is the hash of these splits, as this version or an earlier one computes it.

        Earlier versions took the samples of a Subset of torch for a data set of their own. Local, blocking as `sha256`.

        Args:
            sha256: The hash that a run has recorded.
        """
        return sha256 == self.sha256() or sha256 == earlier_hash_of(self.parts())

    @cached_property
    def _hashes(self) -> tuple[str, dict[str, str]]:
        """The hash of all parts together, and that of each, which a training needs at its start and at its end."""
        return hashes_of(self.parts())

    def record(self) -> dict[str, Any]:
        """Returns origin, sizes and hashes of the parts, for the summary of a run. Local, blocking as `sha256`."""
        sha256, of_parts = self._hashes
        return {
            "how": self.how,
            "seed": self.seed,
            "num_samples": {name: len(part) for name, part in self.parts().items()},
            "num_dropped": self.num_dropped,
            "sha256": sha256,
            "parts_sha256": of_parts,
            "warnings": list(self.warnings),
        }


def split(
    source: Any,
    validation: float = 0.1,
    test: float = 0.2,
    how: str = "random",
    seed: int = 0,
    labels: npt.ArrayLike | None = None,
    groups: npt.ArrayLike | None = None,
    block_size: int | None = None,
) -> Splits:
    """Divides one source into training, validation and test.

    The result depends only on the seed and on the labels, groups or places of the samples, so that all workers, and every
    later run, get the same parts. Sizes are exact for "random" and "stratified"; with "group" and "blocks" they are as near
    as whole groups or blocks allow. Local. A share that comes to less than one sample, or leaves nothing for training, is
    refused. So is a class with fewer samples than parts ("stratified"), and fewer groups than parts ("group"). A class that
    a part lacks after "blocks" is named in `warnings`. Arguments that the chosen way does not use are refused.

    Example:
        import unisono as un

        splits = un.split(un.digits(), validation=0.1, test=0.2, how="stratified", seed=1)
        len(splits.train), len(splits.validation), len(splits.test)  # -> (1258, 180, 359)

    Args:
        source: Anything that `un.as_source` opens: arrays, a path, a data set.
        validation: The share of the samples (below 1) or their number; 0 for no such part.
        test: The share of the samples (below 1) or their number; 0 for no such part.
        how: "random"; "stratified", where each class keeps its share; "group", where all samples of a group (a patient, a
            field) are in one part; or "blocks", where a `Scene` is cut into squares, and no patch of one part overlaps a
            patch of another.
        seed: Another number gives another division.
        labels: The class of each sample, for "stratified" and "blocks"; left out, the targets of the source.
        groups: The group of each sample, for "group"; left out, what the source knows.
        block_size: The side of a square in pixels, for "blocks"; left out, an eighth of the scene, but at least three
            patches.
    """
    whole = as_source(source)
    count = len(whole)
    wanted = (_number(validation, count, "validation"), _number(test, count, "test"))
    if sum(wanted) >= count:
        raise UsageError(
            f"validation ({wanted[0]}) and test ({wanted[1]}) leave nothing of {count} samples for training; ask for less"
        )
    groups = whole.groups() if how == "group" and groups is None else groups
    _refuse_unread(how, labels, groups, block_size)
    if how == "random":
        parts = split_rules.random_parts(count, wanted, seed)
    elif how == "stratified":
        parts = split_rules.stratified_parts(_classes(whole, labels, needed=True), wanted, seed)
    elif how == "group":
        parts = split_rules.group_parts(_one_for_each(groups, count), wanted, seed)
    else:
        parts = _divide_in_blocks(whole, wanted, seed, block_size, labels)
    return _make_splits(whole, parts, how, seed, labels)


def folds(
    source: Any,
    k: int,
    how: str = "random",
    seed: int = 0,
    labels: npt.ArrayLike | None = None,
    groups: npt.ArrayLike | None = None,
    block_size: int | None = None,
) -> list[Splits]:
    """Divides one source into k folds and returns k `Splits`, for cross-validation.

    Each sample is in the validation part of exactly one of them and in the training part of the others; there is no test
    part. With "blocks", training samples whose patches overlap the validation part are dropped. Fold sizes differ by at
    most one sample, except with "group" and "blocks", where groups and blocks stay whole. Local. k must be from 2 to the
    number of samples; "stratified" needs at least k samples of each class, "group" at least k groups.

    Example:
        import unisono as un

        divisions = un.folds(un.digits(), k=5, how="stratified")
        [len(one.validation) for one in divisions]  # -> [360, 360, 359, 359, 359]

    Args:
        source: Anything that `un.as_source` opens.
        k: The number of folds.
        how: "random", "stratified", "group" or "blocks", as for `un.split`.
        seed: Another number gives another division.
        labels, groups, block_size: As for `un.split`.
    """
    whole = as_source(source)
    count = len(whole)
    if not 2 <= k <= count:
        raise UsageError(f"the number of folds must lie in 2..{count}, the number of samples; received {k}")
    groups = whole.groups() if how == "group" and groups is None else groups
    _refuse_unread(how, labels, groups, block_size)
    if how == "random":
        fold_of = split_rules.folds_at_random(count, k, seed)
    elif how == "stratified":
        fold_of = split_rules.stratified_folds(_classes(whole, labels, needed=True), k, seed)
    elif how == "group":
        fold_of = split_rules.folds_by_group(_one_for_each(groups, count), k, seed)
    else:
        fold_of = spatial_splits.block_folds(*_places(whole), k, seed, block_size)
    made = []
    for fold in range(k):
        parts: Parts = np.where(fold_of == fold, VALIDATION, TRAIN).astype(np.int8)
        if how == "blocks":
            parts = spatial_splits.apply_guard_margin(*_places(whole), parts)
        made.append(_make_splits(whole, parts, how, seed, labels, f", fold {fold} of {k}"))
    return made


def _make_splits(whole: Source, parts: Parts, how: str, seed: int, labels: npt.ArrayLike | None, which: str = "") -> Splits:
    """Returns the splits, from the part of each sample; warns of classes that blocks leave out."""
    train, validation, test = (np.flatnonzero(parts == part) for part in (TRAIN, VALIDATION, TEST))
    warnings = [] if how != "blocks" else _absent_classes(parts, _classes(whole, labels, needed=False))
    return Splits(
        whole.subset(train),
        whole.subset(validation) if len(validation) else None,
        whole.subset(test) if len(test) else None,
        how=f"{how}{which}",
        seed=seed,
        num_dropped=int((parts == DROPPED).sum()),
        warnings=warnings,
    )


def _number(share: float, count: int, name: str) -> int:
    """Returns the number of samples for a share or a number."""
    whole = isinstance(share, (int, np.integer)) and not isinstance(share, bool)
    if not (whole and share >= 0) and not 0 <= share < 1:
        raise UsageError(f"{name} must be a share below 1 or a whole number of samples; received {share!r}")
    number = int(share) if whole else int(share * count + 0.5)
    if share and not number:
        raise UsageError(f"{name}={share} of {count} samples is less than one sample; give more, or 0 to leave the part out")
    return number


def _refuse_unread(how: str, labels: npt.ArrayLike | None, groups: npt.ArrayLike | None, block_size: int | None) -> None:
    """Refuses arguments that the chosen method does not read."""
    if how not in METHODS:
        raise UsageError(f"how must be one of {', '.join(METHODS)}; received {how!r}")
    if how == "group" and groups is None:
        raise UsageError("how='group' needs groups=, the group of each sample, because the source has no groups")
    readers = ("labels", labels, ("stratified", "blocks")), ("groups", groups, ("group",)), ("block_size", block_size, ("blocks",))
    for name, value, hows in readers:
        if value is not None and how not in hows:
            raise UsageError(f"{name}= has an effect only with how={' or '.join(map(repr, hows))}; received how={how!r}")


def _one_for_each(values: Any, count: int, name: str = "groups") -> npt.NDArray[Any]:
    """Returns the values as an array; refuses another number than one for each sample."""
    found = np.asarray(values)
    if found.shape != (count,):
        raise UsageError(f"{name} must hold one value for each of {count} samples; received shape {found.shape}")
    return found


def _classes(whole: Source, labels: npt.ArrayLike | None, needed: bool) -> Any:
    """Returns the class of each sample; one-hot rows count as classes. None where there are none and none are needed."""
    found = whole.targets() if labels is None else np.asarray(labels)
    if found is not None and found.ndim == 2 and ((found == 0) | (found == 1)).all() and (found.sum(axis=1) == 1).all():
        found = found.argmax(axis=1)
    is_classes = found is not None and found.ndim == 1 and not np.issubdtype(found.dtype, np.inexact)
    if is_classes:
        return _one_for_each(found, len(whole), "labels")
    if needed or labels is not None:
        what = "there are none" if found is None else f"received {found.dtype} of shape {found.shape}"
        raise UsageError(f"a split by class needs one class for each sample (labels=, else the targets of the source); {what}")
    return None


def _places(whole: Source) -> tuple[spatial_splits.Coordinates, int]:
    """Returns row and column of each sample, and the width of the patch around it."""
    origin_source, indices = origin(whole)
    coordinates, patch_size = getattr(origin_source, "coordinates", None), getattr(origin_source, "patch_size", None)
    if coordinates is None or patch_size is None:
        raise UsageError("a split by blocks needs a scene, whose samples have a row and a column; use how='random' or 'group'")
    places = np.asarray(coordinates, dtype=np.int64)
    return (places if indices is None else places[indices]), int(patch_size)


def _divide_in_blocks(whole: Source, wanted: Wanted, seed: int, block_size: int | None, labels: npt.ArrayLike | None) -> Parts:
    """Returns the part of each sample, whole blocks of a map being given to one part."""
    return spatial_splits.blocks(*_places(whole), wanted, seed, block_size, _classes(whole, labels, needed=False))


def _absent_classes(parts: Parts, classes: npt.NDArray[Any] | None) -> list[str]:
    """Returns a warning for each part in which classes are absent; none for unknown classes."""
    if classes is None:
        return []
    names = {TRAIN: "training", VALIDATION: "validation", TEST: "test"}
    return [
        f"the {names[part]} data have no sample of class {', '.join(map(str, absent))}"
        for part, absent in spatial_splits.classes_left_out(parts, classes).items()
        if absent
    ]


def _covered_pixels(splits: Splits) -> str:
    """Returns a warning where training patches contain pixels on which the result is measured."""
    held_out, name = (splits.test, "test") if splits.test is not None else (splits.validation, "validation")
    scene, train = sample_ids(splits.train)
    coordinates, patch_size = getattr(scene, "coordinates", None), getattr(scene, "patch_size", None)
    if held_out is None or coordinates is None or patch_size is None or patch_size < 2:
        return ""
    other, indices = sample_ids(held_out)
    if other is not scene:
        return ""
    covered = spatial_splits.num_covered(np.asarray(coordinates, dtype=np.int64), int(patch_size), train, indices)
    if not covered:
        return ""
    return (
        f"{covered} of {len(indices)} {name} pixels ({covered / len(indices):.1%}) lie inside training patches of "
        f"{patch_size}x{patch_size} pixels, so the {name} result is too optimistic; use how='blocks'"
    )
