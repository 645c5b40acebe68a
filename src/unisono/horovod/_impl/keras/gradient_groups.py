"""Which gradients are sent as one vector. Pure, so that all ranks decide alike."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np

Groups = int | Sequence[Sequence[Any]] | None


def check_groups(num_groups: int, groups: Any) -> Groups:
    """Returns the groups that were asked for, a number of groups or lists of variables, else `ValueError`. `num_groups` is the
    argument of old programs. Pure."""
    if num_groups:
        warnings.warn("num_groups= is deprecated; give groups=", DeprecationWarning, stacklevel=3)
        groups = num_groups if groups is None else groups
    is_number = isinstance(groups, int) and not isinstance(groups, bool) and groups > 0
    is_lists = isinstance(groups, (list, tuple)) and all(isinstance(group, (list, tuple)) for group in groups)
    if groups is None or is_number or is_lists:
        return cast(Groups, groups)
    raise ValueError(f"groups must be a number of groups, 1 or more, or lists of variables; received {groups!r}")


def group_gradients(
    kinds: Mapping[int, tuple[str, int]], variables: Sequence[Any], groups: Groups, threshold_bytes: int
) -> list[list[int]]:
    """Returns groups of gradients of one type, by their numbers. `kinds` are type and length of each. Without groups of the user's
    they are combined up to `threshold_bytes`."""
    if not groups:
        return _split_by_type([list(kinds)], kinds, threshold_bytes)
    if isinstance(groups, int):
        numbers = list(kinds)
        count = min(groups, len(numbers))
        bounds = [len(numbers) * part // count for part in range(count + 1)] if count else []
        return _split_by_type([numbers[begin:end] for begin, end in pairwise(bounds)], kinds, None)
    asked = [{id(one) for one in group} for group in groups]
    together = [[number for number in kinds if id(variables[number]) in group] for group in asked]
    alone = [[number] for number in kinds if not any(id(variables[number]) in group for group in asked)]
    return _split_by_type([*together, *alone], kinds, None)


def _split_by_type(
    lists: Sequence[Sequence[int]], kinds: Mapping[int, tuple[str, int]], threshold_bytes: int | None
) -> list[list[int]]:
    """Returns the lists divided into groups of one type, each of at most `threshold_bytes` or one member; None: of any size."""
    found: list[list[int]] = []
    for members in lists:
        open_ones: dict[str, tuple[list[int], int]] = {}
        for number in members:
            dtype, length = kinds[number]
            bucket, num_bytes = open_ones.get(dtype, ([], 0))
            num_bytes += length * _num_bytes(dtype)
            if not bucket or (threshold_bytes is not None and num_bytes > threshold_bytes):
                bucket, num_bytes = [], length * _num_bytes(dtype)
                found.append(bucket)
            bucket.append(number)
            open_ones[dtype] = bucket, num_bytes
    return found


def _num_bytes(dtype: str) -> int:
    """Returns the bytes of one number of a type, also of bfloat16, which NumPy does not know."""
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
