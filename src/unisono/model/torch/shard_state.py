"""The state of a model besides its weights while a batch is computed shard by shard: all shards of a step begin with the same
state."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from unisono.errors import UsageError
from unisono.model.torch.adapter import TorchAdapter
from unisono.model.torch.frozen_parameters import FrozenParameters

FROZEN_CHECK_STEPS = 3
"""Number of first steps in which frozen parameters are checked; a model that changes them does so from the start."""
_REMEDY = "so the result would depend on the number of workers; change the model, or leave --shards out"


class ShardState:
    """Running statistics and counters of one replica. Local. The changes of all shards are averaged.

    Vectors of `changes` travel with the gradient: one for each vector of statistics, and one with the changes of the counters
    and the number of shards that had samples. State that cannot be averaged is refused."""

    def __init__(self, adapter: TorchAdapter, empty: Callable[[int, torch.dtype], Tensor]) -> None:
        self._adapter = adapter
        self._vectors = [vector for vector in adapter.statistics() if vector.numel()]
        self._before = [vector.clone() for vector in self._vectors]
        self._counted = [counter.clone() for counter in adapter.counters()]
        self._sizes = [0 if counter.is_complex() else counter.numel() for counter in self._counted]
        self._counts = empty(1 + sum(self._sizes), torch.float64)
        of_vectors = [empty(vector.numel(), vector.dtype) for vector in self._vectors]
        self.changes = [*of_vectors, self._counts] if self._vectors or self._counted else []
        self._frozen = FrozenParameters(adapter.model)
        self._frozen_checks_left = FROZEN_CHECK_STEPS

    def begin(self) -> None:
        """Copies the state with which all shards of the step begin."""
        self._adapter.statistics()  # copies back what the user's code has put in their place
        for before, now in zip((*self._before, *self._counted), (*self._vectors, *self._counters()), strict=True):
            before.copy_(now)
        if self._frozen_checks_left:
            self._frozen.note()

    def record_change(self, has_samples: bool) -> None:
        """Writes what a shard changed into `changes`, then restores the state at the start of the step."""
        self._adapter.statistics()
        for change, vector, before in zip(self.changes, self._vectors, self._before, strict=False):
            torch.sub(vector, _base(before), out=change)
            vector.copy_(before)
        self._counts[0] = float(has_samples)
        for place, counter, before in zip(self._places_of_counts(), self._counters(), self._counted, strict=True):
            if counter.is_complex():
                if not torch.equal(counter, before):
                    raise UsageError(f"a complex buffer of the model changes during training, {_REMEDY}")
                continue
            place.copy_((counter.long() - before.long()).reshape(-1))
            counter.copy_(before)
        self._check_frozen()

    def end(self) -> None:
        """Applies `changes`, which now hold the sums over all shards."""
        num_shards = self._counts[:1]
        for change, vector in zip(self.changes, self._vectors, strict=False):
            vector.copy_(_base(vector).add_(change.div_(num_shards.to(change.dtype))))
        for place, counter in zip(self._places_of_counts(), self._counters(), strict=True):
            if not counter.is_complex():
                counter.copy_(counter.long() + (place / num_shards).round().long().view(counter.shape))
        if late := self._adapter.unknown_buffers():
            raise UsageError(f"the buffer {late[0]} of the model was created or resized during training, {_REMEDY}")

    def put_back(self) -> None:
        """Restores the state at the last `begin`, after an evaluation, whose changes are dropped."""
        self._adapter.statistics()
        for before, now in zip((*self._before, *self._counted), (*self._vectors, *self._counters()), strict=True):
            now.copy_(before)

    def _counters(self) -> list[Tensor]:
        """Returns the counters; read again each time, as user code may replace the tensors."""
        found = self._adapter.counters() if self._counted else []
        if [one.shape for one in found] != [one.shape for one in self._counted]:
            raise UsageError(f"a buffer of the model was created or resized during training, {_REMEDY}")
        return found

    def _places_of_counts(self) -> Sequence[Tensor]:
        """Returns the counters of each entry as views of one vector; none without counters."""
        return torch.split(self._counts[1:], self._sizes) if self._sizes else ()

    def _check_frozen(self) -> None:
        """Refuses a model that changes a frozen parameter itself; compares their sums in the first steps only."""
        if not self._frozen_checks_left:
            return
        if (name := self._frozen.changed()) is not None:
            raise UsageError(f"the model itself changes its frozen parameter {name}, once for each shard, {_REMEDY}")
        self._frozen_checks_left -= 1


def _base(before: Tensor) -> Tensor:
    """Returns the values to which changes are added: what does not change keeps its bits, and a running maximum can leave
    infinity."""
    return torch.where(before.isfinite(), before, 0)
