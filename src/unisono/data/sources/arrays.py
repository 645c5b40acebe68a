"""Samples in memory: any nesting of NumPy arrays and torch CPU tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from unisono.data.batch import as_arrays, batch_of, label_array, shapes
from unisono.data.source import Indices, Source
from unisono.data.tree import map_tree, num_rows


class Arrays(Source):
    """Samples in memory: NumPy arrays and torch tensors whose first axis is the sample.

    Inputs and targets may be dicts and tuples of arrays, for models with several inputs or outputs. Nothing is copied until
    samples are read. Tensors must lie in CPU memory. Arrays of different lengths, text, Python objects, plain lists, and
    weights without targets are refused. NaN and infinity are refused when a training starts, unless it runs with
    on_nan="skip". Local.

    Example:
        import numpy as np
        import unisono as un

        inputs = {"image": np.zeros((100, 8, 8), np.float32), "age": np.zeros((100, 1), np.float32)}
        source = un.Arrays(inputs, np.zeros(100, np.int64))
        source.read([0, 1, 2])[0]["image"].shape  # -> (3, 8, 8)

    Args:
        inputs: What the model is given.
        targets: What it should answer; left out, there are none, as when a model is applied.
        weights: How much each sample counts in the loss; left out, all count 1.
    """

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
