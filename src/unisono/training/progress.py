"""What a training is to reach, and how far it is."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

INTERRUPTED, NOT_FINITE, FINISHED = "interrupted", "not finite", "finished"
TARGET, EARLY, PRUNED = "target reached", "stopped early", "pruned"
"""Reasons why a training ended: told to stop, in time; a loss that is no number; all epochs done; or a goal of the user."""


@dataclass(frozen=True)
class Goals:
    """When to stop, and which epoch is best."""

    num_epochs: int
    monitor: str | None
    """E.g. val_accuracy; None where there is nothing to choose by."""
    higher_is_better: bool = True
    target: float | None = None
    patience: int | None = None
    on_nan: str = "stop"

    def better(self, value: float, than: float | None) -> bool:
        """Pure."""
        if math.isnan(value):
            return False
        return than is None or (value > than if self.higher_is_better else value < than)

    def verdict(self, done: Progress) -> str:
        """Pure: why a training ends after the epochs it has done; empty if it does not."""
        value = done.history[-1]["metrics"].get(self.monitor) if done.history else None
        if value is None:
            return ""
        if self.target is not None and (value >= self.target if self.higher_is_better else value <= self.target):
            return TARGET
        is_over = self.patience is not None and done.epoch - 1 - (done.best_epoch or 0) >= self.patience
        return EARLY if is_over else ""


@dataclass
class Progress:
    """How far a training is. What a checkpoint must hold besides the state of the model."""

    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0
    """Steps done of the epoch in hand; all of them where only its evaluation is missing."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """Each epoch as it was told to the observers."""
    monitor: str | None = None
    """The metric by which the best epoch was found."""
    best_epoch: int | None = None
    best_value: float | None = None
    num_skipped: int = 0
    """Updates that were left out because they were not finite."""
    train_s: float = 0.0
    """Spent in steps, evaluations not counted."""
    wall_s: float = 0.0
    """Of earlier lives of this run, up to the state that it goes on from."""
    num_samples: int = 0
    data_wait_s: float = 0.0
    time_to_target_s: float | None = None
    reason: str = ""
    """Why it ended."""
    failure: str = ""
    """What went wrong, where the reason is a failure."""
