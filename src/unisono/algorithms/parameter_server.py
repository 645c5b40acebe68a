"""The synchronous parameter server: the server waits for all workers, averages, answers. The baseline of the lectures.

    worker    push (sum over its samples of grad, its loss weight);  x <- centre
    server    centre <- optimiser(centre, sum over workers of their sums / sum of their weights)

The same update as all-reduce, through one process that every byte must pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from unisono.algorithms.base import AlgorithmOptions, Examples, GroupSettings
from unisono.algorithms.server.server_algorithm import Push, ServerAlgorithm, ServerModel, WorkerState


@dataclass(frozen=True)
class Options(AlgorithmOptions):
    """Options of `--algorithm parameter_server`: none."""


def weighted_mean(gradients: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Pure: the mean gradient of all samples, from the means of the workers and their loss weights."""
    total = torch.zeros_like(gradients[0])
    for gradient, weight in zip(gradients, weights, strict=True):
        total.add_(gradient, alpha=weight)
    return total.div_(sum(weights))


@dataclass
class ParameterServer(ServerAlgorithm):
    """See the top of this file."""

    Options: ClassVar[type[Any]] = Options
    examples: ClassVar[Examples] = ({"optimizer.momentum": 0.5},)

    @property
    def server_optimises(self) -> bool:
        return True

    @property
    def waits_for_all(self) -> bool:
        return True

    def on_gradient(self, worker: WorkerState, settings: GroupSettings) -> None:  # noqa: ARG002
        worker.out.copy_(worker.gradient)

    def message(self, worker: WorkerState, num_steps: int) -> Sequence[float]:  # noqa: ARG002
        return list(worker.uses)

    def apply_update(self, server: ServerModel, pushes: Sequence[Push]) -> Sequence[Tensor | None]:
        weights = [push.weight for push in pushes]
        if sum(weights):
            uses = sum((push.numbers for push in pushes[1:]), pushes[0].numbers)
            server.optimise(weighted_mean([push.vector for push in pushes], weights), uses)
        return [server.values for _ in pushes]


ALGORITHM = ParameterServer
