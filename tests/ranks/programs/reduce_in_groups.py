"""Reduces in the whole job and in groups split from it, and prints what each rank's algorithm sent for each length.

    reduce_in_groups.py NODES ALLREDUCE     NODES: the node of each rank, e.g. 0,0,1,1, whatever machine it really runs on

One line for each rank, JSON: {"rank", "groups": {name: [members, origin]}, "sent": {name: {length: [bytes of each message]}}}.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

import unisono as un
from unisono.cluster.resolve import current_topology
from unisono.comm.base import MAX, SUM, Communicator, Op
from unisono.comm.engines.gloo import GlooCommunicator

LENGTHS = (0, 4, 4 << 10, 128 << 10, (128 << 10) + 4, 256 << 10, (256 << 10) + 4, 1 << 20)
"""Bytes of float32 vectors, around the lengths at which `auto` changes."""


class Sends:
    """Counts what algorithms send through gloo's messages (gloo's own collectives do not pass here)."""

    def __init__(self) -> None:
        self.num_bytes: list[int] = []
        self._start_send: Any = GlooCommunicator._start_send

    def start_send(self, comm: GlooCommunicator, buf: torch.Tensor, *rest: Any) -> Any:
        self.num_bytes.append(buf.nbytes)
        return self._start_send(comm, buf, *rest)

    def taken(self) -> list[int]:
        taken, self.num_bytes = self.num_bytes, []
        return taken


def check(group: Communicator, buf: torch.Tensor, member: int, op: Op) -> None:
    """Local: `buf` was filled with (index + member) % 5 before it was reduced."""
    index = torch.arange(buf.numel())
    everybody = torch.stack([(index + other) % 5 for other in group.members])
    wanted = everybody.sum(0) if op is SUM else everybody.amax(0)
    assert torch.equal(buf, wanted.to(buf.dtype)), f"{group.name}, rank {member}: {buf.dtype}[{buf.numel()}] {op}"


def filled(numel: int, member: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return ((torch.arange(numel) + member) % 5).to(dtype)


def reduce_all(group: Communicator, member: int, sends: Sends) -> dict[int, list[int]]:
    """Collective: vectors of all lengths, some types, and lists that are short or long all together."""
    sent = {}
    for length in LENGTHS:
        buf = filled(length // 4, member)
        group.allreduce(buf)
        sent[length] = sends.taken()
        check(group, buf, member, SUM)
    for numel in (3, 40_000, 70_000):  # halves of 80 kB travel as float32, so they are longer than they look
        for dtype in (torch.bfloat16, torch.int16, torch.float64):
            for op in (SUM, MAX):
                buf = filled(numel, member, dtype)
                group.start_allreduce(buf, op).wait()
                check(group, buf, member, op)
    for long in (10, 50_000, 300_000):
        shapes = ((long, torch.float32), (3, torch.float64), (0, torch.float32), (9, torch.bfloat16), (5, torch.float32))
        bufs = [filled(numel, member, dtype) for numel, dtype in shapes]
        group.allreduce(bufs)
        for buf in bufs:
            check(group, buf, member, SUM)
    sends.taken()
    return sent


def main() -> None:
    nodes = [int(node) for node in sys.argv[1].split(",")]
    at = current_topology()
    pretended = replace(at, node_rank=nodes[at.global_rank], num_nodes=len(set(nodes)))
    sends = Sends()
    counting = patch.object(GlooCommunicator, "_start_send", lambda comm, *rest: sends.start_send(comm, *rest))
    with counting, un.connect(allreduce=sys.argv[2], topology=pretended, time_limit_s=60.0, quiet=True) as world:
        member = world.rank
        position = nodes[:member].count(nodes[member])
        groups = {
            "world": world,
            "copy": world.duplicate(),
            "node": world.split(nodes[member]),
            "across": world.split(position),
            "alone": world.split(member),
        }
        groups["across of copy"] = groups["copy"].split(position) if groups["copy"] is not None else None
        joined = {name: group for name, group in groups.items() if group is not None}
        sent = {name: reduce_all(group, member, sends) for name, group in joined.items()}
        shown = {name: [list(group.members), group.origin] for name, group in joined.items()}
        line = json.dumps({"rank": member, "groups": shown, "sent": sent})
        for group in list(joined.values())[1:]:
            group.close()
    print(f"{line}\n", end="", flush=True)  # in one piece, also where nothing is buffered: mpirun mixes what comes in two


if __name__ == "__main__":
    main()
