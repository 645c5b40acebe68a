"""gloo as PyTorch ships it."""

from __future__ import annotations

import sys

from bench.contenders.contender import Contender
from bench.groups import Launch, Seat


def start(num_ranks: int, seat: Seat) -> list[Launch]:
    program = [sys.executable, "-m", "bench.ranks.gloo", *seat.arguments]
    return [Launch([*program, str(rank), str(num_ranks), str(seat.folder / "store")]) for rank in range(num_ranks)]


CONTENDER = Contender(
    name="gloo",
    kind="gloo",
    about="`ProcessGroupGloo.allreduce([tensor]).wait()` of PyTorch itself, over the loopback device",
    start=start,
)
