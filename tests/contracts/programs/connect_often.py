"""Opens and closes the communicator of the job many times in one process, and counts what the process then holds."""

from __future__ import annotations

import gc
import sys
import threading
from pathlib import Path

import torch

import unisono as un

WARM_UP = 5


def once(expected: int) -> None:
    with un.connect(quiet=True) as comm:
        buf = torch.ones(1000)
        comm.start_allreduce(buf).wait()
        assert buf[0].item() == comm.size == expected, buf[0]


def held() -> tuple[int, int, int]:
    gc.collect()
    folders = (Path("/proc/self/fd"), Path("/proc/self/task"))
    return threading.active_count(), *(len(list(folder.iterdir())) for folder in folders)  # type: ignore[return-value]


def main() -> None:
    for _ in range(WARM_UP):
        once(2)
    before = held()
    for _ in range(int(sys.argv[1])):
        once(2)
    after = held()
    assert after == before, f"(threads, file descriptors, kernel threads): {before} before, {after} after"
    print("nothing is left")


if __name__ == "__main__":
    main()
