"""Downpour: workers push updates whenever they have them, and nobody waits for another (Dean et al. 2012, NIPS).

worker    x <- optimiser_i(x, g(x))         every step; a <- a + what this changed
          push a, a <- 0                    every `push_every` steps
          x <- centre                       every `pull_every` steps
server    centre <- centre + a / d          d = staleness + 1 (Jiang et al. 2017, SIGMOD), or 1 without damping

Each worker has its own optimiser, so its momentum meets gradients that know what it did (Hakimi et al. 2019, arXiv:1907.11612).
The paper has one optimiser, at the server (`optimizer_on=server`, `damping=off`):

worker    a <- a + g(x)                     every step
          x <- x - local_lr * g(x)          while it does not pull
server    centre <- optimiser(centre, a / d)   d = 1, or with damping max(1, staleness) (Zhang et al. 2016, IJCAI)

There one momentum meets gradients that know nothing of its last moves; `stable_share` says how little of the learning rate is
stable then.
"""

from __future__ import annotations

from cmath import phase, rect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import pi
from types import MappingProxyType
from typing import Any, ClassVar

from torch import Tensor

from unisono.algorithms.base import AlgorithmOptions, Examples, GroupSettings, ModelSize, Traffic, lr_of_group
from unisono.algorithms.server.server_algorithm import Push, ServerAlgorithm, ServerModel, WorkerState
from unisono.errors import UsageError
from unisono.task.options import option

PLACES = ("worker", "server")
DAMPING = ("staleness", "off")
LITTLE = 0.35
"""If a smaller share of the learning rate of one worker is stable, the run is warned."""


@dataclass(frozen=True)
class Options(AlgorithmOptions):
    """Options of `--algorithm downpour`."""

    push_every: int = option(1, "steps between two pushes", least=1)
    pull_every: int = option(1, "steps between two pulls", least=1)
    optimizer_on: str = option(
        "worker", "worker: each worker has its own optimiser and pushes updates; server: workers push gradients", choices=PLACES
    )
    damping: str = option(
        "staleness", "staleness: the more updates came since the pull, the less a push counts; or off", choices=DAMPING
    )
    local_lr: float | None = option(
        None, "learning rate of a worker between two pulls, where the optimiser is the server's (default: the task's)", least=0
    )


def age(staleness: int, optimizer_on: str) -> int:
    """Pure: what a push is divided by, from the number of updates since the pull. An update counts itself among them (Jiang et
    al.), a gradient does not (Zhang et al.)."""
    return max(1, staleness) if optimizer_on == "server" else staleness + 1


def stable_share(momentum: float, staleness: float) -> float:
    """Pure: the largest stable learning rate where gradients are so many updates old, as a share of that with fresh ones.

    On a parabola of curvature c the weights follow z^(s+1) - (1 + m) z^s + m z^(s-1) + lr c = 0; they are stable while all roots
    are within the unit circle. The first root to reach it, at an angle found by bisection, has lr c = |z - 1| |z - m|. Fresh
    gradients are stable up to lr c = 2 (1 + m).
    """
    low, high = 0.0, pi
    for _ in range(60):
        middle = (low + high) / 2
        z = rect(1.0, middle)
        if (staleness - 1) * middle + phase(z - 1) + phase(z - momentum) < pi:
            low = middle
        else:
            high = middle
    z = rect(1.0, high)
    return abs(z - 1) * abs(z - momentum) / (2 * (1 + momentum))


@dataclass
class Downpour(ServerAlgorithm):
    """See the top of this file."""

    Options: ClassVar[type[Any]] = Options
    older_defaults: ClassVar[Mapping[str, Any]] = MappingProxyType({"optimizer_on": "server", "damping": "off"})
    examples: ClassVar[Examples] = (
        {"optimizer.momentum": 0.5},
        {"algorithm.push_every": 2, "algorithm.pull_every": 3},
        {"algorithm.optimizer_on": "server", "algorithm.damping": "off", "optimizer.momentum": 0.5},
        {"algorithm.optimizer_on": "server", "algorithm.push_every": 2, "algorithm.pull_every": 3},
    )

    @property
    def server_optimises(self) -> bool:
        return bool(self.options.optimizer_on == "server")

    @classmethod
    def equals_plain_training(cls, options: Any) -> bool:
        return bool(options.optimizer_on == "server" and options.push_every == options.pull_every == 1)

    def read_optimizer(self, optimizer: object, options: Mapping[str, Any], clip_norm: float | None) -> None:  # noqa: ARG002
        if self.options.local_lr is not None and not self.server_optimises:
            raise UsageError(
                "algorithm.local_lr has no effect where each worker has its own optimizer; leave it out, or add "
                "--set algorithm.optimizer_on=server"
            )

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
        accrued = worker.state["accrued"]
        if not self.server_optimises:
            accrued.sub_(worker.values)
            worker.optimise(settings)
            accrued.add_(worker.values)
            return
        accrued.add_(worker.gradient)
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

    def advice(self, staleness: float) -> str:
        (group, *_) = self.adapter.parts[""].running.param_groups
        momentum = group.get("momentum", group.get("betas", (0.0,))[0])
        is_damped = self.options.damping == "staleness"
        of_rule = stable_share(momentum, staleness) if self.server_optimises else 1 / (staleness + 1)
        share = of_rule * (max(1.0, staleness) if self.server_optimises else staleness + 1) if is_damped else of_rule
        if share >= LITTLE:
            return ""
        remedy = " and ".join(
            [*([] if is_damped else ["damping=staleness"]), *(["optimizer_on=worker"] if self.server_optimises else [])]
        )
        return (
            f"updates are {staleness:.1f} updates old on average; with these options of downpour about {share:.0%} of the learning "
            f"rate of one worker is stable. Use {remedy} (the defaults), or a lower learning rate or momentum"
        )

    def apply_update(self, server: ServerModel, pushes: Sequence[Push]) -> Sequence[Tensor | None]:
        return [self._apply_one(server, push) for push in pushes]

    def _apply_one(self, server: ServerModel, push: Push) -> Tensor | None:
        """Applies what one worker pushed, if anything; returns the server's weights if the worker pulls them, else None."""
        has_vector, pulls = push.numbers[:2]
        if has_vector:
            divisor = age(push.staleness, self.options.optimizer_on) if self.options.damping == "staleness" else 1
            if self.server_optimises:
                server.optimise(push.vector / divisor, push.numbers[2:])
            else:
                server.values.add_(push.vector, alpha=1 / divisor)
        return server.values if pulls else None


ALGORITHM = Downpour
