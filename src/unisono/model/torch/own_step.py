"""A task's own training step: several losses, several optimisers, in the order the user writes.

    def step(self: un.OwnStep, batch):                       # optimizer={"critic": "adam", "generator": "adam"}
        real, _ = batch
        fake = self.model.generator(self.noise(len(real), 32))
        self.minimise(critic_loss(self.model.critic, real, fake.detach()), "critic")
        self.minimise(generator_loss(self.model.critic, fake), "generator")

Losses are one value for each sample, or (sum, weight); each `minimise` is one exact update over all workers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unisono.errors import UsageError


def loss_name(part: str) -> str:
    """Pure: returns the name under which the loss of a part of the model is reported."""
    return f"loss_{part}" if part else "loss_of_all"


@dataclass(frozen=True)
class OwnStep:
    """The object that a task's own step gets as its first argument."""

    model: nn.Module
    step: int
    device: torch.device
    num_samples: int
    """Number of samples of this worker in this step."""
    _minimise: Callable[[Tensor, Tensor | float, str], None]
    _share: float
    """0 where this worker has no sample in a short batch and only takes part in the collectives, else 1."""

    def minimise(self, loss: Tensor | tuple[Tensor, Tensor | float], part: str = "") -> None:
        """Collective, blocking: makes one update of the parameters of `part` (a name of the task's optimizers)."""
        if isinstance(loss, tuple):
            total, weight = loss
        elif loss.dim() == 0:
            raise UsageError(
                "minimise needs one loss for each sample, or (sum, weight): a mean cannot be combined exactly over workers; "
                'compute it with reduction="none"'
            )
        else:
            total, weight = loss.sum(), float(loss.numel())
        if self._share != 1.0:
            total, weight = total * self._share, weight * self._share
        self._minimise(total, weight, part)

    def noise(self, *shape: int) -> Tensor:
        """Local: returns normal random numbers of this step and worker."""
        return torch.randn(shape, device=self.device)


StepFunction = Callable[[OwnStep, Any], Any]
