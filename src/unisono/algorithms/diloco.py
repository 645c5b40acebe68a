"""DiLoCo: local steps, and an outer optimiser that uses their total change as its gradient.

Common to all workers are the weights W and the outer velocity V, at first 0. A round, on each worker i of N:

    H times:       w_i <- optimiser_i(w_i, g_i)                        g_i: of its own part of the batch; w_i begins as W
    sent:          s_i  = w_i,   d_i = W - s_i
    exchanged:     d    = (sum over workers of d_i) / N
    outer step:    V   <- outer_momentum V + d                         SGD with Nesterov momentum
                   W   <- W - outer_lr (d + outer_momentum V)
    resumed from:  w_i <- W + (w_i - s_i)

With `overlap=0` the last line is w_i <- W, as no step was taken since. With `overlap=K` the exchange runs beside the first K steps
of the next round; after them the outer step is made and the worker's change since it sent s_i is added. Every process computes W
and V by itself from the same d, so they are equal everywhere and need not be sent.

With `wire=bf16` each d_i is rounded to bfloat16 before it travels; the N of them are summed in float32, the sum is rounded to
bfloat16 once, and d is that sum divided by N in the type of the weights. With `wire=full` all is in the type of the weights.

One worker with outer_lr 1 and outer_momentum 0 is plain training to rounding: W - (W - w) rounds where w is not near W.

Douillard et al. 2023, DiLoCo: Distributed Low-Communication Training of Language Models, arXiv:2311.08105; the overlap as in
Douillard et al. 2025, Streaming DiLoCo with Overlapping Communication, arXiv:2501.18512.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from unisono.algorithms.base import AlgorithmOptions, Examples, ModelSize, Settings, Traffic
from unisono.algorithms.rounds.local_steps import LocalRounds
from unisono.errors import UsageError
from unisono.task.options import option

WIRES = ("full", "bf16")


def mean_difference(total: Tensor, num_workers: int, dtype: torch.dtype) -> Tensor:
    """Pure: d, the mean of the workers' differences, from their sum."""
    return total.to(dtype) / num_workers


def outer_step(common: Tensor, velocity: Tensor, difference: Tensor, lr: float, momentum: float) -> tuple[Tensor, Tensor]:
    """Pure: W and V after an outer step with d."""
    velocity = momentum * velocity + difference
    return common - lr * (difference + momentum * velocity), velocity


def add_local_progress(common: Tensor, weights: Tensor, sent: Tensor) -> Tensor:
    """Pure: the weights of a worker after an outer step: the new W plus the worker's change since it sent s_i."""
    return common + (weights - sent)


@dataclass(frozen=True)
class Options(AlgorithmOptions):
    """Options of `--algorithm diloco`."""

    period: int = option(50, "steps of a round (H)", least=1)
    outer_lr: float = option(0.7, "learning rate of the outer optimiser", above=0)
    outer_momentum: float = option(0.9, "Nesterov momentum of the outer optimiser", least=0, below=1)
    wire: str = option("full", "type in which the differences are sent: that of the weights (full), or bf16", choices=WIRES)
    overlap: int = option(0, "steps that are computed while an exchange is under way (K)", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.overlap >= self.period:
            raise UsageError(
                f"overlap {self.overlap} must be below the period of {self.period} steps (--set algorithm.overlap, "
                "--set algorithm.period), as an exchange must end before the next one begins"
            )


@dataclass
class DiLoCo(LocalRounds):
    """See the top of this file."""

    Options: ClassVar[type[Any]] = Options
    examples: ClassVar[Examples] = (
        {"algorithm.period": 3, "algorithm.outer_momentum": 0.5, "optimizer.momentum": 0.5},
        {"algorithm.period": 4, "algorithm.outer_momentum": 0.5, "algorithm.overlap": 2, "algorithm.wire": "bf16"},
        {"algorithm.period": 3, "algorithm.outer_lr": 1, "algorithm.outer_momentum": 0},
    )

    @classmethod
    def equals_plain_training(cls, options: Any) -> bool:
        return (options.outer_lr, options.outer_momentum, options.wire) == (1, 0, "full")

    @classmethod
    def traffic(cls, options: Any, weights: ModelSize) -> Traffic:
        itemsize = torch.bfloat16.itemsize if options.wire == "bf16" else weights.itemsize
        return Traffic(summed=weights.numel * itemsize / options.period)

    @property
    def overlap(self) -> int:
        return int(self.options.overlap)

    def prepare(self) -> None:
        self._common = [weights.clone() for weights in self.weights]
        self._velocity = [torch.zeros_like(weights) for weights in self.weights]
        self.kept = {"common": self._common, "velocity": self._velocity}
        if self.options.wire == "bf16":
            self._buffers = [self.comm.empty(weights.numel(), torch.bfloat16) for weights in self.weights]
        elif self.overlap:
            self._buffers = [self.comm.empty(weights.numel(), weights.dtype) for weights in self.weights]
        else:  # the gradients, which are not needed between an update and the next step, lie where peers can read them
            self._buffers = [vector for part in self.adapter.parts.values() for vector in part.gradients.values()]
        self._sent: list[Tensor] = []
        self._differences: list[Tensor] = []

    def to_reduce(self, settings: Settings) -> Sequence[Tensor]:  # noqa: ARG002
        self._sent = [weights.clone() for weights in self.weights] if self.overlap else self.weights
        for buffer, common, sent in zip(self._buffers, self._common, self._sent, strict=True):
            if self.is_group_leader:
                buffer.copy_(common - sent)
            else:
                buffer.zero_()
        return self._buffers

    def on_reduced(self) -> None:
        self._differences = [
            mean_difference(buffer, self.num_workers, weights.dtype)
            for buffer, weights in zip(self._buffers, self.weights, strict=True)
        ]

    def update_weights(self, settings: Settings) -> None:  # noqa: ARG002
        """Makes the outer step with the mean differences; what the weights have moved since they were sent is added."""
        lr, momentum = self.options.outer_lr, self.options.outer_momentum
        for place, difference in enumerate(self._differences):
            common, velocity = outer_step(self._common[place], self._velocity[place], difference, lr, momentum)
            self._common[place].copy_(common)
            self._velocity[place].copy_(velocity)
            self.weights[place].copy_(add_local_progress(common, self.weights[place], self._sent[place]))
        self._sent, self._differences = [], []

    def rule_state(self, in_flight: bool) -> dict[str, Any]:
        """As inherited: common weights and velocity; in flight also the weights that were sent and the mean differences."""
        on_the_way = {"sent": self._sent, "differences": self._differences} if in_flight else {}
        return super().rule_state(in_flight) | on_the_way

    def can_continue(self, state: Mapping[str, Any]) -> bool:
        """As inherited; an exchange under way needs also what was sent and the mean differences."""
        on_the_way = set() if state.get("in_flight") is None else {"sent", "differences"}
        return {*self.kept, *on_the_way} <= state.keys()

    def restore_rule(self, state: Mapping[str, Any]) -> None:
        super().restore_rule(state)
        device = self.adapter.device
        self._sent = [vector.to(device) for vector in state.get("sent", ())]
        self._differences = [vector.to(device) for vector in state.get("differences", ())]


ALGORITHM = DiLoCo
