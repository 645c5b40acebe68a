"""Intel MPI's runtime from PyPI, in an environment of its own."""

from __future__ import annotations

from bench.contenders.contender import Contender
from bench.environments import Environment
from bench.groups import Launch, Seat

HOME = Environment("intelmpi", ("numpy", "mpi4py", "impi-rt"))


def start(num_ranks: int, seat: Seat) -> list[Launch]:
    run = [HOME.program("mpiexec.hydra"), "-n", str(num_ranks)]
    return [Launch([*run, HOME.python, "-m", "bench.ranks.mpi", *seat.arguments], HOME.variables)]


CONTENDER = Contender(
    name="intelmpi",
    kind="mpi",
    about="the same, Intel MPI from PyPI (impi-rt)",
    start=start,
    prepare=HOME.make,
)
