"""Where the differences between trainings come from: the settings, the fold, their combination, or the random start.

    value = mean + trial + fold + (trial, fold) + start

All folds are those of every trial, so this is the two-way analysis of variance with random effects and equal numbers in all cells.
A fold that is hard for every trial does not disturb their order; the last two parts do.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from unisono.tuning.report.findings import parts_of
from unisono.tuning.study.study import Trial

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Components:
    """Variances by source; None for a source that these numbers of folds and repeats do not identify."""

    num_trials: int
    num_folds: int
    num_repeats: int
    trials: float
    folds: float | None
    trials_on_folds: float | None
    """A trial that suits one fold better than another; with one random start, that too."""
    starts: float | None

    @property
    def error_of_mean(self) -> float:
        """The standard error of a trial's mean when it is compared with the means of other trials."""
        within = (self.trials_on_folds or 0.0) / self.num_folds
        return math.sqrt(within + (self.starts or 0.0) / (self.num_folds * self.num_repeats))


def cells_of(trials: Sequence[Trial], index: int = 0) -> Floats | None:
    """Returns the values as an array of trials x folds x repeats, of all trials with the folds and repeats that most of them have;
    None where fewer than two trials have the same, or where a trial is a single training. Pure."""
    parts = [parts_of(trial, index) for trial in trials]
    grids = Counter(tuple(part[:2] for part in one) for one in parts)
    for grid, num_trials in grids.most_common():
        folds, repeats = sorted({fold for fold, _ in grid}), sorted({repeat for _, repeat in grid})
        if num_trials > 1 and len(grid) > 1 and list(grid) == [(fold, repeat) for fold in folds for repeat in repeats]:
            rows = [[part.value for part in one] for one in parts if tuple(part[:2] for part in one) == grid]
            return np.array(rows).reshape(num_trials, len(folds), len(repeats))
    return None


def components(cells: Floats) -> Components:
    """Estimates the variances from the mean squares; a negative estimate becomes zero. `cells` is trials x folds x repeats, with at
    least two trials and two trainings of each. Pure."""
    num_trials, num_folds, num_repeats = cells.shape
    mean = cells.mean()
    by_trial, by_fold, by_cell = cells.mean(axis=(1, 2)), cells.mean(axis=(0, 2)), cells.mean(axis=2)
    of_trials = num_folds * num_repeats * np.sum((by_trial - mean) ** 2) / (num_trials - 1)
    of_starts = np.sum((cells - by_cell[:, :, None]) ** 2) / (num_trials * num_folds * max(num_repeats - 1, 1))
    starts = float(of_starts) if num_repeats > 1 else None
    if num_folds == 1:
        trials = _positive((of_trials - of_starts) / num_repeats)
        return Components(num_trials, num_folds, num_repeats, trials, None, None, starts)
    mixed = by_cell - by_trial[:, None] - by_fold[None, :] + mean
    of_mixed = num_repeats * np.sum(mixed**2) / ((num_trials - 1) * (num_folds - 1))
    of_folds = num_trials * num_repeats * np.sum((by_fold - mean) ** 2) / (num_folds - 1)
    return Components(
        num_trials,
        num_folds,
        num_repeats,
        _positive((of_trials - of_mixed) / (num_folds * num_repeats)),
        _positive((of_folds - of_mixed) / (num_trials * num_repeats)),
        _positive((of_mixed - of_starts) / num_repeats),
        starts,
    )


def _positive(value: float) -> float:
    """Returns the value, or 0 if it is negative."""
    return max(0.0, float(value))
