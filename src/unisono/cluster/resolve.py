"""Rank and world size of this process: tries all launchers in a fixed order, the innermost first; the first that started us counts.

`current_topology` and `environment` alone read the environment of this process; all others receive it as a value.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from unisono.cluster import gpus
from unisono.cluster.job_secret import with_secret
from unisono.cluster.launchers import local, mpi_env, slurm, tf_config, torchrun, unisono_run
from unisono.cluster.machine import parent_process
from unisono.cluster.rendezvous import host_port
from unisono.cluster.topology import ALLREDUCES, ENGINES, NotThisLauncher, Overrides, Resolver, Topology
from unisono.cluster.variables import one_of, positive_seconds
from unisono.errors import UsageError

RESOLVERS: tuple[tuple[str, Resolver], ...] = (
    ("unisono", unisono_run.resolve),
    ("torchrun", torchrun.resolve),
    ("openmpi", mpi_env.resolve_open_mpi),
    ("pmi", mpi_env.resolve_pmi),
    ("slurm", slurm.resolve),
    ("tf_config", tf_config.resolve),
    ("local", local.resolve),
)
"""Innermost first: torchrun and mpirun are often started by srun, never the other way round."""

NO_OVERRIDES = Overrides()


def current_topology(overrides: Overrides = NO_OVERRIDES) -> Topology:
    """Local: returns the topology of this process, with its GPUs and the secret of the job. Raises `UsageError` for variables that
    contradict each other."""
    env = environment()
    topology = resolve(env, overrides)
    seen, ours = gpus.assign_gpus(env, topology.local_rank, topology.local_size, gpus.num_found(), overrides)
    with_gpus = replace(topology, gpus=seen, own_gpus=ours, mpi_selection=mpi_env.mpi_selection(env))
    return with_secret(with_gpus, env)


def environment() -> dict[str, str]:
    """Local: returns a copy of this process's environment, with a name where the launcher does not identify its job."""
    env = dict(os.environ)
    if mpi_env.needs_name(env):
        process = parent_process.launcher_process("PMI_RANK", os.getpid())
        if process is not None:
            env["UNISONO_LAUNCH"] = f"mpirun-{process}"
    return env


def slurm_job() -> str | None:
    """Local: returns the number of the SLURM job that this process belongs to; None outside of one."""
    return os.environ.get("SLURM_JOB_ID") or None


def launch_id() -> str | None:
    """Local: returns the identifier of one `unisono run` or `unisono train -n`; the same in all attempts of its ranks."""
    return os.environ.get("UNISONO_BEGAN") or None


def resolve(env: Mapping[str, str], overrides: Overrides = NO_OVERRIDES) -> Topology:
    """Pure: returns the topology by the first launcher that recognises its variables, with the user's overrides. GPUs and the
    secret are left to `current_topology`."""
    answers = (resolver(env, overrides) for _, resolver in RESOLVERS)
    topology = next(answer for answer in answers if isinstance(answer, Topology))
    _check_overrides(topology, overrides)
    return _with_task_kind(_with_launch_options(topology, env, overrides), overrides)


def verdicts(
    env: Mapping[str, str], overrides: Overrides = NO_OVERRIDES
) -> list[tuple[str, Topology | NotThisLauncher | UsageError]]:
    """Pure: returns the result of each launcher's resolver, in their order; the first `Topology` is the one that counts.

    A `UsageError` stands where variables are half set or malformed; if it comes before the first `Topology`, `resolve` raises it.
    """
    found: list[tuple[str, Topology | NotThisLauncher | UsageError]] = []
    for name, resolver in RESOLVERS:
        try:
            found.append((name, resolver(env, overrides)))
        except UsageError as error:
            found.append((name, error))
    return found


def _check_overrides(topology: Topology, overrides: Overrides) -> None:
    """Raises `UsageError` where the user's overrides contradict the launcher: another number of processes, or `tasks_per_node`
    without SLURM.
    """
    asked = overrides.world_size
    if asked is not None and asked != topology.world_size:
        remedy = (
            f"start with `unisono run -n {asked}`, mpirun, srun or torchrun"
            if topology.launcher == "local"
            else f"ask for {topology.world_size} or start {asked}"
        )
        hint = f"; {topology.note}" if topology.note else ""
        raise UsageError(f"{asked} processes were requested but {_started(topology)} (environment); {remedy}{hint}")
    if overrides.tasks_per_node is not None and topology.launcher != "slurm":
        raise UsageError(
            f"tasks_per_node has an effect under SLURM only, but {topology.launcher} started this process; leave it out"
        )


def _started(topology: Topology) -> str:
    """Returns how many processes were started, for messages: 'slurm started 4'."""
    alone = topology.launcher == "local"
    return "this process was started alone" if alone else f"{topology.launcher} started {topology.world_size}"


def _with_launch_options(topology: Topology, env: Mapping[str, str], overrides: Overrides) -> Topology:
    """Returns the topology with the variables of Unisono applied, which ranks of any launcher may have."""
    if env.get("UNISONO_RENDEZVOUS"):
        address, port = host_port(env["UNISONO_RENDEZVOUS"], "UNISONO_RENDEZVOUS")
        topology = replace(topology, address=address, port=overrides.port or port)
    if env.get("UNISONO_TIME_LIMIT_S"):
        topology = replace(topology, time_limit_s=positive_seconds(env, "UNISONO_TIME_LIMIT_S"))
    return replace(
        topology,
        job=env.get("UNISONO_JOB") or topology.job,
        engine=one_of(env, "UNISONO_ENGINE", ENGINES) or topology.engine,
        allreduce=one_of(env, "UNISONO_ALLREDUCE", ALLREDUCES) or topology.allreduce,
    )


def _with_task_kind(topology: Topology, overrides: Overrides) -> Topology:
    """Returns the topology with kind and index of this process: the kinds follow each other in the order of ranks. Raises
    `UsageError` where their numbers do not add up to the world size.
    """
    if overrides.jobs is None:
        return topology
    total = sum(overrides.jobs.values())
    if total != topology.world_size:
        shown = ", ".join(f"{kind}: {count}" for kind, count in overrides.jobs.items())
        raise UsageError(f"jobs ({shown}) name {total} processes but {_started(topology)}; make them equal")
    kinds = [(kind, index) for kind, count in overrides.jobs.items() for index in range(count)]
    kind, index = kinds[topology.global_rank]
    return replace(topology, task_type=kind, task_index=index)
