"""A search whose first rank loads its objective only once there is a file named by SEARCH_GATE: `python searched_late.py STUDY`."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import unisono as un


class Objective:
    """Called for each trial."""

    __name__ = "late"

    def __call__(self, trial: Any) -> float:
        return float(trial.suggest_float("x", -1.0, 1.0))

    def __getstate__(self) -> dict[str, str]:
        return {"gate": os.environ["SEARCH_GATE"]}

    def __setstate__(self, state: dict[str, str]) -> None:
        while os.environ.get("UNISONO_RANK") == "0" and not os.path.exists(state["gate"]):  # noqa: PTH110  (it travels by value)
            time.sleep(0.01)


if __name__ == "__main__":
    un.tune(Objective(), trials=6, out=sys.argv[1])
