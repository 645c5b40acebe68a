"""A verb on several workers: start them on this machine, or be one of those that srun, mpirun or torchrun started."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from unisono.errors import UsageError

if TYPE_CHECKING:
    from unisono.comm.base import Communicator


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Local: the options that say how many workers there are and how they live."""
    parser.add_argument("-n", type=int, metavar="N", help="workers (default 1, or those that srun, mpirun or torchrun started)")
    machine = parser.add_argument_group("the machine")
    machine.add_argument("--engine", metavar="E", help="how the workers talk: auto, single, shm, gloo, nccl or mpi")
    machine.add_argument("--threads", type=int, metavar="T", help="threads of each worker (default: the CPUs / the workers)")


def launched(args: argparse.Namespace, argv: Sequence[str], job: str) -> int | None:
    """Local, blocking: the exit code of N workers that ran the same command, or None where this process is a worker itself."""
    from unisono.cluster.launch import LaunchConfig, launch
    from unisono.cluster.resolve import here
    from unisono.cluster.topology import Overrides

    for option, value, what in (("-n", args.n, "workers"), ("--threads", args.threads, "threads of each worker")):
        if value is not None and value < 1:
            raise UsageError(f"{option} must be at least 1 ({what}); received {value}")
    if here().launcher != "local" or (args.n or 1) == 1:
        here(Overrides(world_size=args.n))  # refuses a number that the launcher does not give
        return None
    return launch(
        LaunchConfig(
            program=("-m", "unisono.cli", *argv),
            num_local=args.n,
            engine=args.engine,
            allreduce=getattr(args, "allreduce", None),  # of verbs that reduce often enough to let users choose
            job=job,
            threads=args.threads,
            portable=getattr(args, "portable", None),  # of the verb that promises bits
            voice="first",
            on_failure="elastic" if getattr(args, "elastic", None) else "restart" if getattr(args, "restarts", 0) else "end",
            restarts=getattr(args, "restarts", 0),
        )
    )


@contextmanager
def working(args: argparse.Namespace) -> Iterator[Communicator]:
    """Collective, blocking: be one of the workers."""
    from unisono.cluster.threads import set_threads
    from unisono.comm.connect import connect

    set_threads(args.threads)
    with connect(engine=args.engine, quiet=True) as comm:
        yield comm
