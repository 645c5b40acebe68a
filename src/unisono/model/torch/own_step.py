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
    """What a task's own training step works with: the model, and `minimise` for each update.

    For trainings that one loss and one optimiser cannot describe, such as a GAN. Write a function `step(self, batch)`, give
    it as `step` of the `un.Task`, and name the modules that have optimisers of their own in `optimizer`. It is called once
    for every step, with this worker's part of the batch on the right device. Each `minimise` is one exact update over all
    workers.

    A step must call `minimise` at least once, and the same calls on all workers. A worker without samples in a short last
    batch is given a sample that does not count, so that it makes the same calls.

    Example:
        import torch
        from torch import nn
        import unisono as un

        class Gan(nn.Module):
            def __init__(self):
                super().__init__()
                self.generator, self.critic = nn.Linear(8, 2), nn.Linear(2, 1)

        def step(self, batch):
            real = batch[0]
            fake = self.model.generator(self.noise(len(real), 8))
            self.minimise(self.model.critic(fake.detach())[:, 0] - self.model.critic(real)[:, 0], "critic")
            self.minimise(-self.model.critic(fake)[:, 0], "generator")

        points = torch.rand(256, 2)
        task = un.Task(
            model=Gan,
            data=lambda: un.Splits(train=points),
            step=step,
            optimizer={"critic": "adam", "generator": "adam"},
            lr=0.001,
        )
        un.train(task, out="runs/gan", show=False).summary["steps"]  # -> 2

    Args:
        model: The model of the task, which this step trains.
        step: The number of the step, from 0.
        device: Where the model and the batch lie.
        num_samples: Number of samples of this worker in this step; 0 if it has none.
        _minimise: Filled in by the trainer.
        _share: Filled in by the trainer.
    """

    model: nn.Module
    step: int
    device: torch.device
    num_samples: int
    """Number of samples of this worker in this step."""
    _minimise: Callable[[Tensor, Tensor | float, str], None]
    _share: float
    """0 where this worker has no sample in a short batch and only takes part in the collectives, else 1."""

    def minimise(self, loss: Tensor | tuple[Tensor, Tensor | float], part: str = "") -> None:
        """Makes one update of the parameters of one module, so that this loss becomes smaller on the samples of all workers.

        Give one loss for each sample, as with reduction="none", or the pair (sum, weight). A mean is refused, as means of
        uneven parts cannot be combined exactly. Collective, blocking.

        Args:
            loss: The loss of each sample, or the pair (sum of the losses, number or weight of the samples).
            part: The module whose parameters are updated, a name of the task's `optimizer`; left out, the whole model.
        """
        if isinstance(loss, tuple):
            total, weight = loss
        elif loss.dim() == 0:
            raise UsageError(
                "minimise() received a mean, which cannot be combined exactly over workers; "
                'give one loss for each sample (reduction="none") or the pair (sum, weight)'
            )
        else:
            total, weight = loss.sum(), float(loss.numel())
        if self._share != 1.0:
            total, weight = total * self._share, weight * self._share
        self._minimise(total, weight, part)

    def noise(self, *shape: int) -> Tensor:
        """Returns normally distributed random numbers on the device of the model.

        They depend on the seed, the step and the worker. Local.

        Args:
            shape: The sizes of the dimensions: `self.noise(len(real), 32)`.
        """
        return torch.randn(shape, device=self.device)


StepFunction = Callable[[OwnStep, Any], Any]
