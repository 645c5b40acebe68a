"""A user's own metric: a function that gives a value for each sample, the pair (sum, weight), or, gathered, one number of all."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unisono.data.tree import leaves, map_tree
from unisono.errors import UsageError
from unisono.metrics.base import GatheredMetric, Metric, Sums, one_number, ratio
from unisono.metrics.hits import share
from unisono.model.targets import across, refuse_other_number
from unisono.task.metric_names import direction_of

WHY = "means of single workers cannot be combined exactly"
REMEDY = (
    "return one value for each sample or the pair (sum, weight), "
    "or set `gathered = True` on the function to receive all outputs and targets at once"
)


def custom_metric(function: Callable[..., Any]) -> Metric:
    """Pure: returns the metric of a user's function, by its attributes `name`, `higher_is_better` and `gathered`."""
    return CustomGathered(function) if getattr(function, "gathered", False) else CustomMean(function)


def _name_of_function(function: Callable[..., Any]) -> str:
    """Returns the name by which this metric is shown; refuses a function without a proper name."""
    name = getattr(function, "name", None) or getattr(function, "__name__", None)
    if not isinstance(name, str) or not name.isidentifier():
        raise UsageError(f"the metric {function!r} has no name; define it with def, or set its attribute `name`")
    return name


def _takes_weights(function: Callable[..., Any]) -> bool:
    """Returns whether the function has a parameter called weights."""
    try:
        return "weights" in inspect.signature(function).parameters
    except ValueError:  # some compiled functions do not tell
        return False


class CustomMean(Metric):
    """The mean of `function(outputs, targets)`, which treats each sample alone. With a third parameter called `weights` it receives
    the sample weights or None, and then gives (sum, weight)."""

    num_sums = 2

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.name = _name_of_function(function)
        self.higher_is_better = direction_of(function, self.name)
        self._takes_weights = _takes_weights(function)

    def sums(self, outputs: Any, targets: Any, weights: Tensor | None = None) -> Tensor:
        result = self.values(outputs, targets, weights)
        if isinstance(result, tuple) and len(result) == 2:
            if weights is not None and not self._takes_weights:
                raise UsageError(
                    f"{self.label} returns (sum, weight), but the data have sample weights; "
                    "add a third parameter called weights, which receives them"
                )
            device = next((part.device for part in result if isinstance(part, Tensor)), torch.device("cpu"))
            return torch.stack([one_number(part, device) for part in result])
        if self._takes_weights:
            raise UsageError(f"{self.label} takes sample weights, so it must return (sum, weight)")
        if not isinstance(result, (Tensor, np.ndarray)) or result.ndim == 0:
            raise UsageError(f"{self.label} returned one number, and {WHY}; {REMEDY}")
        values = torch.as_tensor(result)
        refuse_other_number(values, targets, f"{self.label}: {WHY}; {REMEDY}")
        if weights is None:
            return share(values, None)
        return share(values, across(weights.to(torch.float64), values, self.label).expand(values.shape))

    def values(self, outputs: Any, targets: Any, weights: Tensor | None) -> Any:
        """What the function returns."""
        with torch.no_grad():
            return self.function(outputs, targets, **({"weights": weights} if self._takes_weights else {}))

    def value(self, sums: Sums) -> float:
        return ratio(sums[0], sums[1])


class CustomGathered(GatheredMetric):
    """`function(outputs, targets)` of all samples as NumPy arrays in sample order, in the nesting that the model gives; with a
    third parameter called `weights` also of the sample weights, 1 each where there are none."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.name = _name_of_function(function)
        self.higher_is_better = direction_of(function, self.name)
        self._takes_weights = _takes_weights(function)

    def rows(self, outputs: Any, targets: Any, weights: Tensor | None = None) -> Tensor:
        if weights is not None and not self._takes_weights:
            raise UsageError(f"the data have sample weights, which {self.label} does not take; add a parameter called weights")
        tensors = [leaf for _, leaf in leaves((outputs, targets))]
        if self._takes_weights:
            tensors.append(tensors[0].new_ones(len(tensors[0])) if weights is None else weights)
        self.layout = map_tree(_kind, (outputs, targets))
        return torch.cat([leaf.detach().to(torch.float64).reshape(len(leaf), -1) for leaf in tensors], dim=1)

    def value(self, sums: Sums) -> float:
        if not len(sums):
            return float("nan")
        start = 0

        def array(kind: str) -> Any:
            nonlocal start
            dtype, *lengths = kind.split()
            shape = [int(length) for length in lengths]
            stop = start + int(np.prod(shape, dtype=np.int64))
            part = sums[:, start:stop].reshape(-1, *shape).astype(dtype)
            start = stop
            return part

        outputs, targets = map_tree(array, self.layout)
        given = {"weights": sums[:, start]} if self._takes_weights else {}
        return float(self.function(outputs, targets, **given))


def _kind(leaf: Tensor) -> str:
    """Returns type and shape of one sample; types of half precision become float32, which NumPy knows."""
    dtype = torch.float32 if leaf.dtype == torch.bfloat16 else leaf.dtype
    return " ".join((str(dtype).removeprefix("torch."), *map(str, leaf.shape[1:])))
