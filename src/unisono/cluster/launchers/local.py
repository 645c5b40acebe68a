"""Topology of a single process, which no launcher started. Pure; never refuses."""

from __future__ import annotations

from collections.abc import Mapping

from unisono.cluster.launchers import slurm
from unisono.cluster.rendezvous import derived_port, job_token
from unisono.cluster.topology import Overrides, Topology


def resolve(env: Mapping[str, str], overrides: Overrides) -> Topology:
    """Returns the topology of a single process that no launcher started; it always applies, so it comes last."""
    token = job_token("local")
    return Topology(
        launcher="local",
        global_rank=0,
        world_size=1,
        local_rank=0,
        local_size=1,
        node_rank=0,
        num_nodes=1,
        address="127.0.0.1",
        port=overrides.port or derived_port(token),
        token=token,
        note=_note(env),
    )


def _note(env: Mapping[str, str]) -> str:
    """Returns a warning where one process runs inside an allocation of several tasks, which is seldom meant."""
    if not env.get("SLURM_JOB_ID"):
        return ""
    outside, num_tasks = slurm.outside_step(env), slurm.job_tasks(env)
    return f"{outside} (the job has {num_tasks} tasks; this process runs alone)" if outside and num_tasks > 1 else ""
