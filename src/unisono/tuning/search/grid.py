"""The points of a grid over a space. Their order is the same for all jobs and attempts, so the number of a trial determines its
point."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from unisono.task.task import Choice
from unisono.tuning.search.space import Dimension, Space

NUM_VALUES = 5
"""Values that a grid tries of a range."""
MOST_COUNTED = 100_000


def grid(space: Space, most: int | None = None) -> list[dict[str, Any]]:
    """Returns the points of the grid, at most `most` of them; points that differ only in inactive settings count once. Pure."""
    return list(islice(_points(space, 0, {}), most))


def describe_grid(space: Space, trials: int) -> str:
    """Returns a sentence: how many points the grid has, and how many of them `trials` trials try. Pure."""
    num = sum(1 for _ in islice(_points(space, 0, {}), MOST_COUNTED + 1))
    many = f"{num} point{'s' * (num != 1)}" if num <= MOST_COUNTED else f"more than {MOST_COUNTED} points"
    if num < trials:
        return f"the grid has {many}, fewer than --trials {trials}; all are tried"
    return f"the grid has {many}; " + ("all are tried" if num == trials else f"the first {trials} of them are tried (--trials)")


def _points(space: Space, place: int, known: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the points of the grid that begin with `known`, from dimension `place` on; inactive dimensions are left out."""
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
    """Returns the values of a dimension in the grid: all choices, or `NUM_VALUES` evenly spread ones."""
    values = dimension.values
    if isinstance(values, Choice):
        return list({(type(one), one): one for one in values.values}.values())
    low, high = (math.log(values.low), math.log(values.high)) if values.log else (values.low, values.high)
    spread = [low + (high - low) * one / (NUM_VALUES - 1) for one in range(NUM_VALUES)]
    found = [min(max(math.exp(one) if values.log else one, values.low), values.high) for one in spread]
    return sorted({round(one) for one in found}) if dimension.is_integer else found
