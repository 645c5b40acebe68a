"""When to stop early, and which epoch is best: patience, a target, the metric that decides."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from unisono.errors import UsageError
from unisono.task.metric_names import metric_name, split_direction, unknown_direction
from unisono.task.task import BEST, FINAL, Task
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

    def best_epoch_of(self, done: Progress) -> int | None:
        """Pure: the best of the epochs that are compared; None where none has a value."""
        best, best_value = None, None
        for epoch, row in enumerate(done.history[done.compared_from :], done.compared_from):
            value = row["metrics"].get(self.monitor)
            if value is not None and self.better(value, best_value):
                best, best_value = epoch, value
        return best

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


def make_goals(task: Task, known: Mapping[str, bool | None], validates: bool, on_nan: str) -> Goals:
    """Pure: the goals of the training. Epochs are compared by one of `known`, each with whether higher is better; refuses
    others, and one of which that is not known. The weights of the best epoch count where the user has set what decides, else the
    final ones, unless the task says which."""
    monitor, higher_is_better = (None, None) if task.monitor is None else _find_monitor(task.monitor, known)
    wanted = [name for name in ("monitor", "target", "patience") if getattr(task, name) is not None]
    is_set = bool(wanted)
    wanted += ["weights best"] * (task.weights == BEST)
    if not validates and wanted:
        raise UsageError(f"{wanted[0]} of the task needs validation data; give un.Splits(..., validation=...)")
    if not known and wanted:
        raise UsageError(f"{wanted[0]} of the task needs a metric or a loss that compares epochs; name metrics of the task")
    directed = (name for name, direction in known.items() if direction is not None)
    name = monitor or (next(iter(known), None) if wanted else next(directed, None))
    if not validates or name is None:
        return Goals(task.epochs, None, on_nan=on_nan)
    if higher_is_better is None:
        higher_is_better = known[name]
    if higher_is_better is None:
        raise unknown_direction(name, "--best")
    return Goals(
        task.epochs,
        name,
        higher_is_better,
        task.target,
        task.patience,
        on_nan=on_nan,
        weights=task.weights or (BEST if is_set else FINAL),
        names_weights=task.weights is not None,
    )


def _find_monitor(text: str, known: Mapping[str, bool | None]) -> tuple[str, bool | None]:
    """Returns the one of `known` that a user names, and the direction that stands behind it; refuses other names."""
    name, direction = (text, None) if text in known else split_direction(text, "--best")
    found = next((one for one in (name, metric_name("val_", name)) if one in known), None)
    if found is None:
        raise UsageError(f"the task has no metric {name!r} (monitor, --best); known: {', '.join(known)}")
    return found, direction
