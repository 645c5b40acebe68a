"""Options of a launch for the communicator and the libraries, as environment variables of the ranks, and their check. Local,
pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

from unisono.cluster.machine.instruction_set import settings_of
from unisono.cluster.machine.processor import this_processor
from unisono.cluster.topology import ALLREDUCES, ENGINES
from unisono.cluster.variables import one_of, positive_seconds
from unisono.errors import UsageError
from unisono.launch.program import command
from unisono.launch.this_process import refuse_contradictions

if TYPE_CHECKING:
    from unisono.launch.launch import LaunchConfig


def launch_options(config: LaunchConfig) -> tuple[tuple[str, str], ...]:
    """Pure: returns the environment variables of the ranks for the options that were given; the others are left to the
    environment."""
    options = (
        ("UNISONO_ENGINE", config.engine),
        ("UNISONO_ALLREDUCE", config.allreduce),
        ("UNISONO_TIME_LIMIT_S", None if config.time_limit_s is None else repr(float(config.time_limit_s))),
    )
    capped = () if config.portable is None else settings_of(config.portable, this_processor())
    return (
        *((name, value) for name, value in options if value is not None),
        *((one.variable, one.value) for one in capped),
    )


def check_launch_options(config: LaunchConfig, base: Mapping[str, str]) -> None:
    """Pure: refuses options that no rank could follow, whether they were given or are in the environment."""
    options = dict(launch_options(config))
    if config.portable is not None:
        refuse_contradictions(settings_of(config.portable, this_processor()), base)
    requested = {**base, **options}
    engine = one_of(requested, "UNISONO_ENGINE", ENGINES)
    one_of(requested, "UNISONO_ALLREDUCE", ALLREDUCES)
    if requested.get("UNISONO_TIME_LIMIT_S"):
        positive_seconds(requested, "UNISONO_TIME_LIMIT_S")
    place = f"--engine {engine}" if config.engine else f"UNISONO_ENGINE={engine} (environment)"
    total = config.num_local * config.num_nodes
    if engine == "single" and total > 1:
        raise UsageError(f"{place} is for one process, but -n starts {total}; use --engine auto")
    if engine == "mpi":
        variables = [f"{name}={value}" for name, value in {"UNISONO_ENGINE": engine, **options}.items()]
        line = shlex.join(("mpirun", "-n", str(total), "env", *variables, *command(config.program)))
        raise UsageError(
            f"{place} needs processes that MPI has started, and `unisono run` does not use MPI; start them with: {line} "
            "(or with srun instead of mpirun); or use another engine, e.g. --engine auto"
        )
