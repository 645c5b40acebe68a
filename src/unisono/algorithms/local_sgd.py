"""Local SGD: every worker learns by itself for H steps, then all weights become their mean.

    H times, on worker i:   w_i <- optimiser_i(w_i, g_i)        g_i: of its own part of the batch, divided by its own loss weight
    then, on all:           w_i <- (sum over workers j of w_j) / (number of workers)

The optimisers stay apart: each worker keeps what its own has learned, or starts it anew in each round (`momentum=reset`).

Stich 2019, Local SGD Converges Fast and Communicates Little, ICLR; McMahan et al. 2017, Communication-Efficient Learning of Deep
Networks from Decentralized Data, AISTATS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from unisono.algorithms.rounds.local import LocalRounds, expect_one_of, expect_whole

MOMENTUM = ("keep", "reset")


def average(total: Tensor, num_workers: int) -> Tensor:
    """Pure: the mean of vectors whose sum this is."""
    return total / num_workers


@dataclass(frozen=True)
class Options:
    """Of `--algorithm local_sgd`."""

    period: int = 8
    """H: steps of a round."""
    momentum: str = "keep"
    """What a round leaves of the optimiser's own state: all of it, or none (reset)."""

    def __post_init__(self) -> None:
        expect_whole("period", self.period, 1)
        expect_one_of("momentum", self.momentum, MOMENTUM)


@dataclass
class LocalSGD(LocalRounds):
    """See the top of this file."""

    Options: ClassVar[type[Any]] = Options

    def prepare(self) -> None:
        # Between an update and the next step nobody needs the gradients, which lie where peers can read them.
        self._sums = [vector for part in self.adapter.parts.values() for vector in part.gradients.values()]

    def outgoing(self) -> Sequence[Tensor]:
        for room, weights in zip(self._sums, self.weights, strict=True):
            if self.speaks:
                room.copy_(weights)
            else:
                room.zero_()
        return self._sums

    def arrive(self) -> None:
        for room in self._sums:
            room.copy_(average(room, self.num_workers))

    def take(self) -> None:
        for room, weights in zip(self._sums, self.weights, strict=True):
            weights.copy_(room)
        if self.options.momentum == "reset":
            for part in self.adapter.parts.values():
                part.running.state.clear()


ALGORITHM = LocalSGD
