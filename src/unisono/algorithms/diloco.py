"""DiLoCo: local steps, and an outer optimiser that learns from how far they went.

Common to all workers are the weights W and the outer velocity V, at first 0. A round, on each worker i of N:

    H times:       w_i <- optimiser_i(w_i, g_i)                        g_i: of its own part of the batch; w_i begins as W
    sent:          s_i  = w_i,   d_i = W - s_i
    exchanged:     d    = (sum over workers of d_i) / N
    outer step:    V   <- outer_momentum V + d                         SGD with Nesterov momentum
                   W   <- W - outer_lr (d + outer_momentum V)
    taken:         w_i <- W + (w_i - s_i)

With `overlap=0` the last line is w_i <- W, as nothing was learned since. With `overlap=K` the exchange goes on beside the first K
steps of the next round; after them the outer step is made and what the worker learned meanwhile is kept on top. Every process
computes W and V by itself from the same d, so they are equal everywhere and nobody sends them.

With `wire=bf16` each d_i is rounded to bfloat16 before it travels; the N of them are summed in float32, the sum is rounded to
bfloat16 once, and d is that sum divided by N in the type of the weights. With `wire=full` all is in the type of the weights.

One worker with outer_lr 1 and outer_momentum 0 is plain training to rounding: W - (W - w) rounds where w is not near W.

Douillard et al. 2023, DiLoCo: Distributed Low-Communication Training of Language Models, arXiv:2311.08105; the overlap as in
Douillard et al. 2025, Streaming DiLoCo with Overlapping Communication, arXiv:2501.18512.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar

import torch
from torch import Tensor

from unisono.algorithms.rounds.local import LocalRounds, expect_one_of, expect_whole
from unisono.errors import UsageError

WIRES = ("full", "bf16")


def mean_difference(total: Tensor, num_workers: int, dtype: torch.dtype) -> Tensor:
    """Pure: d from the sum that has travelled."""
    return total.to(dtype) / num_workers


def outer_step(common: Tensor, velocity: Tensor, difference: Tensor, lr: float, momentum: float) -> tuple[Tensor, Tensor]:
    """Pure: W and V after the outer step with d."""
    velocity = momentum * velocity + difference
    return common - lr * (difference + momentum * velocity), velocity


def progress_kept(common: Tensor, weights: Tensor, sent: Tensor) -> Tensor:
    """Pure: w_i on top of the new W, with what was learned since s_i."""
    return common + (weights - sent)


@dataclass(frozen=True)
class Options:
    """Of `--algorithm diloco`."""

    period: int = 50
    """H: steps of a round."""
    outer_lr: float = 0.7
    outer_momentum: float = 0.9
    wire: str = "full"
    """How the differences travel: in the type of the weights, or as bf16 in half the bytes or less."""
    overlap: int = 0
    """K: steps that are computed while an exchange is under way."""

    def __post_init__(self) -> None:
        expect_whole("period", self.period, 1)
        _expect_number("outer_lr", self.outer_lr, above=0.0)
        _expect_number("outer_momentum", self.outer_momentum, least=0.0, below=1.0)
        expect_one_of("wire", self.wire, WIRES)
        expect_whole("overlap", self.overlap, 0)
        if self.overlap >= self.period:
            raise UsageError(
                f"overlap {self.overlap} must be below the period of {self.period} steps (--set algorithm.overlap, "
                "--set algorithm.period): an exchange is over before the next begins"
            )


def _expect_number(option: str, value: Any, above: float | None = None, least: float = 0.0, below: float = float("inf")) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
    if is_number and (value > above if above is not None else value >= least) and value < below:
        return
    wanted = f"above {above:g}" if above is not None else f"at least {least:g}"
    wanted += f" and below {below:g}" if isfinite(below) else ""
    raise UsageError(f"{option} must be a number {wanted} (--set algorithm.{option}=VALUE); received {value!r}")


@dataclass
class DiLoCo(LocalRounds):
    """See the top of this file."""

    Options: ClassVar[type[Any]] = Options

    @property
    def overlap(self) -> int:
        return int(self.options.overlap)

    def prepare(self) -> None:
        self._common = [weights.clone() for weights in self.weights]
        self._velocity = [torch.zeros_like(weights) for weights in self.weights]
        if self.options.wire == "bf16":
            self._rooms = [self.comm.empty(weights.numel(), torch.bfloat16) for weights in self.weights]
        elif self.overlap:
            self._rooms = [self.comm.empty(weights.numel(), weights.dtype) for weights in self.weights]
        else:  # the gradients, which nobody needs between an update and the next step, lie where peers can read them
            self._rooms = [vector for part in self.adapter.parts.values() for vector in part.gradients.values()]
        self._sent: list[Tensor] = []
        self._differences: list[Tensor] = []

    def outgoing(self) -> Sequence[Tensor]:
        self._sent = [weights.clone() for weights in self.weights] if self.overlap else self.weights
        for room, common, sent in zip(self._rooms, self._common, self._sent, strict=True):
            if self.speaks:
                room.copy_(common - sent)
            else:
                room.zero_()
        return self._rooms

    def arrive(self) -> None:
        self._differences = [
            mean_difference(room, self.num_workers, weights.dtype) for room, weights in zip(self._rooms, self.weights, strict=True)
        ]

    def take(self) -> None:
        lr, momentum = self.options.outer_lr, self.options.outer_momentum
        for place, difference in enumerate(self._differences):
            common, velocity = outer_step(self._common[place], self._velocity[place], difference, lr, momentum)
            self._common[place].copy_(common)
            self._velocity[place].copy_(velocity)
            self.weights[place].copy_(progress_kept(common, self.weights[place], self._sent[place]))
        self._sent, self._differences = [], []

    def rule_state(self, in_flight: bool) -> dict[str, Any]:
        found = {"common": self._common, "velocity": self._velocity}
        return {**found, "sent": self._sent, "differences": self._differences} if in_flight else found

    def restore_rule(self, state: Mapping[str, Any]) -> None:
        if "common" not in state:  # of another algorithm: its weights are common
            self._common = [weights.clone() for weights in self.weights]
            return
        for own, saved in ((self._common, state["common"]), (self._velocity, state["velocity"])):
            for vector, kept in zip(own, saved, strict=True):
                vector.copy_(kept)
        device = self.adapter.device
        self._sent = [kept.to(device) for kept in state.get("sent", ())]
        self._differences = [kept.to(device) for kept in state.get("differences", ())]


ALGORITHM = DiLoCo
