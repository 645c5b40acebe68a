"""Propulate: every MPI rank breeds its next individual from those that it knows of, and sends what it found to all others."""

from __future__ import annotations

import importlib
import math
import random
from pathlib import Path
from typing import Any

from bench.ranks.tune_trial import RATE, WIDTH, Order, X, worth

POPULATION = 8
"""Individuals that are bred from: two for each worker, so that most of so few trials are bred and not drawn."""


def main() -> None:
    order = Order.given()
    world: Any = importlib.import_module("mpi4py.MPI").COMM_WORLD
    propulate: Any = importlib.import_module("propulate")  # lives in an environment of its own
    if world.rank == 0:
        order.tell_versions("propulate", "mpi4py", "numpy")

    def loss(individual: Any) -> float:
        order.wait()
        return worth(individual["x"], 10 ** individual["rate"], individual["width"])

    # It has no logarithmic ranges, so the exponent is searched.
    limits = {"x": X, "rate": (math.log10(RATE[0]), math.log10(RATE[1])), "width": WIDTH}
    rng = random.Random(order.seed + 1000 * world.rank)
    propagator = importlib.import_module("propulate.utils").get_default_propagator(POPULATION, limits, rng=rng)
    found = propulate.Propulator(
        loss_fn=loss,
        propagator=propagator,
        rng=rng,
        generations=order.num_trials // order.num_workers,
        checkpoint_path=Path(order.folder) / "checkpoints",
    )
    found.propulate()


if __name__ == "__main__":
    main()
