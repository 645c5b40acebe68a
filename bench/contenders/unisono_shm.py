"""Unisono's shared-memory engine: on buffers from the communicator, as it is meant to be used; and on an ordinary tensor, which
must be copied in and out."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial

from bench.contenders.contender import Contender
from bench.groups import Launch, Seat


def _start(buffers: str, num_ranks: int, seat: Seat) -> list[Launch]:
    run = [sys.executable, "-m", "unisono", "run", "-n", str(num_ranks), "--engine", "shm", "--threads", "1"]
    return [Launch([*run, "-m", "bench.ranks.unisono", *seat.arguments, buffers])]


CONTENDER = Contender(
    "unisono-shm", "ours", "`comm.allreduce` of the engine `shm`, buffer from `comm.empty`", partial(_start, "mapped")
)
AGAIN = replace(
    CONTENDER, name="unisono-shm A/A", kind="noise", about="the same again in other processes: its distance from 1 is the noise"
)
PLAIN = Contender(
    "unisono-shm plain", "ours", "`comm.allreduce` of the engine `shm`, ordinary torch tensor", partial(_start, "plain")
)
