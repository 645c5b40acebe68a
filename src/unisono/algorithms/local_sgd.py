"""Local SGD: every worker takes H steps by itself, then all weights are replaced by their mean.

    H times, on worker i:   w_i <- optimiser_i(w_i, g_i)        g_i: of its own part of the batch, divided by its own loss weight
    then, on all:           w_i <- (sum over workers j of w_j) / (number of workers)

The optimisers stay apart: each worker keeps the state of its own, or resets it in each round (`momentum=reset`).

Stich 2019, Local SGD Converges Fast and Communicates Little, ICLR; McMahan et al. 2017, Communication-Efficient Learning of Deep
Networks from Decentralized Data, AISTATS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from unisono.algorithms.base import AlgorithmOptions, Examples, Settings
from unisono.algorithms.rounds.local_steps import LocalRounds
from unisono.task.options import option

MOMENTUM = ("keep", "reset")


def average(total: Tensor, num_workers: int) -> Tensor:
    """Pure: the mean of vectors, from their sum."""
    return total / num_workers


@dataclass(frozen=True)
class Options(AlgorithmOptions):
    """Options of `--algorithm local_sgd`."""

    period: int = option(8, "steps of a round (H)", least=1)
    momentum: str = option("keep", "keep the optimiser's state after a round, or reset it", choices=MOMENTUM)


@dataclass
class LocalSGD(LocalRounds):
    """See the top of this file."""

    Options: ClassVar[type[Any]] = Options
    examples: ClassVar[Examples] = (
        {"algorithm.period": 3, "optimizer.momentum": 0.5},
        {"algorithm.period": 3, "algorithm.momentum": "reset", "optimizer.momentum": 0.5},
    )

    @classmethod
    def equals_plain_training(cls, options: Any) -> bool:
        return bool(options.momentum == "keep")

    def prepare(self) -> None:
        """Takes the gradient vectors as the buffers in which weights are summed; allocates and keeps nothing."""
        # They are not needed between an update and the next step, and lie where peers can read them.
        self._sums = [vector for part in self.adapter.parts.values() for vector in part.gradients.values()]

    def to_reduce(self, settings: Settings) -> Sequence[Tensor]:  # noqa: ARG002
        for sums, weights in zip(self._sums, self.weights, strict=True):
            if self.is_group_leader:
                sums.copy_(weights)
            else:
                sums.zero_()
        return self._sums

    def on_reduced(self) -> None:
        for sums in self._sums:
            sums.copy_(average(sums, self.num_workers))

    def update_weights(self, settings: Settings) -> None:  # noqa: ARG002
        for sums, weights in zip(self._sums, self.weights, strict=True):
            weights.copy_(sums)
        if self.options.momentum == "reset":
            for part in self.adapter.parts.values():
                part.running.state.clear()


ALGORITHM = LocalSGD
