"""Opens the exchanges between the processes of a training through a server: which ends of them each process has."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from torch import Tensor

from unisono.algorithms.server.server_layout import ServerLayout
from unisono.algorithms.server.slices import SlicedCaller, SliceLayout
from unisono.comm.base import Communicator
from unisono.comm.exchange.base import Caller, Server
from unisono.comm.exchange.over_comm import MessageCaller, open_exchange
from unisono.training.server.servers import FollowerCommands


@dataclass(frozen=True)
class Ends:
    """The ends of exchanges that one rank has, according to its role."""

    slices: SliceLayout
    server: Server | None = None
    caller: Caller | None = None
    """The end of a worker's first process towards all servers."""
    commands: FollowerCommands | None = None
    """The end of the first of several servers towards the others."""


def open_ends(world: Communicator, layout: ServerLayout, values: Tensor, like: Tensor, most_numbers: int, held: ExitStack) -> Ends:
    """Collective, blocking: opens the exchange between the first server and the first process of each worker; with several servers
    also the one between the other servers and all of these. `values` are the weights, `like` a vector that travels; `held` closes
    the ends."""
    slices = SliceLayout.of(values, layout.servers)
    num_bytes = [length * like.dtype.itemsize for length in slices.lengths(like.numel())]
    serves, is_first = layout.is_server(world.rank), layout.shard(world.rank) == 0

    def open_end(has_part: bool, servers: Sequence[int], most_bytes: int) -> Server | list[MessageCaller]:
        comm = world.split(0 if has_part else None)
        if comm is None:
            return []
        held.callback(comm.close)
        found = open_exchange(comm, servers, most_numbers, most_bytes)
        for end in found if isinstance(found, list) else [found]:
            held.callback(end.close)
        return found

    first = open_end(is_first if not serves else world.rank == 0, (0,), num_bytes[0])
    others = open_end(is_first, range(1, layout.servers), max(num_bytes[1:])) if layout.servers > 1 else []
    if serves:
        own = first if world.rank == 0 else others
        assert isinstance(own, Server)
        return Ends(slices, own, commands=FollowerCommands(others) if isinstance(others, list) and others else None)
    assert isinstance(first, list)
    assert isinstance(others, list)
    if others:
        return Ends(slices, caller=SlicedCaller([*first, *others], slices, like))
    return Ends(slices, caller=first[0] if first else None)
