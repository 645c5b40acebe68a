"""How far a training is, and why it ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from unisono.task.task import FINAL

if TYPE_CHECKING:
    from unisono.training.early_stopping import Goals

INTERRUPTED, NOT_FINITE, FINISHED = "interrupted", "not finite", "finished"
TARGET, EARLY, PRUNED = "target reached", "stopped early", "pruned"
"""Reasons why a training ended: a stop was requested; a loss that is no number; all epochs done; or a goal of the user."""


@dataclass
class Progress:
    """The progress of a training: what a checkpoint must hold besides the state of the model."""

    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0
    """Steps done of the current epoch; all of them where only its evaluation is missing."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """The events of the epochs that are done."""
    monitor: str | None = None
    """The metric by which the best epoch was found."""
    best_epoch: int | None = None
    best_value: float | None = None
    num_skipped: int = 0
    """Updates that were left out because they were not finite."""
    train_s: float = 0.0
    """Spent in steps, evaluations not counted."""
    wall_s: float = 0.0
    """Seconds of earlier attempts, up to the checkpoint from which this one resumes."""
    num_samples: int = 0
    data_wait_s: float = 0.0
    time_to_target_s: float | None = None
    reason: str = ""
    """Why it ended."""
    failure: str = ""
    """The message of a failure that ended the training; empty without one."""
    weights: str | None = None
    """The weights whose results count, `best` or `final`; None in a run that an earlier version has begun: the final ones."""
    compared_from: int = 0
    """The first epoch that the monitor compares with others: a run that resumes with another monitor has lost the weights of
    earlier ones, so none of them can be the best, and patience does not count them."""

    @property
    def weights_that_count(self) -> str:
        """Returns `best` or `final`: the weights whose results count. Without a best epoch they are the final ones."""
        return FINAL if self.weights is None or self.best_epoch is None else self.weights

    @property
    def metrics(self) -> dict[str, Any]:
        """Returns the metrics of the last epoch, and those of the best one with `best_` before their names."""
        return metrics_of(self.history, self.best_epoch)

    def for_resume(self, goals: Goals, same_batches: bool) -> Progress:
        """Pure: the progress with which another attempt resumes, whose goals may differ."""
        weights = None if self.weights is None and not goals.names_weights else goals.weights
        found = replace(self, step_in_epoch=self.step_in_epoch if same_batches else 0, weights=weights)
        if found.monitor != goals.monitor or found.best_epoch != goals.best_epoch_of(found):  # or judged the other way round
            found = replace(found, monitor=goals.monitor, best_epoch=None, best_value=None, compared_from=found.epoch)
        reason = "" if found.step_in_epoch else goals.verdict(found)
        return replace(found, reason=reason, time_to_target_s=found.time_to_target_s if reason == TARGET else None)

    def count_step(self, step_in_epoch: int) -> None:
        """Local: counts a step of the epoch as computed."""
        self.step += 1
        self.step_in_epoch = step_in_epoch + 1

    def count_data(self, num_samples: int, wait_s: float) -> None:
        """Local: counts the samples of a step and the time that it waited for them."""
        self.num_samples += num_samples
        self.data_wait_s += wait_s

    def follow_server(self, step: int, steps_per_epoch: int) -> None:
        """Local: sets the step from the server's counter, which is the step of an asynchronous run."""
        self.step, self.step_in_epoch = step, step - self.epoch * steps_per_epoch

    def count_skipped(self, num: int = 1) -> None:
        """Local: counts updates that were left out."""
        self.num_skipped += num

    def count_time(self, seconds: float) -> None:
        """Local: adds seconds spent in steps."""
        self.train_s += seconds

    def stop(self, reason: str) -> None:
        """Local: ends the training for a reason; the first reason counts."""
        self.reason = self.reason or reason

    def end_as(self, reason: str) -> None:
        """Local: sets the reason that a replayed record gives; with an empty one the training does not end."""
        self.reason = reason

    def fail(self, failure: str) -> None:
        """Local: ends the training because a loss is not finite; this reason replaces any other."""
        self.reason, self.failure = NOT_FINITE, failure

    def finish_epoch(self, row: dict[str, Any], goals: Goals) -> None:
        """Local: adds the row of a finished epoch to the history."""
        self.history.append(row)
        self.epoch += 1
        self.step_in_epoch = 0
        self.reason = goals.verdict(self)
        if self.reason == TARGET:
            self.time_to_target_s = row["wall_s"]

    def keep_best(self, value: float) -> None:
        """Local: marks the current epoch as the best so far."""
        self.best_epoch, self.best_value = self.epoch, value


def metrics_of(history: Sequence[Mapping[str, Any]], best_epoch: int | None) -> dict[str, Any]:
    """Pure: the metrics of the last of these epochs, and those of the best one with `best_` before their names."""
    last = history[-1]["metrics"] if history else {}
    best = {} if best_epoch is None else history[best_epoch]["metrics"]
    return {**last, **with_prefix("best_", best)}


def with_prefix(prefix: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Pure: the metrics of the validation, with a prefix that says of which weights they are: `best_val_loss`."""
    return {f"{prefix}{name}": value for name, value in metrics.items() if name.startswith("val_")}
