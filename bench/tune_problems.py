"""What the quality of a search is measured with: three test functions, and one small task."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from unisono.task.task import Choice, Range
from unisono.tuning.search.space import Dimension, Space

Values = Mapping[str, Any]

HARTMANN_WEIGHTS = (1.0, 1.2, 3.0, 3.2)
HARTMANN_A = (
    (10.0, 3.0, 17.0, 3.5, 1.7, 8.0),
    (0.05, 10.0, 17.0, 0.1, 8.0, 14.0),
    (3.0, 3.5, 1.7, 10.0, 17.0, 8.0),
    (17.0, 8.0, 0.05, 10.0, 0.1, 14.0),
)
HARTMANN_P = (
    (0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886),
    (0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991),
    (0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650),
    (0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381),
)
ACKLEY_BEST = {"a": 1.3, "b": -2.1, "c": 0.7, "whole": 2}
ACKLEY_PLACE = "left"
PLACES = {"far left": -4.0, "left": -2.0, "middle": 0.0, "right": 2.0, "far right": 4.0}
NUM_DIGITS, NUM_FOLDS = 300, 3


@dataclass(frozen=True)
class Problem:
    """Something to make small."""

    name: str
    about: str
    space: Space
    value: Callable[[Values], float]
    best: float | None
    """The smallest value that there is; None where nobody knows."""


def branin(values: Values) -> float:
    """Pure: three equal minima."""
    x, y = values["x"], values["y"]
    bowl = (y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6) ** 2
    return float(bowl + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10)


def hartmann(values: Values) -> float:
    """Pure: six numbers, four hills."""
    x = np.asarray([values[f"x{place}"] for place in range(6)])
    depths = np.exp(-np.sum(np.asarray(HARTMANN_A) * (x - np.asarray(HARTMANN_P)) ** 2, axis=1))
    return -float(np.asarray(HARTMANN_WEIGHTS) @ depths)


def ackley(values: Values) -> float:
    """Pure: Ackley's function of five, of which one is whole and one has names; its minimum lies beside the middle."""
    away = [values[name] - best for name, best in ACKLEY_BEST.items()]
    x = np.asarray([*away, PLACES[values["place"]] - PLACES[ACKLEY_PLACE]])
    return float(20 - 20 * math.exp(-0.2 * math.sqrt(np.mean(x**2))) + math.e - math.exp(np.mean(np.cos(2 * math.pi * x))))


def digits(values: Values) -> float:
    """Local, blocking for some hundredths of a second: the error of a support-vector machine on digits, over folds."""
    from sklearn.model_selection import cross_val_score
    from sklearn.svm import SVC

    images, labels = _digits()
    machine = SVC(C=values["c"], gamma=values["gamma"], kernel=values["kernel"], degree=2, coef0=1.0)
    return 1 - float(np.mean(cross_val_score(machine, images, labels, cv=NUM_FOLDS)))


@cache
def _digits() -> tuple[Any, Any]:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return images[:NUM_DIGITS] / 16.0, labels[:NUM_DIGITS]


PROBLEMS = {
    problem.name: problem
    for problem in (
        Problem(
            "Branin",
            "two numbers",
            Space((Dimension("x", Range(-5.0, 10.0)), Dimension("y", Range(0.0, 15.0)))),
            branin,
            0.397887,
        ),
        Problem(
            "Hartmann-6",
            "six numbers",
            Space(tuple(Dimension(f"x{place}", Range(0.0, 1.0)) for place in range(6))),
            hartmann,
            -3.32237,
        ),
        Problem(
            "Ackley-5 mixed",
            "three numbers, a whole one and a choice of five names",
            Space(
                (
                    *(Dimension(name, Range(-5.0, 5.0)) for name in "abc"),
                    Dimension("whole", Range(-5, 5), is_integer=True),
                    Dimension("place", Choice(*PLACES)),
                )
            ),
            ackley,
            0.0,
        ),
        Problem(
            "digits",
            f"the error of scikit-learn's support-vector machine on {NUM_DIGITS} handwritten digits, over {NUM_FOLDS} folds, "
            "of C and gamma (logarithmic) and the kernel",
            Space(
                (
                    Dimension("c", Range(1e-3, 1e3, log=True)),
                    Dimension("gamma", Range(1e-5, 1e1, log=True)),
                    Dimension("kernel", Choice("rbf", "poly", "sigmoid")),
                )
            ),
            digits,
            None,
        ),
    )
}


def suggested(trial: Any, space: Space) -> dict[str, Any]:
    """Local: the settings of a trial, as one asks Optuna for them."""
    found: dict[str, Any] = {}
    for one in space.dimensions:
        if isinstance(one.values, Choice):
            found[one.name] = trial.suggest_categorical(one.name, list(one.values.values))
        elif one.is_integer:
            found[one.name] = trial.suggest_int(one.name, int(one.values.low), int(one.values.high), log=one.values.log)
        else:
            found[one.name] = trial.suggest_float(one.name, one.values.low, one.values.high, log=one.values.log)
    return found


def objective(name: str, wait_s: Callable[[int], float], trial: Any) -> float:
    """Blocking: a trial of a problem that takes as long as its number says."""
    began, problem = time.monotonic(), PROBLEMS[name]
    value = problem.value(suggested(trial, problem.space))
    time.sleep(max(0.0, began + wait_s(trial.number) - time.monotonic()))
    return value
