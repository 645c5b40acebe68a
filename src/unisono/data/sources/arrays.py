"""Samples in memory: any nesting of NumPy arrays and torch CPU tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from unisono.data.batch import as_arrays, batch_of, label_array, shapes
from unisono.data.source import Indices, Source
from unisono.data.tree import map_tree, num_rows


class Arrays(Source):
    """`Arrays(inputs, targets, weights)`: each a nesting of arrays that share their first axis. Nothing is copied until read."""

    in_memory = True

    def __init__(self, inputs: Any, targets: Any = None, weights: Any = None) -> None:
        self.batch = as_arrays(batch_of(inputs, targets, weights), "the data")
        self._num_samples = num_rows(self.batch, "the data")

    def __len__(self) -> int:
        return self._num_samples

    def read(self, indices: Indices) -> Any:
        return map_tree(lambda leaf: leaf.take(indices, 0), self.batch)

    def targets(self) -> npt.NDArray[Any] | None:
        return label_array(self.batch[1]) if len(self.batch) > 1 else None

    def describe(self) -> Mapping[str, Any]:
        return {**super().describe(), "shapes": shapes(self.batch)}
