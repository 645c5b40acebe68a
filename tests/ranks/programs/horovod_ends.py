"""horovod.torch where something goes wrong: ranks that never come, that leave, that die. The argument says what."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import torch

import unisono.horovod.torch as hvd


def somewhere_else() -> None:
    time.sleep(3.0)


def stalls() -> None:
    """Rank 0 waits for what the last rank submits late; the report must come before."""
    if hvd.rank() == hvd.size() - 1:
        somewhere_else()
    print(f"\nrank {hvd.rank()} found {hvd.allreduce(torch.ones(1), name='slow', op=hvd.Sum).item():g}", flush=True)


def never_comes(sign: str) -> None:
    """The last rank calls nothing at all; it goes when the others have given up."""
    began = time.monotonic()
    if hvd.rank() == hvd.size() - 1:
        where_it_is(Path(sign))
        return
    try:
        hvd.allreduce(torch.ones(1), name="awaited")
    except hvd.HorovodInternalError as error:
        print(f"\nrank {hvd.rank()} gave up after {time.monotonic() - began:.1f} s: {' '.join(str(error).split())}", flush=True)
    Path(sign).touch()


def where_it_is(sign: Path) -> None:
    while not sign.exists():
        time.sleep(0.02)


def stalls_in_two_sets() -> None:
    """The last rank is late everywhere; each operation is reported once, and so is a rank that waits after it has joined."""
    last = hvd.size() - 1
    pair = hvd.add_process_set([0, last])
    if hvd.rank() == last:
        somewhere_else()
    handles = [hvd.allreduce_async(torch.ones(1), name="every\nwhere")]
    if pair.included():
        handles.append(hvd.allreduce_async(torch.ones(1), name="pair", process_set=pair))
    for handle in handles:
        hvd.synchronize(handle)
    if hvd.rank():
        time.sleep(1.5)
    hvd.join()


def killed() -> None:
    """As by the kernel when memory is short: without a word."""
    hvd.allreduce(torch.ones(1))
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        hvd.allreduce(torch.ones(1), name="with the dead")
    except hvd.HorovodInternalError as error:
        print(f"\nrank {hvd.rank()} ended: {type(error).__name__}: {' '.join(str(error).split())}", flush=True)
        raise


def different_names() -> None:
    """Rank 0 waits for a, all others for b, and nobody ever comes."""
    try:
        hvd.allreduce(torch.ones(1), name="a" if hvd.rank() == 0 else "b")
    except hvd.HorovodInternalError as error:
        print(f"\nrank {hvd.rank()} ended: {' '.join(str(error).split())}", flush=True)
    try:
        hvd.allreduce(torch.ones(1))
    except hvd.HorovodInternalError as error:
        print(f"\nrank {hvd.rank()} cannot go on: {' '.join(str(error).split())}", flush=True)


def dies() -> None:
    hvd.allreduce(torch.ones(1))
    if hvd.rank() == 1:
        os._exit(7)
    try:
        hvd.allreduce(torch.ones(1), name="with the dead")
    except hvd.HorovodInternalError as error:
        print(f"\nrank {hvd.rank()} ended: {' '.join(str(error).split())}", flush=True)


def leaves() -> None:
    """Rank 1 shuts down while the others wait for it; then all begin again."""
    hvd.allreduce(torch.ones(1))
    if hvd.rank() == 1:
        hvd.shutdown()
    else:
        try:
            hvd.allreduce(torch.ones(1), name="with the gone")
        except hvd.HorovodInternalError as error:
            print(f"\nrank {hvd.rank()} ended: {' '.join(str(error).split())}", flush=True)
        hvd.shutdown()
    hvd.init()
    print(f"\nrank {hvd.rank()} again: {hvd.allreduce(torch.ones(1), op=hvd.Sum).item():g}", flush=True)


def shuts_down_with_work() -> None:
    """Everybody shuts down while something is in flight that can never finish."""
    rank = hvd.rank()
    handle = hvd.allreduce_async(torch.ones(1), name=f"only here {rank}")
    time.sleep(0.1)
    began = time.monotonic()
    hvd.shutdown()
    assert time.monotonic() - began < 8.0
    try:
        hvd.synchronize(handle)
    except hvd.HorovodInternalError as error:
        print(f"\nrank {rank} ended: {' '.join(str(error).split())}", flush=True)
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("unisono-")]
    assert not left, left


def sleeps() -> None:
    """Nothing in flight anywhere, then one rank alone with something in flight: neither may cost time on a core."""
    hvd.allreduce(torch.ones(1))
    spent = [time.process_time()]
    time.sleep(1.5)
    spent.append(time.process_time())
    handle = hvd.allreduce_async(torch.ones(1), name="late") if hvd.rank() == 0 else None
    time.sleep(1.5)
    spent.append(time.process_time())
    hvd.synchronize(handle if handle is not None else hvd.allreduce_async(torch.ones(1), name="late"))
    handle = hvd.allreduce_async(torch.ones(1), name=f"mine {hvd.rank()}")  # all wait, for different things
    time.sleep(1.5)
    spent.append(time.process_time())
    others = [hvd.allreduce_async(torch.ones(1), name=f"mine {rank}") for rank in range(hvd.size()) if rank != hvd.rank()]
    for one in (handle, *others):
        hvd.synchronize(one)
    used = " ".join(f"{after - before:.3f}" for before, after in pairwise(spent))
    print(f"\nrank {hvd.rank()} used {used}", flush=True)


def fixed_sets() -> None:
    """Nobody has said that they may change."""
    try:
        hvd.add_process_set([0])
    except ValueError as error:
        print(f"\nrank {hvd.rank()} may not: {error}", flush=True)
    hvd.init(process_sets="dynamic")
    hvd.shutdown()
    hvd.init()
    print(f"\nrank {hvd.rank()} has set {hvd.add_process_set([0]).process_set_id}", flush=True)


if __name__ == "__main__":
    if "--set" in sys.argv:  # variables that mpirun does not hand on to ranks of the tests' fork server
        first = sys.argv.index("--set")
        for name, _, value in (word.partition("=") for word in sys.argv[first + 1 :: 2]):
            os.environ[name] = value
        del sys.argv[first:]
    hvd.init(process_sets=None if sys.argv[1] == "fixed_sets" else "dynamic")
    globals()[sys.argv[1]](*sys.argv[2:])
