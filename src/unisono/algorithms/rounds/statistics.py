"""Running statistics of all workers become their mean, which is that of their changes since they were last equal:

    b <- before + (sum over workers of (b_i - before)) / (number of workers)

So a buffer that never changes keeps its bits, infinite ones too. What a worker adds while the changes travel is kept on top.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from unisono.comm.base import Communicator
from unisono.model.base import ModelAdapter


class RunningStatistics:
    """Of one worker among `num_workers`, whose statistics are equal when this is made. Each sees as much data as the others."""

    def __init__(self, adapter: ModelAdapter, num_workers: int) -> None:
        self._adapter = adapter
        self._num_workers = num_workers
        self._vectors = [vector for vector in adapter.statistics() if vector.numel()] if num_workers > 1 else []
        self.before = [vector.clone() for vector in self._vectors]
        self._changes: list[Tensor] = []
        self._sent: list[Tensor] = []
        self._is_out = False

    def changes(self) -> Sequence[Tensor]:
        """Local: what is to be summed over the workers, in place; then come `on_reduced` and `apply`."""
        self._adapter.statistics()  # takes back what the user's code has put in their place
        self._make_buffers()
        for vector, before, change, sent in zip(self._vectors, self.before, self._changes, self._sent, strict=True):
            sent.copy_(vector)
            change.copy_(_difference(vector, before))
        self._is_out = True
        return self._changes

    def on_reduced(self) -> None:
        """Local: the sums are there."""
        for change in self._changes:
            change.div_(self._num_workers)

    def apply(self) -> None:
        """Local: the mean takes the place of what was sent."""
        if not self._is_out:
            return
        self._is_out = False
        for vector, before, change, sent in zip(self._vectors, self.before, self._changes, self._sent, strict=True):
            later = _difference(vector, sent)
            before.add_(change)
            vector.copy_(before + later)

    def synchronise(self, comm: Communicator) -> None:
        """Collective, blocking: all three at once."""
        if self._vectors:
            comm.allreduce(list(self.changes()))
            self.on_reduced()
            self.apply()

    def in_flight(self) -> dict[str, Any]:
        """Local: between `on_reduced` and `apply`, what `restore` needs. Tensors are not copied."""
        return {"changes": self._changes, "sent": self._sent}

    def restore(self, before: Sequence[Tensor], in_flight: Mapping[str, Any] | None = None) -> None:
        """Local: resume with the attribute `before` and with what `in_flight` gave, to as many workers."""
        for own, saved in zip(self.before, before, strict=True):
            own.copy_(saved)
        if in_flight is None:
            return
        self._make_buffers()
        self._is_out = True
        for name, buffers in (("changes", self._changes), ("sent", self._sent)):
            for own, saved in zip(buffers, in_flight[name], strict=True):
                own.copy_(saved)

    def _make_buffers(self) -> None:
        if not self._changes:
            self._changes = [torch.empty_like(vector) for vector in self._vectors]
            self._sent = [torch.empty_like(vector) for vector in self._vectors]


def _difference(now: Tensor, before: Tensor) -> Tensor:
    return torch.where(now == before, 0, now - before)
