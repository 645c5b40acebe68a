"""What a trainer asks its run, and tells it: whether to stop, what is worth keeping."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True, kw_only=True)
class RunHooks:
    """The defaults stop nothing and keep nothing. All but `stop_requested` are called at the same steps on all ranks."""

    stop_requested: Callable[[], bool] = bool
    """Asked before each step and in evaluations, on every rank: whether this process was asked to stop."""
    after_step: Callable[[int], None] | None = None
    """Told the number of steps that are done, after each."""
    epoch_is_enough: Callable[[], bool] = bool
    """Asked after each step, with the same answer on all ranks: whether the epoch ends here, as if it had no more steps."""
    fits_evaluation: Callable[[], bool] = lambda: True
    """Asked on rank 0 before an evaluation: whether there is time for it."""
    evaluation_is_due: Callable[[int], bool] = lambda epoch: True  # noqa: ARG005
    """Asked after each epoch: whether it is evaluated."""
    should_continue: Callable[[int, Mapping[str, float]], bool] | None = None
    """Asked on rank 0 after each epoch, by its number from 1 and its metrics: whether more are worth while, as a search decides."""
    keep_best: Callable[[nn.Module, int], None] = lambda model, step: None  # noqa: ARG005
    """Given the model and the step when the replicas hold the best weights so far."""
    hash_weights: Callable[[nn.Module], str] = lambda model: ""  # noqa: ARG005
    """A short hash of the weights; empty on ranks that do not show it."""
