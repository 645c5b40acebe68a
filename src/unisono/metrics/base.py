"""The interface of metrics: sums over samples, or rows of scores. Everything else follows from adding or gathering them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unisono.model.losses.base import Reading

Sums = npt.NDArray[np.float64]
DECISIONS, SCORES, VALUES = "decisions", "scores", "values"
"""A metric decides from outputs for classes or labels, orders samples by them, or compares them with targets as numbers."""


class Metric(ABC):
    """A number that is a function of sums over samples. Sums of several batches and workers are added, never averaged."""

    name: str
    higher_is_better: bool | None = True
    """None where it is not known: nothing is judged by this metric unless a user says it (`task/metric_names.py`)."""
    needs: str | None = None
    """How it reads outputs: DECISIONS, SCORES or VALUES; None for a user's own, which reads them as it likes."""
    reading: Reading | None = None
    """How it reads outputs and targets as classes or labels; None where it reads them as numbers."""
    num_sums: int | None = None
    """Number of sums, where it is fixed; such metrics can be computed in every training step. None: it depends on the classes,
    or scores are gathered."""

    @cached_property
    def label(self) -> str:
        """Text that names this metric in messages."""
        return f"metric {self.name!r}"

    @abstractmethod
    def sums(self, outputs: Any, targets: Any, weights: Tensor | None = None) -> Tensor:
        """Local: returns the sums of one batch, 1-D float64 on the device of the outputs; without host synchronisation where
        `num_sums` is fixed."""

    def quick_sums(self, outputs: Any, targets: Any, weights: Tensor | None = None) -> tuple[float, ...] | None:  # noqa: ARG002
        """Local: returns the sums as plain numbers where the host computes them faster than torch starts an operation; else
        None."""
        return None

    def recordable_sums(self, outputs: Any, targets: Any, weights: Tensor | None = None) -> Tensor | None:  # noqa: ARG002
        """Local: returns the numbers of `sums` by work on the device alone, which can be recorded and repeated for other batches of
        these shapes: it neither waits for the device nor keeps anything. None where that cannot be, as for a user's code."""
        return None

    @abstractmethod
    def value(self, sums: Sums) -> float:
        """Pure: returns the metric of the samples whose sums these are; NaN where there are no samples."""


class GatheredMetric(Metric):
    """Base of metrics that need the scores of all samples at once."""

    layout: Any = None
    """Plain data that `value` needs besides the rows. Set by `rows`; a rank without samples gets it from the others."""

    def sums(self, outputs: Any, targets: Any, weights: Tensor | None = None) -> Tensor:  # noqa: ARG002
        raise TypeError(f"{self.label} is gathered: it has rows, not sums")

    @abstractmethod
    def rows(self, outputs: Any, targets: Any, weights: Tensor | None = None) -> Tensor:
        """Local: returns the rows of one batch, (samples or positions, numbers) float64 on the device of the outputs."""

    @abstractmethod
    def value(self, sums: Sums) -> float:
        """Pure: returns the metric of all rows, in sample order; NaN where there are none."""


def one_number(value: Tensor | float, device: torch.device) -> Tensor:
    """Local: returns a number as a float64 tensor without axes; a Python number is copied to the device without waiting for it."""
    if isinstance(value, Tensor):
        return value.detach().to(device, torch.float64).reshape(())
    return torch.full((), float(value), dtype=torch.float64, device=device)


def ratio(numerator: float, denominator: float) -> float:
    """Pure: returns the quotient; NaN where the denominator is 0."""
    return float(numerator) / float(denominator) if denominator else float("nan")
