"""Downpour: workers push gradients whenever they have them, the server applies them with any optimiser (Dean et al. 2012, NIPS).

worker    a <- a + g(x)                        every step
          x <- x - lr_local * g(x)             while it does not pull
          push a, a <- 0                       every `push_every` steps
          x <- centre                          every `pull_every` steps
server    centre <- optimiser(centre, a / d)   d = 1, or with damping max(1, staleness) (Zhang et al. 2016, IJCAI)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from unisono.algorithms.base import AlgorithmOptions, Examples, GroupSettings, ModelSize, Traffic, lr_of_group
from unisono.algorithms.server.server_algorithm import Push, ServerAlgorithm, ServerModel, WorkerState
from unisono.task.options import option

DAMPING = ("none", "staleness")


@dataclass(frozen=True)
class Options(AlgorithmOptions):
    """Options of `--algorithm downpour`."""

    push_every: int = option(1, "steps between two pushes", least=1)
    pull_every: int = option(1, "steps between two pulls", least=1)
    local_lr: float | None = option(None, "learning rate of a worker between two pulls (default: the task's)", least=0)
    damping: str = option(
        "none", "none, or staleness: the older the weights of a gradient are, the less it counts", choices=DAMPING
    )


def damp_by_staleness(gradient: Tensor, staleness: int) -> Tensor:
    """Pure: a stale gradient, divided by its age in updates."""
    return gradient / max(1, staleness)


@dataclass
class Downpour(ServerAlgorithm):
    """See the top of this file."""

    Options: ClassVar[type[Any]] = Options
    examples: ClassVar[Examples] = (
        {"optimizer.momentum": 0.5},
        {"algorithm.push_every": 2, "algorithm.pull_every": 3, "algorithm.damping": "staleness"},
    )
    server_optimises: ClassVar[bool] = True

    @classmethod
    def equals_plain_training(cls, options: Any) -> bool:
        return bool(options.push_every == options.pull_every == 1)

    @classmethod
    def traffic(cls, options: Any, weights: ModelSize) -> Traffic:
        return Traffic(pushed=weights.num_bytes / options.push_every, pulled=weights.num_bytes / options.pull_every)

    def steps_until_call(self, num_steps: int) -> int:
        push: int = self.options.push_every
        pull: int = self.options.pull_every
        return min(push - num_steps % push, pull - num_steps % pull)

    def begin(self, worker: WorkerState) -> None:
        worker.out.zero_()
        worker.state["accrued"] = worker.out  # what is sent is what was gathered: no copy

    def on_gradient(self, worker: WorkerState, settings: GroupSettings) -> None:
        worker.state["accrued"].add_(worker.gradient)
        if self.options.pull_every > 1:
            lr = lr_of_group(settings) if self.options.local_lr is None else self.options.local_lr
            worker.values.sub_(worker.gradient, alpha=lr)

    def sends_vector(self, worker: WorkerState, num_steps: int) -> bool:
        return worker.cut_short or num_steps % self.options.push_every == 0

    def message(self, worker: WorkerState, num_steps: int) -> Sequence[float]:
        pulls = num_steps % self.options.pull_every == 0
        return (float(self.sends_vector(worker, num_steps)), float(pulls), *worker.uses)

    def on_reply(self, worker: WorkerState, reply: Tensor | None, num_steps: int) -> None:
        super().on_reply(worker, reply, num_steps)
        if self.sends_vector(worker, num_steps):
            worker.state["accrued"].zero_()

    def apply_update(self, server: ServerModel, pushes: Sequence[Push]) -> Sequence[Tensor | None]:
        return [self._apply_one(server, push) for push in pushes]

    def _apply_one(self, server: ServerModel, push: Push) -> Tensor | None:
        """Applies one worker's gradient, if it sent one; returns the server's weights if the worker pulls them, else None."""
        has_gradient, pulls = push.numbers[:2]
        if has_gradient:
            gradient = damp_by_staleness(push.vector, push.staleness) if self.options.damping == "staleness" else push.vector
            server.optimise(gradient, push.numbers[2:])
        return server.values if pulls else None


ALGORITHM = Downpour
