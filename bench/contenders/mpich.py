"""MPICH from PyPI, in an environment of its own."""

from __future__ import annotations

from bench.contenders.contender import Contender
from bench.environments import Environment
from bench.groups import Launch, Seat

HOME = Environment("mpich", ("numpy", "mpi4py", "mpich"))


def start(num_ranks: int, seat: Seat) -> list[Launch]:
    run = [HOME.program("mpiexec"), "-n", str(num_ranks)]
    return [Launch([*run, HOME.python, "-m", "bench.ranks.mpi", *seat.arguments], HOME.variables)]


CONTENDER = Contender(
    name="mpich",
    kind="mpi",
    about="the same, MPICH from PyPI",
    start=start,
    prepare=HOME.make,
)
