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

from unisono.algorithms.central.rule import Arrival, Centre, GroupSettings, Rule, Walker


@dataclass(frozen=True)
class Options:
    """Of `--algorithm parameter_server`: none."""


def weighted_mean(gradients: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Pure: the mean gradient of all samples, from the mean of each worker."""
    total = torch.zeros_like(gradients[0])
    for gradient, weight in zip(gradients, weights, strict=True):
        total.add_(gradient, alpha=weight)
    return total.div_(sum(weights))


class ParameterServer(Rule):
    """See the top of this file."""

    Options: ClassVar[type[Any]] = Options
    optimises_centre: ClassVar[bool] = True

    @property
    def waits_for_all(self) -> bool:
        return True

    def after(self, walker: Walker, settings: GroupSettings) -> None:  # noqa: ARG002
        walker.out.copy_(walker.gradient)

    def message(self, walker: Walker, num_steps: int) -> Sequence[float]:  # noqa: ARG002
        return list(walker.uses)

    def fold(self, centre: Centre, arrived: Sequence[Arrival]) -> Sequence[Tensor | None]:
        weights = [one.weight for one in arrived]
        if sum(weights):
            uses = sum((one.numbers for one in arrived[1:]), arrived[0].numbers)
            centre.optimise(weighted_mean([one.message for one in arrived], weights), uses)
        return [centre.values for _ in arrived]


ALGORITHM = ParameterServer
