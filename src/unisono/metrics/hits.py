"""Shares of right decisions: two sums, cheap enough for every training step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from unisono.errors import UsageError
from unisono.metrics.base import DECISIONS, Metric, Sums, ratio
from unisono.metrics.decisions import aligned, decisions_of, importance_of, is_classes
from unisono.model.losses.base import Reading
from unisono.model.targets import as_labels

ON_HOST = (torch.float32, torch.float64)
MOST_TOTALS = 64
"""Totals whose constants are kept: a training has a few sizes of batches, a stream of sentences has many."""


class HitsAndTotal:
    """Makes [hits, total] for a known total in one operation, with constants that are kept for the first totals."""

    def __init__(self) -> None:
        self._constants: dict[tuple[int, torch.device], tuple[Tensor, Tensor]] = {}

    def of(self, num_hits: Tensor, total: int) -> Tensor:
        """Local: returns [num_hits, total]; `num_hits` is a tensor with one number, on any device."""
        found = self._constants.get((total, num_hits.device))
        if found is None:
            found = self._make(total, num_hits.device)
        return torch.addcmul(*found, num_hits)

    def _make(self, total: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Returns [0, total] and [1, 0] on this device."""
        total_only, hits_only = torch.zeros(2, 2, dtype=torch.float64, device=device)
        total_only[1].fill_(total)
        hits_only[0].fill_(1)
        # Recorded work reads the same memory in every repetition, so nothing kept is ever dropped; and tensors that are made while
        # work is recorded have no values before that work runs.
        if len(self._constants) < MOST_TOTALS and not (device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
            self._constants[total, device] = total_only, hits_only
        return total_only, hits_only


def share(hits: Tensor, counted: Tensor | None) -> Tensor:
    """Pure: returns [sum of the weights of the hits, sum of all weights]."""
    if counted is None:
        return functional.pad(hits.sum(dtype=torch.float64).view(1), (0, 1), value=float(hits.numel()))
    return torch.stack(((hits * counted).sum(dtype=torch.float64), counted.sum(dtype=torch.float64)))


class Accuracy(Metric):
    """The share of right decisions, over samples, places and labels alike."""

    name = "accuracy"
    needs = DECISIONS
    num_sums = 2

    def __init__(self, reading: Reading) -> None:
        self.reading: Reading = reading
        self._pair = HitsAndTotal()
        self._counts_all = reading.ignore_label is None and not reading.channels_last

    def sums(self, outputs: Any, targets: Any, weights: Tensor | None = None) -> Tensor:
        if weights is None and self._counts_all and is_classes(outputs, targets):  # the way of most steps
            return self._pair.of((outputs.argmax(1) == targets).count_nonzero(), targets.numel())
        decided = decisions_of(outputs, targets, weights, self.reading, self.label)
        return share(decided.predicted == decided.truth, decided.importance)

    def recordable_sums(self, outputs: Any, targets: Any, weights: Tensor | None = None) -> Tensor:
        return self.sums(outputs, targets, weights)

    def quick_sums(self, outputs: Any, targets: Any, weights: Tensor | None = None) -> tuple[float, ...] | None:
        if weights is not None or not self._counts_all or not is_classes(outputs, targets):
            return None
        if outputs.device.type != "cpu" or outputs.dtype not in ON_HOST:
            return None
        return float(np.count_nonzero(outputs.detach().numpy().argmax(1) == targets.numpy())), float(targets.numel())

    def value(self, sums: Sums) -> float:
        return ratio(sums[0], sums[1])


class TopAccuracy(Metric):
    """The share of samples whose class is among the `k` largest outputs."""

    needs = DECISIONS
    num_sums = 2

    def __init__(self, k: int, reading: Reading) -> None:
        self.name = f"top_{k}_accuracy"
        self.k = k
        self.reading: Reading = reading

    def sums(self, outputs: Any, targets: Any, weights: Tensor | None = None) -> Tensor:
        outputs, targets = aligned(outputs, targets, self.reading, self.label)
        if not is_classes(outputs, targets) or outputs.shape[1] < self.k:
            raise UsageError(
                f"{self.label} needs one class for each sample and at least {self.k} classes; "
                f"received outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)}"
            )
        truth = as_labels(outputs, targets, self.label)
        hits = (outputs.topk(self.k, dim=1).indices == truth.unsqueeze(1)).any(1)
        return share(hits, importance_of(truth, weights, self.reading, self.label))

    def recordable_sums(self, outputs: Any, targets: Any, weights: Tensor | None = None) -> Tensor:
        return self.sums(outputs, targets, weights)

    def value(self, sums: Sums) -> float:
        return ratio(sums[0], sums[1])
