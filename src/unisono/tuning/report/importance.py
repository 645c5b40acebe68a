"""How much each setting alone has moved the objective: the share of its variance that a curve over that setting explains.

The objective and the settings enter by their ranks, so that one diverged trial or the scale of an axis decides nothing. The curve
is a polynomial of low degree, or one mean for each choice. Every trial is predicted by the curve through the *other* trials, so
that a setting that does nothing gets about zero and not the share that any curve fits by chance:

    share = 1 - sum_i (y_i - curve without i)^2 / sum_i (y_i - mean without i)^2

Main effects only: two settings that matter only together are not seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from unisono.tuning.report.findings import Setting, value_of
from unisono.tuning.study.study import Trial

FEWEST_TRIALS = 8
"""With fewer a share would mostly be chance."""
HIGHEST_DEGREE = 3
"""Enough for a best value in the middle; more would fit the noise of the few trials that studies have."""

Floats = npt.NDArray[np.float64]


def importances(trials: Sequence[Trial], settings: Sequence[Setting], index: int = 0) -> Mapping[str, float | None]:
    """Returns setting -> its share of the variance, over the trials that have it; None where they are too few or all alike.
    Pure."""
    return {setting.name: _importance(trials, setting, index) for setting in settings}


def _importance(trials: Sequence[Trial], setting: Setting, index: int) -> float | None:
    """Returns one setting's share of the variance; None where too few trials have it, or all the same value."""
    pairs = [
        (trial.values[setting.name], value)
        for trial in trials
        if trial.values is not None and setting.name in trial.values and (value := value_of(trial, index)) is not None
    ]
    if len(pairs) < FEWEST_TRIALS or len({repr(given) for given, _ in pairs}) < 2:
        return None
    given, values = zip(*pairs, strict=True)
    return explained_share(given, values, setting.choices is not None)


def explained_share(given: Sequence[Any], values: Sequence[float], is_choice: bool) -> float:
    """Returns the share of the variance that one setting explains, 0 to 1; 0 also where all values are equal. Pure."""
    target = ranks(values)
    alone = _left_out_error(np.ones((len(target), 1)), target)
    if alone == 0:
        return 0.0
    if is_choice:
        names = [repr(one) for one in given]
        designs = [np.array([[one == name for name in sorted(set(names))] for one in names], dtype=float)]
    else:
        scaled = ranks(given)
        scaled = 2 * scaled / max(scaled.max(), 1.0) - 1
        most = min(HIGHEST_DEGREE, len(set(scaled.tolist())) - 1)
        designs = [np.polynomial.legendre.legvander(scaled, degree) for degree in range(1, most + 1)]
    shares = [1 - _left_out_error(design, target) / alone for design in designs]
    return float(max([0.0, *shares]))


def ranks(values: Sequence[float]) -> Floats:
    """Returns the rank of each value, from 0; equal values share the mean of their ranks. Pure."""
    found = np.asarray(values, dtype=float)
    below = (found[:, None] > found[None, :]).sum(axis=1)
    equal = (found[:, None] == found[None, :]).sum(axis=1)
    return np.asarray(below + (equal - 1) / 2, dtype=float)


def _left_out_error(design: Floats, target: Floats) -> float:
    """Sum of the squared errors of predicting each value by the least-squares fit to all others, without fitting once for each."""
    hat = design @ np.linalg.pinv(design)
    own = np.diag(hat)
    is_alone = own > 1 - 1e-9  # the only one of its choice: the others say nothing about it but their mean
    left_out = (target - hat @ target) / np.where(is_alone, 1.0, 1 - own)
    num = len(target)
    from_mean = (target - target.mean()) * num / (num - 1)
    return float(np.sum(np.where(is_alone, from_mean, left_out) ** 2))
