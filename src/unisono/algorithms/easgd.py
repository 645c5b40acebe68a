"""Elastic averaging SGD: workers take steps of their own and are pulled, as by a spring, towards the server's weights, the paper's
centre (Zhang, Choromanska, LeCun 2015, NIPS).

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

from unisono.algorithms.base import AlgorithmOptions, Examples, GroupSettings, ModelSize, Traffic, lr_of_group
from unisono.algorithms.server.server_algorithm import Push, ServerAlgorithm, ServerModel, WorkerState, refuse_optimizer
from unisono.task.options import option


@dataclass(frozen=True)
class Options(AlgorithmOptions):
    """Options of `--algorithm easgd`."""

    period: int = option(10, "steps between two calls", least=1)
    elastic: float = option(0.9, "the paper's beta: alpha times the number of workers", above=0, most=1)
    rho: float | None = option(None, "instead of elastic: alpha = learning rate * rho", above=0)
    momentum: float = option(0.0, "above 0: workers use EAMSGD instead of the task's optimiser", least=0, below=1)
    synchronous: bool = option(False, "the server waits for all workers")


def elastic_differences(server_weights: Tensor, workers: Sequence[Tensor], alpha: float) -> list[Tensor]:
    """Pure: the elastic difference e of each worker; the server's weights move by their sum."""
    return [alpha * (values - server_weights) for values in workers]


def nesterov(velocity: Tensor, gradient: Tensor, lr: float, momentum: float) -> Tensor:
    """Pure: the next velocity, from the gradient at x + momentum * velocity."""
    return momentum * velocity - lr * gradient


@dataclass
class ElasticAveraging(ServerAlgorithm):
    """See the top of this file."""

    Options: ClassVar[type[Any]] = Options
    examples: ClassVar[Examples] = (
        {"algorithm.period": 3, "optimizer.momentum": 0.5},
        {"algorithm.period": 2, "algorithm.momentum": 0.5},
        {"algorithm.period": 2, "algorithm.synchronous": True},
    )
    replies_with_weights: ClassVar[bool] = False

    @classmethod
    def equals_plain_training(cls, options: Any) -> bool:  # noqa: ARG003
        return False

    @classmethod
    def traffic(cls, options: Any, weights: ModelSize) -> Traffic:
        return Traffic(pushed=weights.num_bytes / options.period, pulled=weights.num_bytes / options.period)

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

    def steps_until_call(self, num_steps: int) -> int:
        period: int = self.options.period
        return period - num_steps % period

    def begin(self, worker: WorkerState) -> None:
        worker.state["pull"] = torch.zeros_like(worker.values)
        if self.options.momentum:
            worker.state["velocity"] = torch.zeros_like(worker.values)

    def before_gradient(self, worker: WorkerState) -> None:
        if self.options.momentum:
            worker.values.add_(worker.state["velocity"], alpha=self.options.momentum)

    def on_gradient(self, worker: WorkerState, settings: GroupSettings) -> None:
        mu, pull = self.options.momentum, worker.state["pull"]
        if mu:
            velocity = worker.state["velocity"]
            worker.values.sub_(velocity, alpha=mu)  # back from where the gradient was computed
            velocity.copy_(nesterov(velocity, worker.gradient, lr_of_group(settings), mu))
            worker.values.add_(velocity).sub_(pull)
        else:
            worker.values.sub_(pull)
            worker.optimise(settings)
        pull.zero_()

    def sends_vector(self, worker: WorkerState, num_steps: int) -> bool:
        return worker.cut_short or num_steps % self.options.period == 0

    def message(self, worker: WorkerState, num_steps: int) -> Sequence[float]:
        if self.sends_vector(worker, num_steps):
            worker.out.copy_(worker.values)
        return ()

    def on_reply(self, worker: WorkerState, reply: Tensor | None, num_steps: int) -> None:  # noqa: ARG002
        """Keeps the elastic difference, which moves the weights only after the next gradient: that is still computed where the
        worker stood when it called, as in the paper. In the middle of a very long period there is no reply."""
        if reply is not None:
            worker.state["pull"].copy_(reply)

    def end(self, worker: WorkerState) -> None:
        worker.values.sub_(worker.state["pull"])
        worker.state["pull"].zero_()

    def apply_update(self, server: ServerModel, pushes: Sequence[Push]) -> Sequence[Tensor | None]:
        rho = self.options.rho
        alpha = self.options.elastic / server.num_workers if rho is None else server.lr * rho
        differences = iter(elastic_differences(server.values, [push.vector for push in pushes if push.vector.numel()], alpha))
        replies = [next(differences) if push.vector.numel() else None for push in pushes]
        for difference in replies:
            if difference is not None:
                server.values.add_(difference)
        return replies


ALGORITHM = ElasticAveraging
