"""The ranks and sizes of this process among all processes, and the engine of its communicator."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from unisono.cluster.topology import Topology
from unisono.comm.base import Communicator
from unisono.comm.choose import describe_process
from unisono.horovod._impl.elastic.worker_environment import RankAssignment


@dataclass(frozen=True)
class ProcessTopology:
    """Ranks and sizes in Horovod's words: `local` is this node, `cross` are the processes of all nodes that have the same local
    rank."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    is_homogeneous: bool
    """Whether all nodes have as many processes."""
    engine: str


def process_topology(comm: Communicator, at: Topology) -> ProcessTopology:
    """Returns the topology of this process. Collective over all ranks, blocking."""
    nodes = comm.allgather_object(describe_process(at).node)
    return topology_of_nodes(comm.rank, nodes, comm.engine)


def topology_of_nodes(rank: int, nodes: Sequence[str], engine: str) -> ProcessTopology:
    """Returns the topology of a rank from the nodes of all ranks. Pure."""
    local = [sum(node == nodes[r] for node in nodes[:r]) for r in range(len(nodes))]
    across = [r for r in range(len(nodes)) if local[r] == local[rank]]
    counts = Counter(nodes)
    return ProcessTopology(
        rank=rank,
        size=len(nodes),
        local_rank=local[rank],
        local_size=counts[nodes[rank]],
        cross_rank=across.index(rank),
        cross_size=len(across),
        is_homogeneous=len(set(counts.values())) == 1,
        engine=engine,
    )


def with_assignment(topology: ProcessTopology, assignment: RankAssignment | None) -> ProcessTopology:
    """Returns the topology with the local and cross ranks of an elastic job, where they follow the slots of the host: workers chose
    their GPUs by them. Pure."""
    if assignment is None:
        return topology
    return replace(topology, local_rank=assignment.local_rank, cross_rank=assignment.cross_rank, cross_size=assignment.cross_size)


def mpi_is_installed() -> bool:
    """Whether mpi4py is installed. Local."""
    return importlib.util.find_spec("mpi4py") is not None
