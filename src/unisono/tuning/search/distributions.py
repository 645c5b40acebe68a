"""Dimensions of a space, and ranges that an objective chose, as Optuna distributions. Pure; callers hand in the loaded library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unisono.task.task import Choice
from unisono.tuning.search.space import Dimension, Space


def distributions_of(library: Any, space: Space | None, values: Mapping[str, Any], ranges: Mapping[str, str]) -> dict[str, Any]:
    """Returns the distribution of each value of a trial: from the space, or from the ranges where an objective has no space.
    Pure."""
    if space is None:
        return {name: library.distributions.json_to_distribution(text) for name, text in ranges.items() if name in values}
    return {one.name: distribution_of(library, one) for one in space.dimensions if one.name in values}


def distribution_of(library: Any, dimension: Dimension) -> Any:
    """Returns the distribution of one dimension. Pure."""
    values = dimension.values
    if isinstance(values, Choice):
        return library.distributions.CategoricalDistribution(values.values)
    kind = library.distributions.IntDistribution if dimension.is_integer else library.distributions.FloatDistribution
    return kind(*(map(int, (values.low, values.high)) if dimension.is_integer else (values.low, values.high)), log=values.log)
