"""Functions that a trainer calls during a run: whether to stop, and where the best weights go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True, kw_only=True)
class RunHooks:
    """Functions that a trainer calls; the defaults neither stop a run nor keep weights. All but `stop_requested` are called at the
    same steps on all ranks."""

    stop_requested: Callable[[], bool] = bool
    """Whether a stop of this process was requested. Called before each step and in evaluations, on every rank."""
    after_step: Callable[[int], None] | None = None
    """Called after each step with the number of steps that are done."""
    ends_epoch_early: Callable[[], bool] = bool
    """Whether the epoch ends here, as if it had no more steps. Called after each step; the same on all ranks."""
    fits_evaluation: Callable[[], bool] = lambda: True
    """Whether there is time for an evaluation. Called on rank 0 before one."""
    evaluation_is_due: Callable[[int], bool] = lambda epoch: True  # noqa: ARG005
    """Whether an epoch, by its number from 0, is evaluated. Called after it."""
    should_continue: Callable[[int, Mapping[str, float]], bool] | None = None
    """Whether the training continues, as a search decides. Called on rank 0 after each epoch, with its number from 1 and its
    metrics."""
    keep_best: Callable[[nn.Module, int], None] = lambda model, step: None  # noqa: ARG005
    """Called with the model and the step when the replicas hold the best weights so far."""
    hash_weights: Callable[[nn.Module], str] = lambda model: ""  # noqa: ARG005
    """A short hash of the weights; empty on ranks that do not show it."""
