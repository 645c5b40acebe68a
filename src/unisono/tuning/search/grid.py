"""All points of a grid over a space, in one order for all jobs and lives, as a point is known by the number of its trial."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from unisono.task.task import Choice
from unisono.tuning.search.space import Dimension, Space

NUM_VALUES = 5
"""Of a range."""
MOST_COUNTED = 100_000


def grid(space: Space, most: int | None = None) -> list[dict[str, Any]]:
    """Pure: the points, those that differ only in settings without meaning once; no more than `most`."""
    return list(islice(_points(space, 0, {}), most))


def describe_grid(space: Space, trials: int) -> str:
    """Pure: how many points there are, and how many of them so many trials try."""
    num = sum(1 for _ in islice(_points(space, 0, {}), MOST_COUNTED + 1))
    many = f"{num} point{'s' * (num != 1)}" if num <= MOST_COUNTED else f"more than {MOST_COUNTED} points"
    if num < trials:
        return f"the grid has {many}: so many trials are made, and not {trials} (--trials)"
    return f"the grid has {many}: " + ("all are tried" if num == trials else f"the first {trials} of them are tried (--trials)")


def _points(space: Space, place: int, known: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if place == len(space.dimensions):
        yield dict(known)
        return
    dimension = space.dimensions[place]
    if not space.is_active(dimension, known):
        yield from _points(space, place + 1, known)
        return
    for value in _values(dimension):
        yield from _points(space, place + 1, {**known, dimension.name: value})


def _values(dimension: Dimension) -> Sequence[Any]:
    values = dimension.values
    if isinstance(values, Choice):
        return list({(type(one), one): one for one in values.values}.values())
    low, high = (math.log(values.low), math.log(values.high)) if values.log else (values.low, values.high)
    spread = [low + (high - low) * one / (NUM_VALUES - 1) for one in range(NUM_VALUES)]
    found = [min(max(math.exp(one) if values.log else one, values.low), values.high) for one in spread]
    return sorted({round(one) for one in found}) if dimension.is_integer else found
