"""Options of `unisono train`, `evaluate` and `apply` for the number of workers and how they are started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unisono.cluster.machine.instruction_set import LEVELS
from unisono.cluster.topology import ALLREDUCES, ENGINES
from unisono.errors import UsageError
from unisono.task.options import check, option
from unisono.task.train_config import MACHINE, RESUME, threads_option

if TYPE_CHECKING:
    from unisono.launch.launch import LaunchConfig

PLAIN = ("workers", "engine", "threads")
"""Options of every command with workers."""


@dataclass(frozen=True)
class WorkerOptions:
    """The options as given. They are checked before workers are started, or by all of them in one collective, so that a message
    appears once."""

    workers: int | None = option(
        None, "workers (default 1, or those that srun, mpirun or torchrun started)", "N", flag="-n", name="workers", least=1
    )
    engine: str | None = option(
        None, "how the workers communicate: auto (default), single, shm, gloo, nccl or mpi", "E", group=MACHINE, choices=ENGINES
    )
    allreduce: str | None = option(
        None, f"algorithm of the all-reduce: {', '.join(ALLREDUCES)} (default auto)", "A", choices=ALLREDUCES
    )
    portable: str | None = option(
        None, f"use only CPU instructions of this level, so that different CPUs give the same bits: {', '.join(LEVELS)}", "LEVEL"
    )
    threads: int | None = threads_option()
    restarts: int = option(
        0, "with -n: if a worker dies, restart from the last checkpoint, at most R times", "R", group=RESUME, least=0
    )

    def check(self, num_started: int | None = None) -> None:
        """Pure: refuses invalid options, and a number of workers other than `num_started`, the number that a launcher has
        started."""
        check(self)
        if num_started is not None and self.workers is not None and self.workers != num_started:
            raise UsageError(
                f"-n requests {self.workers} workers, but {num_started} were started; leave -n out, or start {self.workers}"
            )

    def check_restarts(self, out: str | None) -> None:
        """Pure: refuses --restarts without several workers or without a run directory (`out`)."""
        check(self)
        if self.restarts and (self.workers or 1) < 2:
            raise UsageError("--restarts needs several workers, started with -n; give -n 2 or more, or leave --restarts out")
        if self.restarts and out is None:
            raise UsageError("--restarts needs --out, so that the next attempt finds the checkpoint")

    def launch_config(self, program: tuple[str, ...], job: str, elastic: bool = False) -> LaunchConfig:
        """Pure: returns the configuration that starts the workers on this machine. Standard output is that of rank 0."""
        from unisono.launch.launch import LaunchConfig

        assert self.workers is not None
        return LaunchConfig(
            program=program,
            num_local=self.workers,
            engine=self.engine,
            allreduce=self.allreduce,
            job=job,
            threads=self.threads,
            portable=self.portable,
            output_from="first",
            on_failure="elastic" if elastic else "restart" if self.restarts else "end",
            restarts=self.restarts or None,
        )
