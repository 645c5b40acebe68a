"""Frozen parameters that the model changes itself, e.g. a momentum teacher: seen by their sums, in a few steps only."""

from __future__ import annotations

from math import isnan

import torch
from torch import nn


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
