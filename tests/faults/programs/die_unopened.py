"""Rank 1 dies before rank 0 has opened its memory, and rank 0 looks for it there at once. Arguments: a folder, what is called."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from time import monotonic, sleep

import torch

import unisono as un
from unisono.comm.engines.shm import ShmCommunicator

NUMEL = 100_000


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def await_death(pid: int) -> None:
    deadline = monotonic() + 30.0
    while Path(f"/proc/{pid}/fd/0").exists() and monotonic() < deadline:
        sleep(0.001)


def main() -> None:
    folder, what = Path(sys.argv[1]), sys.argv[2]
    with un.connect(time_limit_s=60.0) as comm:
        assert isinstance(comm, ShmCommunicator)
        pids = comm.allgather_object(os.getpid())
        buf = comm.empty(NUMEL)
        if comm.rank == 1 and what == "message":
            comm.start_send(buf, 0)
            die()
        elif comm.rank == 1:
            comm._board._await_phase = die  # type: ignore[assignment, method-assign]  # it has shown its part and waits for the others
            comm.allreduce(buf)
        await_death(pids[1])
        try:
            comm.recv(torch.empty(NUMEL), 1) if what == "message" else comm.allreduce(buf)
        except un.CommError as error:
            told = {"kind": type(error).__name__, "ranks": list(getattr(error, "ranks", ())), "text": str(error)}
            (folder / "told.json").write_text(json.dumps(told))
            raise


if __name__ == "__main__":
    main()
