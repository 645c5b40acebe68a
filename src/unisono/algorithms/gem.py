"""Gradient energy matching: the server scales every update so that all workers together move like one optimiser with momentum
(Hermans, Louppe 2018, arXiv:1805.08469). Element by element, for the worker whose call it is:

    worker    u       = - lr g(s)                                        s: the centre as it last took it
    server    m      <- mu m + u                                         the proxy: how far momentum SGD would move
              pi      = (kappa |m| - |centre - s|) / (|u| + eps)         what of that is left, as the others have moved it meanwhile
              centre <- centre + pi u
              s      <- centre                                           the reply

m and s of each worker live at the server, so that one call is the whole step: nobody's update comes between taking the centre and
changing it. kappa 1 is the paper's algorithm 1, larger ones its proxies of higher energy. `clip` keeps pi in 0..clip, as the
program of its authors did with 5. The paper's formula has no bounds (`--set algorithm.clip=none`): then an update whose sign is not
that of what the others did pushes on in their direction, by more than they moved, which can diverge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from unisono.algorithms.central.rule import (
    Arrival,
    Centre,
    GroupSettings,
    Member,
    Rule,
    Walker,
    is_number,
    lr_of_group,
    refuse_optimizer,
)
from unisono.errors import UsageError

DEFAULT_MOMENTUM = 0.9


@dataclass(frozen=True)
class Options:
    """Of `--algorithm gem`."""

    momentum: float | None = None
    """Of the proxy; None takes that of the task's sgd, or 0.9."""
    kappa: float = 1.0
    """Energy of the proxy."""
    clip: float | None = 5.0
    """Largest factor; factors below 0 become 0 then. None for no bounds."""
    eps: float = 1e-16

    def __post_init__(self) -> None:
        if self.momentum is not None and not (is_number(self.momentum) and 0 <= self.momentum < 1):
            raise UsageError(f"momentum must be at least 0 and below 1 (--set algorithm.momentum); received {self.momentum!r}")
        for name in ("kappa", "eps", "clip"):
            value = getattr(self, name)
            if not (is_number(value) and value > 0) and (name, value) != ("clip", None):
                raise UsageError(f"{name} must be above 0 (--set algorithm.{name}); received {value!r}")


def matched(
    centre: Tensor, taken: Tensor, momentum: Tensor, update: Tensor, *, mu: float, kappa: float, clip: float | None, eps: float
) -> tuple[Tensor, Tensor]:
    """Pure: the centre and the worker's momentum after its update."""
    momentum = mu * momentum + update
    factor = (kappa * momentum.abs() - (centre - taken).abs()) / (update.abs() + eps)
    if clip is not None:
        factor = factor.clamp(0, clip)
    return centre + factor * update, momentum


class GradientEnergyMatching(Rule):
    """See the top of this file."""

    Options: ClassVar[type[Any]] = Options

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.momentum = DEFAULT_MOMENTUM if options.momentum is None else options.momentum

    def read_optimizer(self, optimizer: object, options: Mapping[str, Any], clip_norm: float | None) -> None:
        rest = dict(options)
        momentum = rest.pop("momentum", None)
        if momentum is not None and self.options.momentum is None:
            self.momentum = momentum
        refuse_optimizer("gem", optimizer, rest, clip_norm, "leave it out")

    def after(self, walker: Walker, settings: GroupSettings) -> None:
        torch.mul(walker.gradient, -lr_of_group(settings), out=walker.out)

    def message(self, walker: Walker, num_steps: int) -> Sequence[float]:  # noqa: ARG002
        return ()

    def join(self, centre: Centre, member: Member) -> None:
        member.state["momentum"] = torch.zeros_like(centre.values)
        member.state["taken"] = centre.values.clone()

    def take(self, centre: Centre, member: Member) -> None:
        member.state["taken"].copy_(centre.values)

    def fold(self, centre: Centre, arrived: Sequence[Arrival]) -> Sequence[Tensor | None]:
        options = self.options
        for one in arrived:
            held = one.member.state
            values, momentum = matched(
                centre.values, held["taken"], held["momentum"], one.message,
                mu=self.momentum, kappa=options.kappa, clip=options.clip, eps=options.eps,
            )  # fmt: skip
            centre.values.copy_(values)
            held["momentum"].copy_(momentum)
        return [centre.values for _ in arrived]


ALGORITHM = GradientEnergyMatching
