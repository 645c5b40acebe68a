"""`horovod.run` from a program: results, failures, and what cannot be sent."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

import unisono.horovod as horovod


def add(a: int, b: int = 0) -> tuple[int, int, int]:
    import horovod.torch as hvd
    import torch

    hvd.init()
    return hvd.rank(), int(hvd.allreduce(torch.tensor([a]), op=hvd.Sum).item()), b


def fail() -> None:
    if os.environ["HOROVOD_RANK"] == "1":
        raise KeyError("only on rank 1")


def die() -> None:
    if os.environ["HOROVOD_RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)


def wait() -> None:
    print(f"pid {os.getpid()}", flush=True)
    while True:
        signal.sigtimedwait((), 1)


def refused(kind: type[Exception], *args: Any, **kwargs: Any) -> None:
    try:
        horovod.run(*args, **kwargs)
    except kind as error:
        print(f"refused: {error}", flush=True)
    else:
        raise AssertionError("nothing was raised")


if __name__ == "__main__":
    match sys.argv[1]:
        case "adds":
            print("results", horovod.run(add, (3,), {"b": 5}, num_proc=2))
        case "fails":
            refused(RuntimeError, fail, num_proc=2)
            refused(RuntimeError, die, num_proc=2)
            refused(RuntimeError, threading.Lock, num_proc=1)
        case "mistakes":
            refused(ValueError, 3, num_proc=2)
            refused(ValueError, fail, num_proc=0)
            refused(ValueError, fail, num_proc=2, np=2)
            refused(ValueError, fail, num_proc=3, hosts="localhost:2")
            refused(ValueError, fail, hosts="localhost:none")
            refused(ValueError, fail, (threading.Lock(),), num_proc=2)
            refused(ValueError, fail, num_proc=2, executable="no-such-python")
        case "waits":
            horovod.run(wait, num_proc=2)
