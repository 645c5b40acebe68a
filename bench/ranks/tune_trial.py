"""A trial of every contender of `bench.tune`: it waits, and writes down from when to when. All have the same three settings."""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

X, RATE, WIDTH = (-1.0, 1.0), (1e-5, 1e-1), (1, 64)
"""Ranges of a number, of one that is logarithmic, and of a whole one."""


@dataclass(frozen=True)
class Order:
    """The command line of every program."""

    folder: str
    """For what it writes; goes at the end."""
    num_trials: int
    num_workers: int
    seconds: float
    """That a trial waits."""
    seed: int
    search: str
    """tpe, gp or random; a contender that has none of them has its own."""

    @classmethod
    def given(cls) -> Order:
        """Local: as it was typed."""
        folder, num_trials, num_workers, seconds, seed, search = sys.argv[1:7]
        return cls(folder, int(num_trials), int(num_workers), float(seconds), int(seed), search)

    @property
    def arguments(self) -> list[str]:
        return [self.folder, *map(str, (self.num_trials, self.num_workers, self.seconds, self.seed)), self.search]

    def wait(self) -> None:
        """Blocking: the work of a trial. The clock is that of the machine, the same for all processes."""
        began = time.monotonic()
        time.sleep(self.seconds)
        ended = time.monotonic()
        name = f"{os.getpid()}-{threading.get_ident()}.waited"
        file = os.open(os.path.join(self.folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)  # noqa: PTH118 - quick
        os.write(file, f"{began!r} {ended!r}\n".encode())
        os.close(file)

    def tell_versions(self, *packages: str) -> None:
        """Local: what took part."""
        found = {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in packages}}
        (Path(self.folder) / "versions.json").write_text(json.dumps(found))

    def sampler(self, rank: int = 0) -> Any:
        """Local: of Optuna, told that other trials run at the same time."""
        from optuna import samplers

        seed = self.seed + 1000 * rank
        if self.search == "gp":
            return samplers.GPSampler(seed=seed)
        return samplers.RandomSampler(seed) if self.search == "random" else samplers.TPESampler(seed=seed, constant_liar=True)


def waits_of(folder: Path) -> dict[str, list[tuple[float, float]]]:
    """Local: what `Order.wait` wrote: worker -> when its trials began and ended."""
    found = {}
    for file in sorted(folder.glob("*.waited")):
        rows = [line.split() for line in file.read_text().splitlines()]
        found[file.stem] = [(float(began), float(ended)) for began, ended in rows]
    return found


def worth(x: float, rate: float, width: int) -> float:
    """Pure: a smooth function, so that a search has something to find."""
    return (x - 0.3) ** 2 + (math.log10(rate) + 3) ** 2 + abs(width - 20) / 20


def objective(order: Order, trial: Any) -> float:
    """Blocking: as one writes it for Optuna. It begins to work when it knows its settings."""
    x = trial.suggest_float("x", *X)
    rate = trial.suggest_float("rate", *RATE, log=True)
    width = trial.suggest_int("width", *WIDTH)
    order.wait()
    return worth(x, rate, width)
