"""A search of short trials that wait at a gate: `python searched.py STUDY NUM_TRIALS BLOCKS`, BLOCKS 0 for the ranks of a launcher.

While there is no file named by SEARCH_GATE no trial ends.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import unisono as un


def value_of(x: float, kind: str, steps: int) -> float:
    """Pure: what a trial with these settings gives."""
    return x * x + (steps / 7 if kind == "deep" else 0.25)


def objective(trial: Any) -> float:
    x = trial.suggest_float("x", -1.0, 1.0)
    kind = trial.suggest_categorical("kind", ["flat", "deep"])
    steps = trial.suggest_int("steps", 1, 9)
    time.sleep(0.005 * steps)
    while not os.path.exists(os.environ["SEARCH_GATE"]):  # noqa: PTH110  (an objective travels by value, and needs little)
        time.sleep(0.005)
    return value_of(x, kind, steps)


if __name__ == "__main__":
    un.tune(objective, trials=int(sys.argv[2]), blocks=int(sys.argv[3]) or None, out=sys.argv[1], attempts=1000)
