"""When to stop early, and which epoch is best: patience, a target, the metric that decides."""

from __future__ import annotations

import math
from dataclasses import dataclass

from unisono.task.task import FINAL
from unisono.training.progress import EARLY, TARGET, Progress


@dataclass(frozen=True)
class Goals:
    """When a training stops, and which epoch is best."""

    num_epochs: int
    monitor: str | None
    """E.g. val_accuracy; None where there is nothing to choose by."""
    higher_is_better: bool = True
    target: float | None = None
    patience: int | None = None
    on_nan: str = "stop"
    weights: str = FINAL
    """The weights whose results count: those of the best epoch, or the final ones."""
    names_weights: bool = False
    """Whether the task says itself which they are."""

    @property
    def target_metric(self) -> tuple[str, float] | None:
        """The metric and its value at which the training ends; None where there is no target."""
        return None if self.monitor is None or self.target is None else (self.monitor, self.target)

    def better(self, value: float, than: float | None) -> bool:
        """Pure: whether a value of the monitored metric is better than another."""
        if math.isnan(value):
            return False
        return than is None or (value > than if self.higher_is_better else value < than)

    def verdict(self, done: Progress) -> str:
        """Pure: why the training ends after this epoch; empty if it continues."""
        value = done.history[-1]["metrics"].get(self.monitor) if done.history else None
        if value is None:
            return ""
        if self.target is not None and (value >= self.target if self.higher_is_better else value <= self.target):
            return TARGET
        best_epoch = done.compared_from if done.best_epoch is None else done.best_epoch
        is_over = self.patience is not None and done.epoch - 1 - best_epoch >= self.patience
        return EARLY if is_over else ""
