"""The sums of the steps of a round, as rows of one matrix that travels with the weights: one exchange reports many steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unisono.comm.base import Communicator
from unisono.model.tail import HEAD, StepStats
from unisono.model.torch.adapter import TorchAdapter
from unisono.model.torch.own_step import loss_name


class Rows:
    """The sums of several steps as a matrix: those of this worker, and once `matrix` is summed over the workers those of all."""

    def __init__(self, steps: Sequence[int], matrix: Tensor, num_metric_sums: int, names: Sequence[str]) -> None:
        self.matrix = matrix
        self._steps = steps
        self._num_metric_sums = num_metric_sums
        self._names = names

    def read(self) -> list[StepStats]:
        """Local; waits for the device: the sums of each step, in their order."""
        return [self._stats_of_step(step, row) for step, row in zip(self._steps, self.matrix.cpu().numpy(), strict=True)]

    def _stats_of_step(self, step: int, row: npt.NDArray[np.float64]) -> StepStats:
        """Returns the sums in this row as the statistics of `step`."""
        loss, weight, samples, stops, saves, not_finite = row[:HEAD].tolist()
        pairs = row[HEAD + self._num_metric_sums :].reshape(-1, 2).tolist()
        named = {name: (value, of) for name, (value, of) in zip(self._names, pairs, strict=True) if of}
        sums = row[HEAD : HEAD + self._num_metric_sums].copy()
        return StepStats(step, loss, weight, int(samples), int(stops), int(saves), int(not_finite), sums, named)


class Tails:
    """Keeps the sums of this worker's steps until they are exchanged. Local."""

    def __init__(self, comm: Communicator, adapter: TorchAdapter, is_group_leader: bool) -> None:
        self._comm = comm
        self._is_group_leader = is_group_leader
        """All processes that form a worker have the same sums, and its first one sends them."""
        self._num_metric_sums = adapter.tail.metric_sums.numel()
        self._names = [] if adapter.own_step is None else [loss_name(part) for part in adapter.parts]
        self._waiting: list[StepStats] = []
        self._buffer: Tensor | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, stats: Iterable[StepStats]) -> None:
        """Adds the statistics of steps, which are sent at the end of the round."""
        self._waiting.extend(stats)

    def pop_rows(self, apart: bool = False) -> Rows:
        """Local: returns the sums that wait as a matrix and forgets them. `apart`: the memory of the matrix before is still in
        use."""
        width = HEAD + self._num_metric_sums + 2 * len(self._names)
        steps, found = [stats.step for stats in self._waiting], np.zeros((len(self._waiting), width))
        if self._is_group_leader:
            for row, stats in zip(found, self._waiting, strict=True):
                row[:HEAD] = stats.head
                row[HEAD : HEAD + self._num_metric_sums] = stats.metric_sums
                for place, name in enumerate(self._names):
                    start = HEAD + self._num_metric_sums + 2 * place
                    row[start : start + 2] = stats.named.get(name, (0.0, 0.0))
        self._waiting.clear()
        matrix = self._empty_rows(found.shape, apart).copy_(torch.from_numpy(found))
        return Rows(steps, matrix, self._num_metric_sums, self._names)

    def _empty_rows(self, shape: tuple[int, ...], apart: bool) -> Tensor:
        """Returns a buffer of this shape: a fresh one if it lies `apart`, else one that is used again and again."""
        if apart:
            return self._comm.empty(shape, torch.float64)
        if self._buffer is None or len(self._buffer) < shape[0]:
            self._buffer = self._comm.empty(shape, torch.float64)
        return self._buffer[: shape[0]]
