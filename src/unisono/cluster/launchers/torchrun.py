"""Topology under torchrun, or with torch's variables (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) set by hand. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from unisono.cluster.rendezvous import derived_port, job_token
from unisono.cluster.topology import MAX_PORT, NotThisLauncher, Overrides, Topology
from unisono.cluster.variables import first_set, whole_number, whole_numbers
from unisono.errors import UsageError

LOCAL = ("LOCAL_RANK", "LOCAL_WORLD_SIZE")
LOCALHOST = ("localhost", "127.0.0.1", "::1")
COPIED_FROM = (
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
"""Variables of rank and size of launchers, from which scripts copy RANK and WORLD_SIZE but not the position on the node."""

REMEDY = "start with torchrun, or set all of them, or unset RANK"


def resolve(env: Mapping[str, str], overrides: Overrides) -> Topology | NotThisLauncher:
    """Returns the topology of this worker of torchrun; the reason if torchrun did not start it, or its variables are copies of
    another launcher's. Raises `UsageError` for variables that are half set.
    """
    # Batch scripts often export WORLD_SIZE and MASTER_ADDR for all and leave the rank to srun: these alone mean nothing.
    if first_set(env, ("RANK", "TORCHELASTIC_RUN_ID")) is None:
        return NotThisLauncher("neither RANK nor TORCHELASTIC_RUN_ID is set, so torchrun did not start this process")
    if first_set(env, ("TORCHELASTIC_RUN_ID", *LOCAL)) is None:
        for rank_name, size_name in COPIED_FROM:
            if (env["RANK"], env.get("WORLD_SIZE")) == (env.get(rank_name), env.get(size_name)):
                return NotThisLauncher(f"RANK and WORLD_SIZE are copies of {rank_name} and {size_name}, which are used instead")
    by_hand = first_set(env, LOCAL) is None and env.get("MASTER_ADDR") in LOCALHOST  # all on this machine
    needed = ("RANK", "WORLD_SIZE", "MASTER_PORT", *(() if by_hand else LOCAL))
    rank, world_size, master_port, *local = whole_numbers(env, needed, "torchrun", REMEDY, besides=("MASTER_ADDR",))
    local_rank, local_size = local or (rank, world_size)
    if not 1 <= master_port <= MAX_PORT:
        raise UsageError(f"MASTER_PORT must lie in 1..{MAX_PORT}; received {master_port} (environment)")
    node_rank, num_nodes = _node_position(env, one_node=local_size == world_size)
    # A restarted job must not meet what is left of the attempt before.
    run = [env.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")]
    token = job_token("torchrun", env["MASTER_ADDR"], str(master_port), str(world_size), *run)
    return Topology(
        launcher="torchrun",
        global_rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_size=local_size,
        node_rank=node_rank,
        num_nodes=num_nodes,
        address=env["MASTER_ADDR"],
        # Torch's own store sits on MASTER_PORT, and the ports beside it may be a client's at any moment.
        port=overrides.port or derived_port(token),
        token=token,
        job=f"torchrun {run[0] or env['MASTER_ADDR']}",
    )


def _node_position(env: Mapping[str, str], one_node: bool) -> tuple[int | None, int | None]:
    """Returns the rank of this node and the number of nodes; None for both where torchrun does not say."""
    if env.get("GROUP_RANK") and env.get("GROUP_WORLD_SIZE"):
        return whole_number(env, "GROUP_RANK"), whole_number(env, "GROUP_WORLD_SIZE")
    return (0, 1) if one_node else (None, None)
