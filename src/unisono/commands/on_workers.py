"""Runs a verb on several workers: starts them on this machine, or runs as one that srun, mpirun or torchrun started."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from unisono.launch.lasting_import import import_to_stay
from unisono.launch.worker_options import PLAIN, WorkerOptions
from unisono.task.options import add_options, options_for

if TYPE_CHECKING:
    from unisono.comm.base import Communicator


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Local: adds the options for the number of workers and how they run."""
    add_options(parser, WorkerOptions, only=PLAIN)


def options(args: argparse.Namespace) -> WorkerOptions:
    """Pure: the worker options from parsed arguments."""
    return WorkerOptions(**options_for(WorkerOptions, vars(args)))


def launch_if_requested(start: WorkerOptions, argv: Sequence[str], job: str, elastic: bool = False) -> int | None:
    """Local, blocking: starts the workers if -n requests them, and returns their exit code; None if this process is a worker
    itself."""
    from unisono.cluster.resolve import current_topology
    from unisono.cluster.topology import Overrides

    start.check()
    if current_topology().launcher != "local" or start.workers in (None, 1):
        current_topology(Overrides(world_size=start.workers))  # refuses a number that the launcher does not give
        return None
    from unisono.launch.launch import launch

    return launch(start.launch_config(("-m", "unisono.cli", *argv), job, elastic))


@contextmanager
def worker_communicator(start: WorkerOptions) -> Iterator[Communicator]:
    """Context manager, collective, blocking: connects this process with the other workers and yields their communicator."""
    from unisono.cluster.machine.worker_threads import set_threads

    import_to_stay("torch")
    from unisono.comm.connect import connect

    set_threads(start.threads)
    with connect(engine=start.engine, quiet=True) as comm:
        yield comm
