"""What a training is to reach, and how far it is."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

INTERRUPTED, NOT_FINITE, FINISHED = "interrupted", "not finite", "finished"
TARGET, EARLY, PRUNED = "target reached", "stopped early", "pruned"
"""Reasons why a training ended: a stop was requested; a loss that is no number; all epochs done; or a goal of the user."""


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

    @property
    def target_metric(self) -> tuple[str, float] | None:
        """The metric and the value that it is to reach."""
        return None if self.monitor is None or self.target is None else (self.monitor, self.target)

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
    """Steps done of the current epoch; all of them where only its evaluation is missing."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """Each epoch as the observers heard of it."""
    monitor: str | None = None
    """The metric by which the best epoch was found."""
    best_epoch: int | None = None
    best_value: float | None = None
    num_skipped: int = 0
    """Updates that were left out because they were not finite."""
    train_s: float = 0.0
    """Spent in steps, evaluations not counted."""
    wall_s: float = 0.0
    """Of earlier attempts, up to the checkpoint that this one resumes from."""
    num_samples: int = 0
    data_wait_s: float = 0.0
    time_to_target_s: float | None = None
    reason: str = ""
    """Why it ended."""
    failure: str = ""
    """What went wrong, where the reason is a failure."""

    def resumed(self, goals: Goals, same_batches: bool) -> Progress:
        """Pure: as another attempt takes it up, whose goals may be others."""
        best = (self.best_epoch, self.best_value) if self.monitor == goals.monitor else (None, None)  # values of one metric only
        step_in_epoch = self.step_in_epoch if same_batches else 0
        found = replace(self, monitor=goals.monitor, step_in_epoch=step_in_epoch, best_epoch=best[0], best_value=best[1])
        reason = "" if step_in_epoch else goals.verdict(found)
        return replace(found, reason=reason, time_to_target_s=found.time_to_target_s if reason == TARGET else None)

    def count_step(self, step_in_epoch: int) -> None:
        """Local: this step of the epoch is computed."""
        self.step += 1
        self.step_in_epoch = step_in_epoch + 1

    def count_data(self, num_samples: int, wait_s: float) -> None:
        """Local: what a step had to learn from."""
        self.num_samples += num_samples
        self.data_wait_s += wait_s

    def follow_server(self, step: int, steps_per_epoch: int) -> None:
        """Local: this is the server's counter, which is the step of an asynchronous run."""
        self.step, self.step_in_epoch = step, step - self.epoch * steps_per_epoch

    def count_skipped(self, num: int = 1) -> None:
        """Local: so many updates were left out."""
        self.num_skipped += num

    def count_time(self, seconds: float) -> None:
        """Local: spent in steps."""
        self.train_s += seconds

    def stop(self, reason: str) -> None:
        """Local: the training ends; the first reason counts."""
        self.reason = self.reason or reason

    def end_as(self, reason: str) -> None:
        """Local: a record that is repeated decides why the training ends; empty: it does not."""
        self.reason = reason

    def fail(self, failure: str) -> None:
        """Local: the training ends as a loss is not finite, whatever else would end it."""
        self.reason, self.failure = NOT_FINITE, failure

    def finish_epoch(self, row: dict[str, Any], goals: Goals) -> None:
        """Local: the epoch of this row of the history is over, its evaluation too."""
        self.history.append(row)
        self.epoch += 1
        self.step_in_epoch = 0
        self.reason = goals.verdict(self)
        if self.reason == TARGET:
            self.time_to_target_s = row["wall_s"]

    def keep_best(self, value: float) -> None:
        """Local: the current epoch is the best so far."""
        self.best_epoch, self.best_value = self.epoch, value
