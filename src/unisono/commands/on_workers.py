"""A verb on several workers: start them on this machine, or be one of those that srun, mpirun or torchrun started."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from unisono.launch.worker_options import PLAIN, WorkerOptions
from unisono.task.options import add_options, options_for

if TYPE_CHECKING:
    from unisono.comm.base import Communicator


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Local: the options that say how many workers there are and how they run."""
    add_options(parser, WorkerOptions, only=PLAIN)


def options(args: argparse.Namespace) -> WorkerOptions:
    """Pure: what they say."""
    return WorkerOptions(**options_for(WorkerOptions, vars(args)))


def launched(start: WorkerOptions, argv: Sequence[str], job: str, elastic: bool = False) -> int | None:
    """Local, blocking: the exit code of N workers that ran the same command, or None where this process is a worker itself."""
    from unisono.cluster.resolve import current_topology
    from unisono.cluster.topology import Overrides

    start.check()
    if current_topology().launcher != "local" or start.workers in (None, 1):
        current_topology(Overrides(world_size=start.workers))  # refuses a number that the launcher does not give
        return None
    from unisono.launch.launch import launch

    return launch(start.launch_config(("-m", "unisono.cli", *argv), job, elastic))


@contextmanager
def working(start: WorkerOptions) -> Iterator[Communicator]:
    """Collective, blocking: be one of the workers."""
    from unisono.cluster.machine.worker_threads import set_threads
    from unisono.comm.connect import connect

    set_threads(start.threads)
    with connect(engine=start.engine, quiet=True) as comm:
        yield comm
