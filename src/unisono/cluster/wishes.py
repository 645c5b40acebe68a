"""What a launch asks of the communicator and of the libraries, as variables, and what of it no rank could have. Local, pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from unisono.cluster.instruction_set import Setting, settings_of
from unisono.cluster.processor import this_processor
from unisono.cluster.program import command
from unisono.cluster.topology import ALLREDUCES, ENGINES
from unisono.cluster.variables import one_of, positive_seconds
from unisono.errors import UsageError

if TYPE_CHECKING:
    from unisono.cluster.launch import LaunchConfig


def wishes_of(config: LaunchConfig) -> tuple[tuple[str, str], ...]:
    """The variables that ranks get; what was not asked for is left to the environment."""
    wishes = (
        ("UNISONO_ENGINE", config.engine),
        ("UNISONO_ALLREDUCE", config.allreduce),
        ("UNISONO_TIME_LIMIT_S", None if config.time_limit_s is None else repr(float(config.time_limit_s))),
    )
    capped = () if config.portable is None else settings_of(config.portable, this_processor())
    return (
        *((name, value) for name, value in wishes if value is not None),
        *((one.variable, one.value) for one in capped),
    )


def check_wishes(config: LaunchConfig, base: Mapping[str, str]) -> None:
    """Refuse what no rank could have, whether it was asked for by an option or stands in the environment."""
    wishes = dict(wishes_of(config))
    if config.portable is not None:
        refuse_contradictions(settings_of(config.portable, this_processor()), base)
    asked = {**base, **wishes}
    engine = one_of(asked, "UNISONO_ENGINE", ENGINES)
    one_of(asked, "UNISONO_ALLREDUCE", ALLREDUCES)
    if asked.get("UNISONO_TIME_LIMIT_S"):
        positive_seconds(asked, "UNISONO_TIME_LIMIT_S")
    place = f"--engine {engine}" if config.engine else f"UNISONO_ENGINE={engine} (environment)"
    total = config.num_local * config.num_nodes
    if engine == "single" and total > 1:
        raise UsageError(f"{place} is for one process, but {total} are asked for (-n); use --engine auto")
    if engine == "mpi":
        variables = [f"{name}={value}" for name, value in {"UNISONO_ENGINE": engine, **wishes}.items()]
        line = shlex.join(("mpirun", "-n", str(total), "env", *variables, *command(config.program)))
        raise UsageError(
            f"{place} needs processes that MPI starts, which unisono run does not do; start with: {line} "
            "(or srun in place of mpirun); for unisono run take another engine, e.g. --engine auto"
        )


def refuse_contradictions(settings: Sequence[Setting], env: Mapping[str, str]) -> None:
    """`UsageError` if the environment says otherwise."""
    for one in settings:
        if env.get(one.variable, one.value) != one.value:
            raise UsageError(
                f"--portable needs {one.variable}={one.value}, but it is {env[one.variable]!r} (environment); unset it, or leave "
                "--portable out"
            )
