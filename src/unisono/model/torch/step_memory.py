"""The memory that recorded work reads besides the model: its batch, the learning rates, the sums with which it begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from unisono.model.tail import SAVE, STOP

GroupSettings = Sequence[Mapping[str, Any]]
Votes = tuple[bool, bool]
"""Whether this worker requests a stop, and a checkpoint, with a step."""
NO_VOTES = (False, False)


class Place(Protocol):
    """Where recorded work finds its batch."""

    def move_to(self, batch: Any) -> None:
        """Before the work: makes sure that it finds this batch."""

    def read(self) -> Any:
        """In the work: the batch, as `TorchAdapter.compute` takes it."""


class StepMemory:
    """The memory that recorded work reads. The host changes it, by a kernel and not by a copy, only where a value is another."""

    def __init__(self, place: Place | None, rates: Tensor, head: Tensor, factor: Tensor | None) -> None:
        self.place = place
        self.rates = rates
        """The learning rate of each group."""
        self.head = head
        """The sums with which the tail of a step begins."""
        self.factor = factor
        """What makes a mean of summed gradients; None where the device must compute it."""
        self._rates = [0.0] * len(rates)
        self._votes = NO_VOTES

    def set_rates(self, settings: GroupSettings) -> None:
        """Sets the learning rates."""
        for number, group in enumerate(settings):
            if group["lr"] != self._rates[number]:
                self._rates[number] = group["lr"]
                self.rates[number].fill_(group["lr"])

    def vote(self, votes: Votes) -> None:
        """Sets what this worker requests with the step."""
        if votes != self._votes:
            self._votes = votes
            for place, value in zip((STOP, SAVE), votes, strict=True):
                self.head[place].fill_(float(value))
