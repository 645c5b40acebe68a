"""Topology under `unisono run`, whose variables give all of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from unisono.cluster.rendezvous import host_port
from unisono.cluster.topology import NotThisLauncher, Overrides, Topology
from unisono.cluster.variables import first_set, whole_numbers

PLACE = (
    "UNISONO_RANK",
    "UNISONO_WORLD_SIZE",
    "UNISONO_LOCAL_RANK",
    "UNISONO_LOCAL_SIZE",
    "UNISONO_NODE_RANK",
    "UNISONO_NUM_NODES",
)
"""Variables that only the launcher sets. Rendezvous, token and options of the launch may also be set by hand, for another
launcher."""


def resolve(env: Mapping[str, str], overrides: Overrides) -> Topology | NotThisLauncher:
    """Returns the topology of this rank of `unisono run`; the reason if that did not start it. Raises `UsageError` for variables
    that are half set.
    """
    if first_set(env, PLACE) is None:
        return NotThisLauncher("UNISONO_RANK is not set, so `unisono run` did not start this process")
    remedy = "start with `unisono run`, or unset all UNISONO_ variables"
    numbers = whole_numbers(env, PLACE, "unisono run", remedy, besides=("UNISONO_RENDEZVOUS", "UNISONO_LAUNCH"))
    rank, world_size, local_rank, local_size, node_rank, num_nodes = numbers
    address, port = host_port(env["UNISONO_RENDEZVOUS"], "UNISONO_RENDEZVOUS")
    return Topology(
        launcher="unisono",
        global_rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_size=local_size,
        node_rank=node_rank,
        num_nodes=num_nodes,
        address=address,
        port=overrides.port or port,
        token=env["UNISONO_LAUNCH"],
    )
