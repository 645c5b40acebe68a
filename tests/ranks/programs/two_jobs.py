"""One of two jobs that are on a node at the same time: says whom it met. Arguments: its name, the other's, a common folder."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

import unisono as un

LIMIT_S = 80.0


def main() -> None:
    here, other, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    with un.connect() as comm:
        met = comm.allgather_object(here)
        (folder / f"{here}{comm.rank}").touch()
        deadline = time.monotonic() + LIMIT_S
        while not (folder / f"{other}0").exists():  # so that both jobs are connected at the same time
            if time.monotonic() > deadline:
                raise TimeoutError(f"{here} waits for {other} in vain")
            time.sleep(0.05)
        buf = torch.full((20_000,), float(len(here)))
        comm.allreduce(buf)
        assert (buf == len(here) * comm.size).all(), buf
        print(f"{here} {comm.rank} met {' '.join(met)}", flush=True)


if __name__ == "__main__":
    main()
