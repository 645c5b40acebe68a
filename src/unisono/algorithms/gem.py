"""Gradient energy matching: the server scales every update so that all workers together move like one optimiser with momentum
(Hermans, Louppe 2018, arXiv:1805.08469). Element by element, for the worker whose call it is:

    worker    u       = - lr g(s)                                        s: the server's weights (the centre) that it last pulled
    server    m      <- mu m + u                                         the proxy: how far momentum SGD would move
              pi      = (kappa |m| - |centre - s|) / (|u| + eps)         what is left of that after the updates of the others
              centre <- centre + pi u
              s      <- centre                                           the reply

m and s of each worker are kept at the server, so that one call is the whole step: no other update comes between reading the
server's weights and changing them. kappa 1 is the paper's algorithm 1, larger ones its proxies of higher energy. `clip` keeps pi
in 0..clip, as the authors' program did with 5. The paper's formula has no bounds (`--set algorithm.clip=none`): then an update
whose sign differs from that of the others' updates moves further in their direction, by more than they moved, which can diverge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from unisono.algorithms.base import AlgorithmOptions, Examples, GroupSettings, lr_of_group
from unisono.algorithms.server.server_algorithm import (
    Push,
    ServerAlgorithm,
    ServerModel,
    WorkerRecord,
    WorkerState,
    refuse_optimizer,
)
from unisono.task.options import option

DEFAULT_MOMENTUM = 0.9


@dataclass(frozen=True)
class Options(AlgorithmOptions):
    """Options of `--algorithm gem`."""

    momentum: float | None = option(None, "momentum of the proxy (default: that of the task's sgd, or 0.9)", least=0, below=1)
    kappa: float = option(1.0, "energy of the proxy", above=0)
    clip: float | None = option(5.0, "largest factor of an update; negative factors become 0; none: no bounds", above=0)
    eps: float = option(1e-16, "keeps the factor finite where an update is 0", above=0)


def apply_matched_update(
    server_weights: Tensor,
    pulled_weights: Tensor,
    momentum: Tensor,
    update: Tensor,
    *,
    mu: float,
    kappa: float,
    clip: float | None,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Pure: the server's weights and the worker's momentum after the worker's update."""
    momentum = mu * momentum + update
    factor = (kappa * momentum.abs() - (server_weights - pulled_weights).abs()) / (update.abs() + eps)
    if clip is not None:
        factor = factor.clamp(0, clip)
    return server_weights + factor * update, momentum


@dataclass
class GradientEnergyMatching(ServerAlgorithm):
    """See the top of this file."""

    Options: ClassVar[type[Any]] = Options
    examples: ClassVar[Examples] = ({"optimizer.momentum": 0.5}, {"algorithm.momentum": 0})

    def __post_init__(self) -> None:
        self.momentum = DEFAULT_MOMENTUM if self.options.momentum is None else self.options.momentum

    @classmethod
    def equals_plain_training(cls, options: Any) -> bool:
        return (options.momentum, options.kappa) == (0, 1)

    def read_optimizer(self, optimizer: object, options: Mapping[str, Any], clip_norm: float | None) -> None:
        rest = dict(options)
        momentum = rest.pop("momentum", None)
        if momentum is not None and self.options.momentum is None:
            self.momentum = momentum
        refuse_optimizer("gem", optimizer, rest, clip_norm, "leave it out")

    def on_gradient(self, worker: WorkerState, settings: GroupSettings) -> None:
        torch.mul(worker.gradient, -lr_of_group(settings), out=worker.out)

    def message(self, worker: WorkerState, num_steps: int) -> Sequence[float]:  # noqa: ARG002
        return ()

    def on_join(self, server: ServerModel, worker: WorkerRecord) -> None:
        worker.state["momentum"] = torch.zeros_like(server.values)
        worker.state["taken"] = server.values.clone()

    def on_pull(self, server: ServerModel, worker: WorkerRecord) -> None:
        worker.state["taken"].copy_(server.values)

    def apply_update(self, server: ServerModel, pushes: Sequence[Push]) -> Sequence[Tensor | None]:
        options = self.options
        for push in pushes:
            held = push.worker.state
            values, momentum = apply_matched_update(
                server.values, held["taken"], held["momentum"], push.vector,
                mu=self.momentum, kappa=options.kappa, clip=options.clip, eps=options.eps,
            )  # fmt: skip
            server.values.copy_(values)
            held["momentum"].copy_(momentum)
        return [server.values for _ in pushes]


ALGORITHM = GradientEnergyMatching
