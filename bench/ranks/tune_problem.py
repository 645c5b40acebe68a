"""One real `un.tune` of a problem: its trials take as long as those of the simulation, on a faster clock."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import unisono as un
from bench.tune_problems import objective
from bench.tune_simulation import Case


def main() -> None:
    folder, name = Path(sys.argv[1]), sys.argv[2]
    num_blocks, num_trials, seed = map(int, sys.argv[3:6])
    case = Case(num_blocks, num_trials, seed=seed, mean_s=float(sys.argv[6]), sigma=float(sys.argv[7]))
    found = un.tune(
        partial(objective, name, case.duration_s),
        num_trials,
        num_blocks,
        folder / "study",
        search=sys.argv[8],
        seed=seed,
        show=False,
    )
    (folder / "best.json").write_text(json.dumps(found.best_value))


if __name__ == "__main__":
    main()
