"""Elastic averaging SGD: workers explore by themselves, tied to a centre by a spring (Zhang, Choromanska, LeCun 2015, NIPS).

    every `period` steps      e       = alpha (x - centre)
                              centre <- centre + e                       the server, in one atomic call
                              x      <- x - e                            the worker, with the same e: the force is symmetric
    every step                x      <- optimiser(x, g(x))               g at the x before the spring pulled
    with momentum (EAMSGD)    v      <- mu v - lr g(x + mu v)
                              x      <- x + v                            Nesterov's, in the paper's form
    synchronous               centre <- centre + sum over workers of e_i   all with the centre before

alpha = elastic / (number of workers that exist), the paper's beta / p, so that the centre never overshoots the mean; or lr * rho.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from unisono.algorithms.central.rule import Arrival, Centre, GroupSettings, Rule, Walker, is_number, lr_of_group, refuse_optimizer
from unisono.errors import UsageError


@dataclass(frozen=True)
class Options:
    """Of `--algorithm easgd`."""

    period: int = 10
    """Steps between two calls."""
    elastic: float = 0.9
    """The paper's beta: alpha times the number of workers."""
    rho: float | None = None
    """Instead of `elastic`: alpha = learning rate * rho."""
    momentum: float = 0.0
    """Above 0 the workers move by EAMSGD instead of the optimiser of the task."""
    synchronous: bool = False
    """The server waits for all workers."""

    def __post_init__(self) -> None:
        if isinstance(self.period, bool) or not isinstance(self.period, int) or self.period < 1:
            raise UsageError(f"period must be a whole number of at least 1 (--set algorithm.period); received {self.period!r}")
        if not (is_number(self.elastic) and 0 < self.elastic <= 1):
            raise UsageError(f"elastic must lie above 0 and up to 1 (--set algorithm.elastic); received {self.elastic!r}")
        if self.rho is not None and not (is_number(self.rho) and self.rho > 0):
            raise UsageError(f"rho must be above 0 (--set algorithm.rho); received {self.rho!r}")
        if not (is_number(self.momentum) and 0 <= self.momentum < 1):
            raise UsageError(f"momentum must be at least 0 and below 1 (--set algorithm.momentum); received {self.momentum!r}")
        if not isinstance(self.synchronous, bool):
            raise UsageError(f"synchronous must be true or false (--set algorithm.synchronous); received {self.synchronous!r}")


def elastic_differences(centre: Tensor, workers: Sequence[Tensor], alpha: float) -> list[Tensor]:
    """Pure: the pull of the spring on each worker; the centre moves by their sum."""
    return [alpha * (values - centre) for values in workers]


def nesterov(velocity: Tensor, gradient: Tensor, lr: float, momentum: float) -> Tensor:
    """Pure: the next velocity, from the gradient at x + momentum * velocity."""
    return momentum * velocity - lr * gradient


class ElasticAveraging(Rule):
    """See the top of this file."""

    Options: ClassVar[type[Any]] = Options
    takes_centre: ClassVar[bool] = False

    def read_optimizer(self, optimizer: object, options: Mapping[str, Any], clip_norm: float | None) -> None:
        if self.options.momentum:
            refuse_optimizer(
                "easgd with momentum",
                optimizer,
                options,
                clip_norm,
                "leave it out, or leave out --set algorithm.momentum",
            )

    @property
    def waits_for_all(self) -> bool:
        return bool(self.options.synchronous)

    def steps_to_call(self, num_steps: int) -> int:
        period: int = self.options.period
        return period - num_steps % period

    def begin(self, walker: Walker) -> None:
        walker.state["pull"] = torch.zeros_like(walker.values)
        if self.options.momentum:
            walker.state["velocity"] = torch.zeros_like(walker.values)

    def before(self, walker: Walker) -> None:
        if self.options.momentum:
            walker.values.add_(walker.state["velocity"], alpha=self.options.momentum)

    def after(self, walker: Walker, settings: GroupSettings) -> None:
        mu, pull = self.options.momentum, walker.state["pull"]
        if mu:
            velocity = walker.state["velocity"]
            walker.values.sub_(velocity, alpha=mu)  # back from where the gradient was computed
            velocity.copy_(nesterov(velocity, walker.gradient, lr_of_group(settings), mu))
            walker.values.add_(velocity).sub_(pull)
        else:
            walker.values.sub_(pull)
            walker.optimise(settings)
        pull.zero_()

    def sends_vector(self, walker: Walker, num_steps: int) -> bool:
        return walker.cut_short or num_steps % self.options.period == 0

    def message(self, walker: Walker, num_steps: int) -> Sequence[float]:
        if self.sends_vector(walker, num_steps):
            walker.out.copy_(walker.values)
        return ()

    def answer(self, walker: Walker, reply: Tensor | None, num_steps: int) -> None:  # noqa: ARG002
        """The next gradient is still computed where the worker stood when it called, as in the paper; then the spring pulls. There
        is no reply in the middle of a very long period."""
        if reply is not None:
            walker.state["pull"].copy_(reply)

    def end(self, walker: Walker) -> None:
        walker.values.sub_(walker.state["pull"])
        walker.state["pull"].zero_()

    def fold(self, centre: Centre, arrived: Sequence[Arrival]) -> Sequence[Tensor | None]:
        rho = self.options.rho
        alpha = self.options.elastic / centre.num_workers if rho is None else centre.lr * rho
        differences = iter(elastic_differences(centre.values, [one.message for one in arrived if one.message.numel()], alpha))
        replies = [next(differences) if one.message.numel() else None for one in arrived]
        for difference in replies:
            if difference is not None:
                centre.values.add_(difference)
        return replies


ALGORITHM = ElasticAveraging
