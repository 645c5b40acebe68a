"""What a program written for Horovod needs of the one who starts it: where `import horovod` leads, and HOROVOD_* variables."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from unisono.cluster.horovod_elastic import without_driver
from unisono.cluster.program import command
from unisono.cluster.resolve import environment, resolve
from unisono.errors import UsageError


@dataclass(frozen=True)
class HorovodStart:
    """The same for all ranks of a job."""

    stand_in: Path
    """The folder whose package `horovod` leads to ours (`compat/horovod/alias.py`)."""
    variables: tuple[tuple[str, str], ...] = ()
    """HOROVOD_* variables that options asked for."""


@dataclass(frozen=True)
class HorovodPlace:
    """Where a rank stands, in Horovod's words. `cross` is (rank, size) among the processes with this local rank; None: unknown."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross: tuple[int, int] | None


def common_variables(base: Mapping[str, str], start: HorovodStart) -> dict[str, str]:
    """Pure: what is set for every rank, wherever it stands."""
    given = base.get("PYTHONPATH", "")
    search = [str(start.stand_in), *(given.split(os.pathsep) if given else ())]  # an empty one in it is the current folder
    controller = "mpi" if base.get("UNISONO_ENGINE") == "mpi" else "gloo"
    return {
        **dict(start.variables),
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(search)),
        "HOROVOD_CONTROLLER": controller,
        "HOROVOD_CPU_OPERATIONS": controller,
    }


def horovod_variables(base: Mapping[str, str], start: HorovodStart, at: HorovodPlace) -> dict[str, str]:
    """Local: what is set for this rank beside what `base` has already. Programs read these variables before `hvd.init()`."""
    cross = {} if at.cross is None else {"HOROVOD_CROSS_RANK": str(at.cross[0]), "HOROVOD_CROSS_SIZE": str(at.cross[1])}
    return {
        **common_variables(base, start),
        "HOROVOD_RANK": str(at.rank),
        "HOROVOD_SIZE": str(at.size),
        "HOROVOD_LOCAL_RANK": str(at.local_rank),
        "HOROVOD_LOCAL_SIZE": str(at.local_size),
        **cross,
        "HOROVOD_HOSTNAME": socket.gethostname(),
    }


def be_rank(program: Sequence[str], start: HorovodStart, wishes: Sequence[tuple[str, str]]) -> NoReturn:
    """Local: this process, which srun, mpirun or torchrun started as one of several, becomes the program."""
    base = {**without_driver(environment()), **dict(wishes)}
    at = resolve(base)
    if at.launcher == "local":
        raise UsageError(
            "the number of processes is missing; write unisono run --horovod -n 4 program, or start several with srun, mpirun or "
            "torchrun: mpirun -n 4 unisono run --horovod program"
        )
    even = at.node_rank is not None and at.num_nodes is not None and at.num_nodes * at.local_size == at.world_size
    cross = (at.node_rank or 0, at.num_nodes or 1) if even else (0, 1) if at.one_node else None
    place = HorovodPlace(at.global_rank, at.world_size, at.local_rank, at.local_size, cross)
    become(command(program), {**base, **horovod_variables(base, start, place)})


def become(arguments: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Local: run another program in the place of this one; its signals and its exit code are then its own."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    try:
        os.execvpe(arguments[0], list(arguments), dict(env))
    except OSError as error:
        raise UsageError(f"{arguments[0]} cannot be started: {error.strerror}; check that it is on PATH and executable") from error
