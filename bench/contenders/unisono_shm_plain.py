"""Unisono's shared-memory engine on an ordinary tensor, which must be copied in and out."""

from __future__ import annotations

from bench.contenders.contender import Contender
from bench.contenders.unisono_shm import started
from bench.groups import Launch, Seat


def start(num_ranks: int, seat: Seat) -> list[Launch]:
    return started(num_ranks, seat, "plain")


CONTENDER = Contender(
    name="unisono-shm plain",
    kind="ours",
    about="`comm.allreduce` of the engine `shm`, ordinary torch tensor",
    start=start,
)
