"""Unisono's shared-memory engine, in the way it is meant to be used: on buffers from the communicator."""

from __future__ import annotations

import sys
from dataclasses import replace

from bench.contenders.contender import Contender
from bench.groups import Launch, Seat


def started(num_ranks: int, seat: Seat, buffers: str) -> list[Launch]:
    """Ranks of the shared-memory engine with `mapped` or `plain` buffers."""
    run = [sys.executable, "-m", "unisono", "run", "-n", str(num_ranks), "--engine", "shm", "--threads", "1"]
    return [Launch([*run, "-m", "bench.ranks.unisono", *seat.arguments, buffers])]


def start(num_ranks: int, seat: Seat) -> list[Launch]:
    return started(num_ranks, seat, "mapped")


CONTENDER = Contender(
    name="unisono-shm",
    kind="ours",
    about="`comm.allreduce` of the engine `shm`, buffer from `comm.empty`",
    start=start,
)

AGAIN = replace(
    CONTENDER, name="unisono-shm A/A", kind="noise", about="the same again in other processes: its distance from 1 is the noise"
)
