"""What the memory of this machine allows: the sums of an all-reduce by a compiled loop, without any exchange."""

from __future__ import annotations

import shutil
import subprocess
import sys

from bench.contenders.contender import Contender, Unavailable
from bench.environments import HOMES
from bench.groups import ROOT, Launch, Seat

SOURCE = ROOT / "bench" / "ranks" / "memory_floor.c"
LIBRARY = HOMES / "memory_floor.so"
COMPILE_LIMIT_S = 60.0


def prepare() -> None:
    if not shutil.which("cc"):
        raise Unavailable("it compiles a loop and needs cc, which is not installed; apt-get install gcc")
    HOMES.mkdir(exist_ok=True)
    command = ["cc", "-O3", "-march=native", "-shared", "-fPIC", "-o", str(LIBRARY), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_LIMIT_S)
    if done.returncode:
        raise Unavailable(f"its loop cannot be compiled: {done.stderr.strip()}")


def start(num_ranks: int, seat: Seat) -> list[Launch]:
    program = [sys.executable, "-m", "bench.ranks.memory_floor", *seat.arguments]
    return [Launch([*program, str(rank), str(num_ranks), str(LIBRARY)]) for rank in range(num_ranks)]


CONTENDER = Contender(
    name="memory floor",
    kind="floor",
    about="no all-reduce: every rank sums its slices of all vectors by a compiled loop (`cc -O3 -march=native`) at the same time "
    "as the others, and nobody waits for anybody",
    start=start,
    prepare=prepare,
)
