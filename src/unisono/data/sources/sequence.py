"""Anything with `__len__` and `__getitem__` that gives one sample, e.g. a torch Dataset or a list of pairs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from unisono.data.batch import as_array
from unisono.data.source import Indices, Source
from unisono.data.tree import map_tree, stack
from unisono.errors import UsageError


class Items(Source):
    """`Items(dataset)`: a sample is `(input,)`, `(input, target)`, `(input, target, weight)`, or the input alone."""

    def __init__(self, items: Any) -> None:
        if not hasattr(items, "__len__") or not hasattr(items, "__getitem__"):
            hint = "pass its dataset instead" if hasattr(items, "dataset") else "samples are read by number, so define both"
            raise UsageError(f"{type(items).__name__} has no __len__ or no __getitem__; {hint}")
        self.items = items
        if not len(items):
            raise UsageError(f"{type(items).__name__} has no samples; give at least one")

    def __len__(self) -> int:
        return len(self.items)

    def read(self, indices: Indices) -> Any:
        numbers = [int(index) for index in indices]
        many = getattr(self.items, "__getitems__", None)  # torch's way to get several at once
        samples = many(numbers) if many is not None else [self.items[number] for number in numbers]
        return stack([self._batch_like(sample) for sample in samples], type(self.items).__name__)

    def targets(self) -> npt.NDArray[Any] | None:
        known = getattr(self.items, "targets", None)
        if known is None or callable(known) or not hasattr(known, "__len__") or len(known) != len(self):
            return None
        return as_array(known)

    def describe(self) -> Mapping[str, Any]:
        return {**super().describe(), "of": f"{type(self.items).__module__}.{type(self.items).__qualname__}"}

    @cached_property
    def in_data_set(self) -> tuple[Any, Indices] | None:
        """For a Subset of torch, e.g. from random_split, its data set and the numbers of its samples in that; None for others.
        Local."""
        holder, numbers = self.items, None
        while (places := _places(holder)) is not None:
            holder, numbers = holder.dataset, places if numbers is None else places[numbers]
        return None if numbers is None else (holder, numbers)

    def _batch_like(self, sample: Any) -> tuple[Any, ...]:
        """Returns a sample as a tuple of input, and target and weight if it has them, of arrays; refuses more parts."""
        parts = tuple(sample) if isinstance(sample, (tuple, list)) else (sample,)
        if not 1 <= len(parts) <= 3:
            raise UsageError(
                f"a sample of {type(self.items).__name__} has {len(parts)} parts; a sample is (input, target) or "
                "(input, target, weight), where inputs and targets may be tuples or dicts themselves"
            )
        return tuple(map_tree(as_array, part) for part in parts)


def _places(items: Any) -> Indices | None:
    """Returns the numbers by which a data set names its samples in another one, as a Subset of torch does; else None."""
    named: Any = getattr(items, "indices", None)
    if not hasattr(items, "dataset") or not hasattr(named, "__len__") or len(named) != len(items):
        return None
    places = np.asarray(named)
    return places.astype(np.int64) if places.ndim == 1 and places.dtype.kind in "iu" else None
