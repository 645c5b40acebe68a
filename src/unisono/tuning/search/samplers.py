"""Optuna's samplers and pruners by the names that users type. Optuna is handed in; `search.py` alone loads it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from unisono.errors import UsageError

SEARCHES = ("tpe", "gp", "cmaes", "evolution", "random", "grid")
PRUNERS = ("none", "asha", "median", "wilcoxon")
NUM_STARTUP_TRIALS = 10
"""Results before which settings are drawn at random."""
HALVING = 3
"""Of all trials that reach a rung of successive halving, one in so many continues."""
NUM_RUNGS = 2
MEDIAN_STARTUP = 5
"""Trials that are finished before others are compared with their median."""
LEAST_PAIRS, LEAST_CHANCE = 4, 0.2
"""A trial is hopeless where the chance that it is as good as the best is below this; of three pairs the least chance is 1/8."""


def num_startup_trials(search: str, num_trials: int) -> int:
    """Returns how many results a search needs before they influence its proposals. Pure."""
    if search == "evolution":
        return min(50, max(4, num_trials // 5))
    return 1 if search == "cmaes" else NUM_STARTUP_TRIALS


def make_sampler(optuna: Any, search: str, seed: int, num_startup: int, conditional: bool) -> Any:
    """Returns Optuna's sampler for a search. `conditional`: whether some settings exist only for some values of others. Local."""
    samplers = optuna.samplers
    if search == "tpe":
        return samplers.TPESampler(seed=seed, constant_liar=True, group=conditional, n_startup_trials=num_startup)
    if search == "gp":
        return samplers.GPSampler(seed=seed, warn_independent_sampling=False, n_startup_trials=num_startup)
    if search == "cmaes":
        return samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
    if search == "evolution":
        return samplers.NSGAIISampler(seed=seed, population_size=num_startup)
    return samplers.RandomSampler(seed=seed)


def make_pruner(optuna: Any, prune: str, num_steps: int) -> Any:
    """Returns Optuna's pruner for trials that report at most `num_steps` times. Local."""
    pruners = optuna.pruners
    if prune == "asha":
        return pruners.SuccessiveHalvingPruner(min_resource=first_rung(num_steps), reduction_factor=HALVING)
    if prune == "median":
        return pruners.MedianPruner(n_startup_trials=MEDIAN_STARTUP, n_warmup_steps=num_steps // 10)
    if prune == "wilcoxon":
        if num_steps < LEAST_PAIRS:
            raise UsageError(
                f"--prune wilcoxon compares the trainings of two trials in pairs; received folds times repeats = {num_steps}. Use "
                f"--folds and --repeats for at least {LEAST_PAIRS} trainings, or --prune asha"
            )
        return pruners.WilcoxonPruner(p_threshold=LEAST_CHANCE, n_startup_steps=2)
    return pruners.NopPruner()


def first_rung(num_steps: int) -> int:
    """Returns the report at which successive halving compares trials for the first time. Pure."""
    return int(max(1, num_steps // HALVING**NUM_RUNGS))


RUNG = "completed_rung_"
"""How Optuna names the attributes of a trial that hold the values with which it has passed the rungs of successive halving."""


def completed_rungs(reports: Mapping[int, float], counts: Mapping[int, int], num_steps: int) -> dict[str, float]:
    """Returns the rungs of successive halving that a trial has passed, as Optuna keeps them. `counts` has the number of rungs after
    each report; where it is unknown (studies of earlier versions), they are those that the step reaches, none for NaN. Pure."""
    found: dict[str, float] = {}
    for step, value in sorted(reports.items()):
        if step in counts:
            found |= {f"{RUNG}{rung}": value for rung in range(len(found), counts[step])}
            continue
        while not math.isnan(value) and step >= first_rung(num_steps) * HALVING ** len(found):
            found[f"{RUNG}{len(found)}"] = value
    return found
