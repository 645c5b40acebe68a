"""Installs the requested all-reduce algorithm on a communicator and on every group that is split from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unisono.comm.allreduce import OVER_MESSAGES
from unisono.comm.base import Communicator, Reducer
from unisono.comm.choose import choose_allreduce, choose_allreduce_between_nodes
from unisono.registry import load


@dataclass(frozen=True)
class AllreduceInstaller:
    """Installs the requested algorithm on any group of the job."""

    requested: str
    nodes: Sequence[int]
    """The node of each process of the job."""
    open_node: Callable[[Communicator], Communicator]
    """Collective over a group: opens a communicator of those of its members that are on this node, in the order of their ranks."""
    mpi_settings: str = ""
    """The user's settings of the MPI library's own choice of algorithms, as text."""

    def install(self, comm: Communicator) -> str:
        """Collective over `comm`, blocking: installs the algorithm on it and on every later split of it. Returns a description."""
        shown = self._install_on(comm)
        comm.origin = f"{comm.origin}, all-reduce {shown}"
        comm.equip_groups(self.install)
        return shown

    def _install_on(self, comm: Communicator) -> str:
        """Collective over `comm`, blocking: chooses the algorithm and makes it the all-reduce of `comm`. Returns a description."""
        nodes = [self.nodes[member] for member in comm.members]
        chosen = choose_allreduce(self.requested, comm.engine, nodes, len(set(self.nodes)))
        if comm.size == 1:
            needless = "" if self.requested in ("auto", "engine") else f" ({self.requested} needs several processes)"
            return f"by the engine itself{needless}"
        if chosen == "engine":
            return self._description(chosen, comm)
        if chosen == "node_aware":
            return self._install_node_aware(comm, nodes)
        private = comm.duplicate()
        comm.reduce_with(_reducer(chosen, private, nodes), private)
        return self._description(chosen, comm)

    def _install_node_aware(self, comm: Communicator, nodes: list[int]) -> str:
        """Collective over `comm`, blocking: installs the node-aware all-reduce, from one in each node and one between them. Returns
        a description.
        """
        from unisono.comm.allreduce import node_aware

        local = self.open_node(comm)
        if len(set(nodes)) == 1:
            comm.reduce_with(node_aware.prepare(nodes, local, None), local, refuses=True)
            return f"node_aware ({local.engine}, as all are on one node)"
        across = comm.split(node_aware.between_nodes_color(nodes, comm.rank), comm.rank)
        chosen = choose_allreduce_between_nodes(comm.engine)
        # Nobody else uses `across`, so it needs no private duplicate.
        between = None if across is None else _reducer(chosen, across, [nodes[r] for r in across.ranks])
        owned = [part for part in (local, across) if part is not None]
        comm.reduce_with(node_aware.prepare(nodes, local, between), *owned)
        return f"node_aware ({local.engine} inside a node, {comm.engine} between nodes: {self._description(chosen, comm)})"

    def _description(self, chosen: str, comm: Communicator) -> str:
        """Returns the description of an algorithm for people, e.g. 'by ring over messages'."""
        if chosen == "auto":
            from unisono.comm.allreduce import auto

            return f"auto ({auto.description()})"
        if chosen == "engine":
            return f"by the engine itself{f' ({self.mpi_settings})' if self.mpi_settings and comm.engine == 'mpi' else ''}"
        return f"by {chosen} over messages"


def _reducer(name: str, comm: Communicator, nodes: Sequence[int]) -> Reducer:
    """Local: makes the reducer of that name over `comm`, which nothing else uses."""
    if name == "engine":
        return comm.allreduce
    reducer: Reducer = load("unisono.comm.allreduce", name, OVER_MESSAGES, "allreduce").prepare(comm, nodes)
    return reducer
