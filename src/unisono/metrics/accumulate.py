"""Accumulates loss and metrics over many batches on many workers; the values are those that one worker would find."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from unisono.comm.base import Communicator
from unisono.errors import UsageError
from unisono.metrics.base import GatheredMetric, Metric, one_number, ratio
from unisono.model.base import Evaluated

NUM_LOSS_SUMS = 2
NOTHING = -0.0
"""The number to which every other is added without a change of its bits, also -0."""

_Stretch = tuple[list[float], dict[str, list[float]]]
"""Sums of the loss, and of each metric by its name."""


class Accumulator:
    """Loss and metrics over the batches of an evaluation. `add` is local and does not wait for the device; `combine` makes it
    global; `values` reads."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self.metrics = tuple(metrics)
        self._summed = tuple(metric for metric in self.metrics if not isinstance(metric, GatheredMetric))
        self._gathered = tuple(metric for metric in self.metrics if isinstance(metric, GatheredMetric))
        self._loss: Tensor | None = None
        self._sums: dict[str, Tensor] = {}
        self._rows: dict[str, list[Tensor]] = {metric.name: [] for metric in self._gathered}
        self._stretches: list[_Stretch] = []

    def add(
        self, outputs: Any, targets: Any, weights: Tensor | None, loss_sum: Tensor | float, loss_weight: Tensor | float
    ) -> None:
        """Local: adds the loss and metric sums of one batch; batches come in sample order."""
        if isinstance(loss_sum, Tensor):
            device = loss_sum.device
        else:
            device = torch.device("cpu") if self._loss is None else self._loss.device
        before = _no_loss(device) if self._loss is None else self._loss.to(device)
        self._loss = before + _pair(loss_sum, loss_weight, device)
        self.add_metrics(self.metrics, outputs, targets, weights)

    def add_evaluated(self, seen: Evaluated) -> None:
        """Local: as `add`; a batch without a loss counts nothing for it."""
        self.add(seen.outputs, seen.targets, seen.weights, _loss_of(seen), seen.loss_weight)

    def add_metrics(self, metrics: Iterable[Metric], outputs: Any, targets: Any, weights: Tensor | None) -> None:
        """Local: adds the sums, or rows, of one batch of some of the metrics."""
        for metric in metrics:
            if isinstance(metric, GatheredMetric):
                self._rows[metric.name].append(metric.rows(outputs, targets, weights))
            else:
                sums = metric.sums(outputs, targets, weights)
                self._sums[metric.name] = self._sums[metric.name] + sums if metric.name in self._sums else sums

    def move_to(self, loss: Tensor, sums: Mapping[str, Tensor]) -> None:
        """Local: moves the sums of the loss, and of metrics by their names, into memory to which recorded work adds those of the
        next batch. `add` takes them out of it again."""
        if self._loss is None:
            loss.zero_()
        elif self._loss is not loss:
            loss.copy_(self._loss)
        self._loss = loss
        for name, memory in sums.items():
            before = self._sums.get(name)
            if before is None:
                memory.fill_(NOTHING)
            elif before is not memory:
                memory.copy_(before)
            self._sums[name] = memory

    def end_chunk(self) -> None:
        """Local; waits for the device: ends a chunk; what is added from now on is kept apart. `combine` adds the chunks of all
        ranks one by one, so that the result does not depend on which rank had how many of them."""
        self._stretches.append((self._loss_so_far().tolist(), {name: sums.tolist() for name, sums in self._sums.items()}))
        self._loss = None
        self._sums = {}

    def combine(self, comm: Communicator, in_chunks: bool = False) -> None:
        """Collective, blocking, once: from here on the values are those of all ranks' samples, in rank order. `in_chunks`: the
        ranks have ended chunks, some of them maybe none."""
        if in_chunks:
            self._add_sums_in_order(comm)
        widths = [metric.num_sums for metric in self._summed]
        if self._gathered or None in widths:
            known = comm.allgather_object(self._shapes())
            for position, metric in enumerate(self._summed):
                widths[position] = _common_value([one[0][position] for one in known], metric.label)
        if not in_chunks:
            self._reduce_sums(comm, [width or 0 for width in widths])
        if self._gathered:
            self._gather_rows(comm, [one[1] for one in known])

    @property
    def loss_weight(self) -> float:
        """Local; waits for the device: returns the total weight of the loss, 0 where no batch had a loss."""
        return self._loss_so_far()[1].item()

    def values(self, prefix: str = "val_") -> dict[str, float]:
        """Local: returns the loss and every metric, e.g. {"val_loss": 0.1, "val_accuracy": 0.97}."""
        found = {f"{prefix}loss": ratio(*self._loss_so_far().tolist())}
        for metric in self.metrics:
            if isinstance(metric, GatheredMetric):
                rows = self._rows[metric.name]
                data = torch.cat(rows).cpu().numpy() if rows else None
            else:
                sums = self._sums.get(metric.name)
                data = None if sums is None else sums.cpu().numpy()
            found[prefix + metric.name] = float("nan") if data is None or not data.size else metric.value(data)
        return found

    def _loss_so_far(self) -> Tensor:
        """Returns the sums of the loss, zeros before the first batch."""
        return _no_loss(torch.device("cpu")) if self._loss is None else self._loss

    def _shapes(self) -> tuple[list[int | None], list[tuple[int, int | None, Any]]]:
        """Returns widths of the sums; rows, width and layout of what is gathered. What is unknown before a batch is None."""
        widths = [len(self._sums[metric.name]) if metric.name in self._sums else None for metric in self._summed]
        gathered = []
        for metric in self._gathered:
            rows = self._rows[metric.name]
            gathered.append((sum(map(len, rows)), rows[0].shape[1] if rows else None, metric.layout if rows else None))
        return widths, gathered

    def _add_sums_in_order(self, comm: Communicator) -> None:
        """Adds the chunks of all ranks in the order of ranks, so that how many each had does not matter. Collective, blocking."""
        self._loss = self._loss_so_far()
        for loss, sums in (stretch for own in comm.allgather_object(self._stretches) for stretch in own):
            self._loss = self._loss + torch.tensor(loss, dtype=torch.float64)
            for name, values in sums.items():
                added = torch.tensor(values, dtype=torch.float64)
                self._sums[name] = self._sums[name] + added if name in self._sums else added

    def _reduce_sums(self, comm: Communicator, widths: Sequence[int]) -> None:
        """Adds the loss and metric sums of all ranks. Collective, blocking."""
        # One message for all, however many metrics.
        parts = [self._loss_so_far()]
        for metric, width in zip(self._summed, widths, strict=True):
            parts.append(self._sums.get(metric.name, torch.zeros(width, dtype=torch.float64)))
        buffer = torch.cat([part.to(comm.device) for part in parts])
        comm.allreduce(buffer)
        self._loss, *sums = torch.split(buffer, [NUM_LOSS_SUMS, *widths])
        self._sums = {metric.name: part for metric, part in zip(self._summed, sums, strict=True)}

    def _gather_rows(self, comm: Communicator, known: Sequence[Sequence[tuple[int, int | None, Any]]]) -> None:
        """Gathers the rows of all ranks, for metrics that no sums give. Collective, blocking."""
        for position, metric in enumerate(self._gathered):
            lengths = [one[position][0] for one in known]
            width = _common_value([one[position][1] for one in known], metric.label) or 0
            metric.layout = _common_value([one[position][2] for one in known], metric.label)
            own = self._rows[metric.name]
            mine = torch.cat(own).to(comm.device) if own else torch.empty(0, width, dtype=torch.float64, device=comm.device)
            everyone = torch.empty(sum(lengths), width, dtype=torch.float64, device=comm.device)
            comm.allgather(everyone, mine.contiguous(), [length * width for length in lengths])
            self._rows[metric.name] = [everyone]


def loss_sums(seen: Evaluated, device: torch.device) -> Tensor:
    """Local: returns loss sum and weight of a batch as a vector on this device, without a wait for it."""
    return _pair(_loss_of(seen), seen.loss_weight, device)


def _loss_of(seen: Evaluated) -> Tensor | float:
    return 0.0 if seen.loss_sum is None else seen.loss_sum


def _pair(loss_sum: Tensor | float, loss_weight: Tensor | float, device: torch.device) -> Tensor:
    return torch.stack([one_number(part, device) for part in (loss_sum, loss_weight)])


def _no_loss(device: torch.device) -> Tensor:
    return torch.zeros(NUM_LOSS_SUMS, dtype=torch.float64, device=device)


def _common_value(answers: Sequence[Any], label: str) -> Any:
    """Returns the answer of the ranks that know it, None where no rank does; refuses answers that differ."""
    known = [answer for answer in answers if answer is not None]
    if any(answer != known[0] for answer in known):
        raise UsageError(
            f"{label}: outputs differ in shape between ranks: {answers}; the model must return the same shape on every rank"
        )
    return known[0] if known else None
