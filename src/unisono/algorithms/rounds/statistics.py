"""Replaces running statistics by their mean over all workers, computed from their changes since they were last equal:

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
    """Averages the running statistics of `num_workers` workers, which are equal when this is made. Each sees as much data as the
    others."""

    def __init__(self, adapter: ModelAdapter, num_workers: int) -> None:
        self._adapter = adapter
        self._num_workers = num_workers
        self._vectors = [vector for vector in adapter.statistics() if vector.numel()] if num_workers > 1 else []
        self.before = [vector.clone() for vector in self._vectors]
        self._changes: list[Tensor] = []
        self._sent: list[Tensor] = []
        self._is_out = False

    def changes(self) -> Sequence[Tensor]:
        """Local: the vectors to be summed over the workers, in place; call `on_reduced` and `apply` afterwards."""
        self._adapter.statistics()  # takes back what the user's code has put in their place
        self._make_buffers()
        for vector, before, change, sent in zip(self._vectors, self.before, self._changes, self._sent, strict=True):
            sent.copy_(vector)
            change.copy_(_change_of(vector, before))
        self._is_out = True
        return self._changes

    def on_reduced(self) -> None:
        """Local: turns the sums over the workers into means."""
        for change in self._changes:
            change.div_(self._num_workers)

    def apply(self) -> None:
        """Local: replaces what was sent by the mean; what the statistics have changed since is kept."""
        if not self._is_out:
            return
        self._is_out = False
        for vector, before, change, sent in zip(self._vectors, self.before, self._changes, self._sent, strict=True):
            later = _change_of(vector, sent)
            before.add_(change)
            vector.copy_(before + later)

    def synchronise(self, comm: Communicator) -> None:
        """Collective, blocking: sums the changes and applies their mean, in one call."""
        if self._vectors:
            comm.allreduce(list(self.changes()))
            self.on_reduced()
            self.apply()

    def in_flight(self) -> dict[str, Any]:
        """Local: what `restore` needs of an exchange between `on_reduced` and `apply`. Tensors are not copied."""
        return {"changes": self._changes, "sent": self._sent}

    def restore(self, before: Sequence[Tensor], in_flight: Mapping[str, Any] | None = None) -> None:
        """Local: resumes with the attribute `before` and with what `in_flight` gave, on the same number of workers."""
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
        """Makes the vectors for what is sent, at the first call."""
        if not self._changes:
            self._changes = [torch.empty_like(vector) for vector in self._vectors]
            self._sent = [torch.empty_like(vector) for vector in self._vectors]


def _change_of(now: Tensor, before: Tensor) -> Tensor:
    """Returns `now - before`, and 0 where they are equal, which infinite values may be."""
    return torch.where(now == before, 0, now - before)
