"""Divides a scene into parts that are independent: neighbouring pixels look alike, and patches around them overlap.

The scene is cut into square blocks, whole blocks are put at random into a part, and pixels whose patch would overlap a patch of
another part are dropped (the guard margin): of training where it meets the others, of validation where it meets the test. Pure.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from unisono.data.sharding_plan import Indices
from unisono.data.split_rules import DROPPED, TEST, TRAIN, VALIDATION, Parts, Wanted, folds_by_group, group_parts
from unisono.errors import UsageError

Coordinates = npt.NDArray[np.int64]
"""Row and column of each sample's pixel, (n, 2)."""

_TRIES = 64
"""Number of random divisions among which the one is taken that leaves the fewest classes out of training, then of the other
parts; the first that leaves none out ends the search."""


def blocks(
    coordinates: Coordinates,
    patch_size: int,
    wanted: Wanted,
    seed: int,
    block_size: int | None,
    labels: npt.NDArray[Any] | None,
) -> Parts:
    """Returns the part of each sample of a scene, which is divided into random blocks, with the guard margin dropped. With labels,
    divisions that leave a class out of a part are avoided."""
    block_of = _block_of(coordinates, patch_size, block_size)
    best: tuple[tuple[int, int], Parts] | None = None
    for number in range(1 if labels is None else _TRIES):
        parts = apply_guard_margin(coordinates, patch_size, group_parts(block_of, wanted, seed, number))
        if not (parts == TRAIN).any():
            continue
        left_out = {} if labels is None else classes_left_out(parts, labels)
        lacks = {part: len(classes) for part, classes in left_out.items()}
        score = (lacks.pop(TRAIN, 0), sum(lacks.values()))  # what was never shown cannot be learnt, so training comes first
        if best is None or score < best[0]:
            best = (score, parts)
        if not any(score):
            break
    if best is None:
        raise UsageError(
            f"no training pixel is left between the blocks and their margin of {patch_size - 1} pixels (how='blocks'); "
            f"use a smaller patch, smaller shares for validation and test, or set block_size"
        )
    return best[1]


def block_folds(coordinates: Coordinates, patch_size: int, num_folds: int, seed: int, block_size: int | None) -> Indices:
    """Returns the fold of each sample; whole blocks, no margin dropped yet (see `apply_guard_margin`)."""
    return folds_by_group(_block_of(coordinates, patch_size, block_size), num_folds, seed)


def apply_guard_margin(coordinates: Coordinates, patch_size: int, parts: Parts) -> Parts:
    """Returns the parts without the pixels whose patch overlaps a patch of another part."""
    found = parts.copy()
    reach = patch_size - 1  # patches around pixels further apart than this in a row or column share nothing
    for part, others in ((VALIDATION, (TEST,)), (TRAIN, (TEST, VALIDATION))):
        near = _has_seed_near(coordinates, np.isin(found, others), found == part, reach, reach)
        found[np.flatnonzero(found == part)[near]] = DROPPED
    return found


def num_covered(coordinates: Coordinates, patch_size: int, train: Indices, held_out: Indices) -> int:
    """Returns the number of held-out pixels that lie inside the patch of a training pixel."""
    is_train, is_held_out = (np.zeros(len(coordinates), dtype=bool) for _ in range(2))
    is_train[train], is_held_out[held_out] = True, True
    before = patch_size // 2  # a patch of even size has one pixel more before its centre
    return int(_has_seed_near(coordinates, is_train, is_held_out, patch_size - 1 - before, before).sum())


def classes_left_out(parts: Parts, labels: npt.NDArray[Any]) -> dict[int, list[Any]]:
    """Returns, for each part that has samples, the classes that it does not have."""
    every = np.unique(labels)
    held = {part: np.unique(labels[parts == part]) for part in (TRAIN, VALIDATION, TEST) if (parts == part).any()}
    return {part: np.setdiff1d(every, found).tolist() for part, found in held.items()}


def _block_of(coordinates: Coordinates, patch_size: int, block_size: int | None) -> Indices:
    """Returns the number of the block in which each sample lies."""
    corner = coordinates.min(axis=0)
    height, width = (int(length) for length in coordinates.max(axis=0) - corner + 1)
    if block_size is None:
        block_size = max(3 * patch_size, -(-max(height, width) // 8))
    if block_size < 1:
        raise UsageError(f"block_size must be at least 1 pixel; received {block_size}")
    place = (coordinates - corner) // block_size
    blocks: Indices = place[:, 0] * -(-width // block_size) + place[:, 1]
    return blocks


def _has_seed_near(
    coordinates: Coordinates, seeds: npt.NDArray[np.bool_], wanted: npt.NDArray[np.bool_], before: int, after: int
) -> npt.NDArray[np.bool_]:
    """Returns for each sample in `wanted`, in order, whether a seed lies in the rectangle from `before` rows and columns before it
    to `after` after it. Both are masks of all samples."""
    if not seeds.any() or not wanted.any():
        return np.zeros(int(wanted.sum()), dtype=bool)
    places = coordinates - coordinates.min(axis=0)
    near = np.zeros(tuple(places.max(axis=0) + 1), dtype=bool)
    near[tuple(places[seeds].T)] = True
    for axis in (0, 1):
        length = near.shape[axis]
        counted = np.zeros((length + 1, near.shape[1 - axis]), dtype=np.int32)
        np.cumsum(np.moveaxis(near, axis, 0), axis=0, out=counted[1:])
        at = np.arange(length)
        found = counted[np.minimum(at + after + 1, length)] > counted[np.maximum(at - before, 0)]
        near = np.moveaxis(found, 0, axis)
    result: npt.NDArray[np.bool_] = near[tuple(places[wanted].T)]
    return result
