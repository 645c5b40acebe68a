"""What the algorithms share: an exchange with a partner, and which members stand next to each other."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from unisono.comm.base import Communicator


def swap(comm: Communicator, outgoing: Tensor, dest: int, incoming: Tensor, source: int) -> None:
    """Blocking: send to one member while receiving from another. Empty messages are left out, on both sides alike."""
    # The receive comes first, so that the engine knows where to put the message when it arrives.
    receiving = comm.start_recv(incoming, source) if incoming.numel() else None
    sending = comm.start_send(outgoing, dest) if outgoing.numel() else None
    if receiving is not None:
        receiving.wait()
    if sending is not None:
        sending.wait()


def by_node(nodes: Sequence[int]) -> list[int]:
    """The members in an order that keeps those of one node together, so that neighbours seldom talk through the network."""
    return sorted(range(len(nodes)), key=lambda rank: (nodes[rank], rank))
