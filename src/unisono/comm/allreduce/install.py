"""Gives a communicator, and every group that is split from it, the all-reduce that was asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unisono.comm.allreduce import OVER_MESSAGES, auto, node_aware
from unisono.comm.base import Communicator, Reducer
from unisono.comm.choose import choose_allreduce, choose_between
from unisono.registry import load


@dataclass(frozen=True)
class Allreduce:
    """What was asked for, and what is needed to make it for any group of the job."""

    asked: str
    nodes: Sequence[int]
    """The node of each process of the job."""
    open_node: Callable[[Communicator], Communicator]
    """Collective over a group: those of its members that are on this node, in the order of their ranks, among themselves."""
    steered: str = ""
    """How the user steers the MPI library's own choice, in words."""

    def install(self, comm: Communicator) -> str:
        """Collective over `comm`, blocking: let it reduce as asked, and every group that will be split from it. In words."""
        shown = self._give(comm)
        comm.origin = f"{comm.origin}, all-reduce {shown}"
        comm.equip_groups(self.install)
        return shown

    def _give(self, comm: Communicator) -> str:
        nodes = [self.nodes[member] for member in comm.members]
        chosen = choose_allreduce(self.asked, comm.engine, nodes, len(set(self.nodes)))
        if comm.size == 1:
            needless = "" if self.asked in ("auto", "engine") else f" ({self.asked} needs several processes)"
            return f"by the engine itself{needless}"
        if chosen == "engine":
            return self._in_words(chosen, comm)
        if chosen == "node_aware":
            return self._compose(comm, nodes)
        private = comm.duplicate()
        comm.reduce_with(_reducer(chosen, private, nodes), private)
        return self._in_words(chosen, comm)

    def _compose(self, comm: Communicator, nodes: list[int]) -> str:
        local = self.open_node(comm)
        if len(set(nodes)) == 1:
            comm.reduce_with(node_aware.prepare(nodes, local, None), local, refuses=True)
            return f"node_aware ({local.engine}, as all are on one node)"
        across = comm.split(node_aware.across_color(nodes, comm.rank), comm.rank)
        chosen = choose_between(comm.engine)
        # Nobody else uses `across`, so it needs no private duplicate.
        between = None if across is None else _reducer(chosen, across, [nodes[r] for r in across.ranks])
        owned = [part for part in (local, across) if part is not None]
        comm.reduce_with(node_aware.prepare(nodes, local, between), *owned)
        return f"node_aware ({local.engine} inside a node, {comm.engine} between nodes: {self._in_words(chosen, comm)})"

    def _in_words(self, chosen: str, comm: Communicator) -> str:
        if chosen == "auto":
            return f"auto ({auto.in_words()})"
        if chosen == "engine":
            return f"by the engine itself{f' ({self.steered})' if self.steered and comm.engine == 'mpi' else ''}"
        return f"by {chosen} over messages"


def _reducer(name: str, comm: Communicator, nodes: Sequence[int]) -> Reducer:
    """Local: the algorithm of that name over `comm`, which nobody else uses."""
    if name == "engine":
        return comm.allreduce
    reducer: Reducer = load("unisono.comm.allreduce", name, OVER_MESSAGES, "allreduce").prepare(comm, nodes)
    return reducer
