"""A stream of all-reduces in which one rank fails in a chosen way; every rank writes down what happened to it.

Arguments: a folder for the records, the rank that fails, how it fails (kill, stop, raise, exit), the time limit and the
all-reduce algorithm.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from time import time

import torch

import unisono as un

ENOUGH_S = 60.0
"""For the meeting, whatever the time limit of the calls."""
GOOD_CALLS = 3
MORE_THAN_ANY_RANK_MAKES = 100_000


def fail(how: str) -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "raise":
        raise ValueError("the loss is not finite")
    elif how == "exit":
        os._exit(3)
    raise SystemExit(f"cannot fail by {how!r}")


def record(folder: Path, rank: int, **facts: object) -> None:
    """Whole or not at all: a launcher that has seen the failure may end this process at any moment."""
    draft = folder / f"rank-{rank}.draft"
    draft.write_text(json.dumps({"at": time(), "pid": os.getpid(), **facts}))
    draft.rename(folder / f"rank-{rank}.json")


def main() -> None:
    folder, culprit, how, limit_s = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
    with un.connect(time_limit_s=ENOUGH_S, allreduce=sys.argv[5]) as comm:
        comm.barrier()  # who is slow to start is not what is tested
        comm.time_limit_s = limit_s
        buf = torch.ones(30_000)
        for call in range(MORE_THAN_ANY_RANK_MAKES):
            if comm.rank == culprit and call == GOOD_CALLS:
                record(folder, comm.rank, failed=how)
                fail(how)
            try:
                comm.allreduce(buf)
            except un.CommError as error:
                ranks = list(getattr(error, "ranks", ()))
                record(folder, comm.rank, kind=type(error).__name__, ranks=ranks, text=str(error), calls=call)
                raise


if __name__ == "__main__":
    main()
