"""Rules that put each sample into a part: pure functions of the seed and of labels or groups.

A part is a number for each sample: `TRAIN`, `VALIDATION`, `TEST`, or `DROPPED`. All chance comes from `random_bits`, whose values
NumPy promises to keep, so a split stays the same for ever.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from unisono.data.sharding_plan import Indices, cut, random_bits
from unisono.errors import UsageError

TRAIN, VALIDATION, TEST, DROPPED = 0, 1, 2, -1

Parts = npt.NDArray[np.int8]
Wanted = tuple[int, int]
"""Wanted number of samples of validation and test."""

_SAMPLES, _GROUPS = 16, 17
"""Uses of a stream of random bits; the numbers below 16 belong to the plan of the training."""


def shuffled_numbers(count: int, seed: int, use: int = _SAMPLES, number: int = 0) -> Indices:
    """Returns 0..count-1 in random order."""
    return np.argsort(random_bits(count, seed, 0, use, number), kind="stable")


def random_parts(count: int, wanted: Wanted, seed: int) -> Parts:
    """Returns the part of each sample, at random; the sizes are exact."""
    num_validation, num_test = wanted
    order = shuffled_numbers(count, seed)
    parts = np.full(count, TRAIN, dtype=np.int8)
    parts[order[:num_test]] = TEST
    parts[order[num_test : num_test + num_validation]] = VALIDATION
    return parts


def stratified_parts(labels: npt.NDArray[Any], wanted: Wanted, seed: int) -> Parts:
    """Returns the part of each sample, at random within each class: the sizes are exact, each class keeps its proportion to within
    one sample where that leaves it at least one sample in every part."""
    classes, class_of, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    parts = np.full(len(labels), TRAIN, dtype=np.int8)
    asked = [(TEST, wanted[1], "test"), (VALIDATION, wanted[0], "validation")]
    asked = [entry for entry in asked if entry[1]]
    _refuse_small_classes(classes, sizes, len(asked) + 1, f"a split into {len(asked) + 1} parts")
    order = shuffled_numbers(len(labels), seed)
    by_class = order[np.argsort(class_of[order], kind="stable")]
    begins = np.cumsum(sizes) - sizes
    taken = np.zeros_like(sizes)
    for later, (part, count, name) in zip(reversed(range(1, len(asked) + 1)), asked, strict=True):
        counts = _shares(sizes, count, sizes - taken - later, name)
        for begin, number in zip(begins + taken, counts, strict=True):
            parts[by_class[begin : begin + number]] = part
        taken += counts
    return parts


def group_parts(groups: npt.NDArray[Any], wanted: Wanted, seed: int, number: int = 0) -> Parts:
    """Returns the part of each sample, whole groups being put into parts at random: groups that still fit are taken, until no
    further group would bring the size nearer to the wanted one."""
    group_of, sizes = _number_groups(groups)
    asked = [(part, count) for part, count in ((TEST, wanted[1]), (VALIDATION, wanted[0])) if count]
    _refuse_few_groups(len(sizes), len(asked) + 1, "parts")
    part_of_group = np.full(len(sizes), TRAIN, dtype=np.int8)
    left = [int(group) for group in shuffled_numbers(len(sizes), seed, _GROUPS, number)]
    for later, (part, count) in zip(reversed(range(1, len(asked) + 1)), asked, strict=True):
        chosen = _nearest(left, sizes, count, len(left) - later)
        part_of_group[chosen] = part
        left = [group for group in left if part_of_group[group] == TRAIN]
    return part_of_group[group_of]


def folds_at_random(count: int, num_folds: int, seed: int) -> Indices:
    """Returns a random fold for each sample; the sizes differ by at most one."""
    folds = np.empty(count, dtype=np.int64)
    order = shuffled_numbers(count, seed)
    for fold in range(num_folds):
        folds[order[cut(count, num_folds, fold)]] = fold
    return folds


def stratified_folds(labels: npt.NDArray[Any], num_folds: int, seed: int) -> Indices:
    """Returns the fold of each sample: each class is dealt out like cards, so that it differs by at most one between folds, as
    do the sizes."""
    classes, class_of, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    _refuse_small_classes(classes, sizes, num_folds, f"{num_folds} folds")
    order = shuffled_numbers(len(labels), seed)
    by_class = order[np.argsort(class_of[order], kind="stable")]
    folds = np.empty(len(labels), dtype=np.int64)
    folds[by_class] = np.arange(len(labels)) % num_folds
    return folds


def folds_by_group(groups: npt.NDArray[Any], num_folds: int, seed: int) -> Indices:
    """Returns the fold of each sample: groups from large to small, each into the fold that is smallest so far."""
    group_of, sizes = _number_groups(groups)
    _refuse_few_groups(len(sizes), num_folds, "folds")
    order = shuffled_numbers(len(sizes), seed, _GROUPS)
    fold_of_group = np.empty(len(sizes), dtype=np.int64)
    filled = np.zeros(num_folds, dtype=np.int64)
    for group in order[np.argsort(-sizes[order], kind="stable")]:
        fold = int(np.argmin(filled))
        fold_of_group[group] = fold
        filled[fold] += sizes[group]
    return fold_of_group[group_of]


def _shares(sizes: Indices, total: int, most: Indices, name: str) -> Indices:
    """Divides `total` over the classes in proportion to their sizes, at least one and at most `most` each."""
    if total < len(sizes):
        raise UsageError(f"{name} would have {total} samples, too few for one of each of {len(sizes)} classes; ask for more")
    exact = sizes * (total / int(sizes.sum()))
    counts: Indices = np.clip(np.floor(exact).astype(np.int64), 1, most)
    while (missing := total - int(counts.sum())) > 0:
        gain = np.where(counts < most, exact - counts, -np.inf)
        if not np.isfinite(gain).any():
            raise UsageError(f"{name} cannot have {total} samples and leave one of each class for training; ask for fewer")
        counts[np.argsort(-gain, kind="stable")[: min(missing, int(np.isfinite(gain).sum()))]] += 1
    for _ in range(-missing):
        counts[np.argmax(np.where(counts > 1, counts - exact, -np.inf))] -= 1
    return counts


def _nearest(left: list[int], sizes: Indices, wanted: int, most: int) -> list[int]:
    """Returns groups of `left`, in its order, at least one and at most `most`, whose sizes add up to about `wanted`."""
    chosen: list[int] = []
    missing = wanted
    for group in left:
        if len(chosen) == most or not missing:
            break
        if sizes[group] <= missing:
            chosen.append(group)
            missing -= int(sizes[group])
    if missing and len(chosen) < most:
        taken = set(chosen)
        smallest = min((group for group in left if group not in taken), key=lambda group: sizes[group])
        if not chosen or sizes[smallest] - missing < missing:
            chosen.append(smallest)
    return chosen


def _number_groups(groups: npt.NDArray[Any]) -> tuple[Indices, Indices]:
    """Returns the number of the group of each sample, and the size of each group."""
    _, group_of, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    return group_of, sizes


def _refuse_small_classes(classes: npt.NDArray[Any], sizes: Indices, least: int, what: str) -> None:
    """Refuses classes of fewer than `least` samples."""
    small = np.flatnonzero(sizes < least)
    if small.size:
        shown = ", ".join(f"class {classes[at]} has {sizes[at]}" for at in small[:5]) + (", ..." if small.size > 5 else "")
        raise UsageError(
            f"{shown}, but every class must have at least {least} samples for {what} by class (how='stratified'); "
            "give more, merge small classes, or use how='random'"
        )


def _refuse_few_groups(found: int, least: int, what: str) -> None:
    """Refuses fewer than `least` groups."""
    if found < least:
        raise UsageError(f"{least} {what} need at least {least} groups, as a group is never divided (groups); found {found}")
