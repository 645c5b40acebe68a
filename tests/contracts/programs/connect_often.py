"""Opens and closes the communicator of the job many times in one process, and counts what the process then holds."""

from __future__ import annotations

import gc
import sys
import threading
from pathlib import Path
from time import monotonic, sleep

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


def more_than(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    return any(now > then for now, then in zip(after, before, strict=True))


def main() -> None:
    for _ in range(WARM_UP):
        once(2)
    before = held()
    for _ in range(int(sys.argv[1])):
        once(2)
    deadline = monotonic() + 5.0
    after = held()
    while more_than(before, after) and monotonic() < deadline:
        sleep(0.01)  # the kernel takes an ended thread off its list a moment later
        after = held()
    assert not more_than(before, after), f"(threads, file descriptors, kernel threads): {before} before, {after} after"
    print("nothing is left")


if __name__ == "__main__":
    main()
