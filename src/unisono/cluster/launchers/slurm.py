"""Topology under SLURM, of a task of a step that srun started. A batch script or a salloc shell is not a rank. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from unisono.cluster.launchers import slurm_hostlist
from unisono.cluster.rendezvous import derived_port, job_token
from unisono.cluster.topology import NotThisLauncher, Overrides, Topology
from unisono.cluster.variables import first_set, require, whole_number, whole_numbers
from unisono.errors import UsageError

NUM_TASKS = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
NODES = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
TASKS_PER_NODE = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
"""The step's variables first: the job's may speak of more nodes and tasks."""

REMEDY = "start with srun, or unset all SLURM_ variables"

FIRST_SPECIAL_STEP = 0xFFFFFFF0
SPECIAL_STEPS: Mapping[int, str] = MappingProxyType(
    {0xFFFFFFFA: "an interactive salloc shell", 0xFFFFFFFB: "the batch script", 0xFFFFFFFC: "an external login"}
)
"""SLURM numbers what is not a step of ranks from the top of 32 bits downwards."""


def resolve(env: Mapping[str, str], overrides: Overrides) -> Topology | NotThisLauncher:
    """Returns the topology of this task of a SLURM step; the reason if srun did not start it. Raises `UsageError` for variables
    that are half set or disagree.
    """
    outside = outside_step(env)
    if outside is not None:
        return NotThisLauncher(outside)
    places = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID")
    counted = () if overrides.tasks_per_node is not None else (TASKS_PER_NODE,)
    others = ("SLURM_STEP_ID", "SLURM_JOB_ID", NUM_TASKS, NODES, *counted)
    rank, local_rank, node_rank = whole_numbers(env, places, "SLURM", REMEDY, besides=others)
    hosts, tasks = _nodes(env, overrides)
    if node_rank >= len(hosts):
        raise UsageError(f"SLURM_NODEID is {node_rank} but the step has {len(hosts)} nodes (environment); {REMEDY}")
    job, step = env["SLURM_JOB_ID"], env["SLURM_STEP_ID"]
    identity = [env.get(name, "") for name in ("SLURM_CLUSTER_NAME", "SLURM_JOB_UID", "SLURM_RESTART_COUNT")]
    token = job_token("slurm", job, step, *identity)
    return Topology(
        launcher="slurm",
        global_rank=rank,
        world_size=sum(tasks),
        local_rank=local_rank,
        local_size=tasks[node_rank],
        node_rank=node_rank,
        num_nodes=len(hosts),
        address=hosts[0],
        port=overrides.port or derived_port(token),
        token=token,
        job=f"SLURM step {job}.{step}",
        note=_pty_note(env, rank, sum(tasks)),
    )


def outside_step(env: Mapping[str, str]) -> str | None:
    """Returns why this process is no task of a step; None where it is one."""
    if env.get("SLURM_PROCID") and not env.get("SLURM_JOB_ID"):
        require(env, ("SLURM_PROCID", "SLURM_JOB_ID", "SLURM_STEP_ID"), "SLURM", REMEDY)
    if env.get("SLURM_STEP_ID"):
        step = whole_number(env, "SLURM_STEP_ID")
        if step < FIRST_SPECIAL_STEP:
            return None
        what = SPECIAL_STEPS.get(step, f"the special step {step}")
    elif env.get("SLURM_JOB_ID"):
        what = "the batch script" if env.get("SLURM_PROCID") else "a shell or program"
    else:
        return "SLURM_STEP_ID is not set, so srun did not start this process"
    return f"this is {what} of SLURM job {env.get('SLURM_JOB_ID', '?')}, not a task of a step; start ranks with srun"


def job_hosts(env: Mapping[str, str]) -> list[str]:
    """Returns all hosts of the surrounding SLURM job, also outside a step; empty where there is no job."""
    name = first_set(env, ("SLURM_JOB_NODELIST", "SLURM_NODELIST"))
    return slurm_hostlist.hosts(env[name], name) if name and env.get("SLURM_JOB_ID") else []


def job_tasks(env: Mapping[str, str]) -> int:
    """Returns the number of tasks of the surrounding SLURM job; 1 where it does not say."""
    name = first_set(env, ("SLURM_NTASKS", "SLURM_NPROCS"))
    return whole_number(env, name) if name else 1


def _nodes(env: Mapping[str, str], overrides: Overrides) -> tuple[list[str], list[int]]:
    """Returns the hosts of the step and the tasks on each, which must agree with each other and with the number of tasks."""
    nodes_name, total_name = first_set(env, NODES), first_set(env, NUM_TASKS)
    assert nodes_name and total_name
    hosts = slurm_hostlist.hosts(env[nodes_name], nodes_name)
    if overrides.tasks_per_node is None:
        tasks_name = first_set(env, TASKS_PER_NODE)
        assert tasks_name
        tasks, shown = slurm_hostlist.tasks(env[tasks_name], tasks_name), env[tasks_name]
    else:
        tasks_name, shown = "tasks_per_node (given)", str(overrides.tasks_per_node)
        given = overrides.tasks_per_node
        tasks = list(given) if isinstance(given, tuple) else [given] * len(hosts)
    if len(tasks) != len(hosts):
        raise UsageError(
            f"{tasks_name} {shown} is for {len(tasks)} nodes but {nodes_name} {env[nodes_name]} lists {len(hosts)}; "
            "give tasks_per_node for the nodes of this step, or start again with srun"
        )
    total = whole_number(env, total_name)
    if sum(tasks) != total:
        raise UsageError(
            f"{tasks_name} {shown} gives {sum(tasks)} tasks on {len(hosts)} nodes but {total_name} is {total}; "
            "give tasks_per_node for the nodes of this step, or start again with srun"
        )
    return hosts, tasks


def _pty_note(env: Mapping[str, str], rank: int, world_size: int) -> str:
    """Returns a warning that `srun --pty` has started a shell as one of several ranks; empty where it has not."""
    if not env.get("SLURM_PTY_PORT") or world_size == 1:
        return ""
    return (
        f"srun --pty started this shell as rank {rank} of {world_size}, and a program started in it waits for the other ranks "
        "for ever; leave the shell and start ranks with srun"
    )
