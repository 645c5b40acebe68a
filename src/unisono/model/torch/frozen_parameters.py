"""Frozen parameters: those that the model changes itself, e.g. a momentum teacher, seen by their sums in a few steps only; and
those that learn all at once."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

import torch
from torch import nn

from unisono.errors import UsageError


class FrozenParameters:
    """The parameters of a model that do not learn, and their sums. Local."""

    def __init__(self, model: nn.Module) -> None:
        self._frozen = [(name, one) for name, one in model.named_parameters() if not one.requires_grad]
        self._sums: list[float] = []

    def note(self) -> None:
        """Notes the sums as they are now."""
        self._sums = self._sums_now()

    def changed(self) -> str | None:
        """Returns the name of a parameter whose sum is not the noted one; None if there is none."""
        for (name, _), before, now in zip(self._frozen, self._sums, self._sums_now(), strict=True):
            if before != now and not (isnan(before) and isnan(now)):
                return name
        return None

    def _sums_now(self) -> list[float]:
        return [one.detach().sum(dtype=torch.float64).item() for _, one in self._frozen]


def refuse_unfrozen(frozen: Sequence[tuple[str, nn.Parameter]]) -> None:
    """Local: refuses parameters that learn now and did not when the training began: they are in no vector."""
    for name, parameter in frozen:
        if parameter.requires_grad:
            raise UsageError(
                f"{name} was frozen when the training began and is not any more, but its gradient is neither summed over the "
                "workers nor used; leave requires_grad on from the start and compute that part of the model under "
                "torch.no_grad() until then (what no batch uses is not changed), or make two trainings, the second with "
                "--init-from"
            )
