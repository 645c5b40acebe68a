"""Checks that closed communicators leave nothing: file descriptors, threads and memory maps are counted."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import torch

from unisono.comm.base import Communicator
from unisono.comm.exchange.over_comm import MessageServer, open_exchange
from unisono.testing.checks.expected import expect, expect_equal, tensor_of

NUM_TIMES, NUM_TIMES_OF_OTHER_SIZES = 100, 20
"""The full number with a pair: larger groups cost more to make and leak no more."""
BUDGET_S = 5.0
"""Where one costs so much that all would take longer than this (NCCL: a third of a second each), there are fewer."""
WARM_UP = 10
"""Caches of the engine and the libraries below it have filled after so many."""
SETTLE_S = 3.0
SPARE_MAPS = 24
"""The allocator's own arenas come and go; a leak of one map for each communicator is far above this."""
LINGERING = "unisono-mpi-progress"
"""One thread that comes with a message through MPI and stays a while after the last, so that it may be there or not."""


def check_duplicates_leave_nothing(comm: Communicator) -> None:
    """Many closed duplicates leave no thread, file descriptor or memory map."""
    _expect_nothing_left(comm, _duplicate_once)


def check_buffers_leave_nothing(comm: Communicator) -> None:
    """Many freed buffers leave no thread, file descriptor or memory map."""
    _expect_nothing_left(comm, _buffers_once)


def check_exchanges_leave_nothing(comm: Communicator) -> None:
    """Closed exchanges leave nothing. Only for a pair, since each is a duplicate and some memory, whatever the size."""
    if comm.size == 2 and comm.device.type == "cpu":
        _expect_nothing_left(comm, _exchange_once, NUM_TIMES_OF_OTHER_SIZES)


def _expect_nothing_left(comm: Communicator, once: Callable[[Communicator], None], most: int = NUM_TIMES) -> None:
    """Calls `once` many times, at most `most`, and asserts that the process then holds no more resources than before."""
    began = monotonic()
    for _ in range(WARM_UP):
        once(comm)
    within_budget = int(BUDGET_S * WARM_UP / (monotonic() - began))
    before = _count_held(comm)
    wanted = NUM_TIMES if comm.size == 2 else NUM_TIMES_OF_OTHER_SIZES
    num_times = comm.broadcast_object(min(wanted, within_budget, most))
    for _ in range(num_times):
        once(comm)
    at_most = {what: number + (SPARE_MAPS if what == "memory maps" else 0) for what, number in before.items()}
    for what, number in _count_held(comm, at_most).items():
        expect(number <= at_most[what], f"{what}: {before[what]} before, {number} after {num_times} more times")


def _duplicate_once(comm: Communicator) -> None:
    """Makes a duplicate, sums a mapped buffer on it, and closes it."""
    copy = comm.duplicate()
    buf = tensor_of(copy, np.full(1000, comm.rank), torch.float32, mapped=True)
    copy.start_allreduce(buf).wait()
    expect_equal(buf, np.full(1000, sum(range(comm.size))), "allreduce on one of many duplicates")
    copy.close()


def _buffers_once(comm: Communicator) -> None:
    """Uses a new mapped buffer and a new plain one, large enough for the engine to map peers' memory."""
    for mapped in (True, False):
        buf = comm.empty(60_000) if mapped else torch.empty(60_000, device=comm.device)
        buf.fill_(comm.rank)
        comm.allreduce(buf)
        expect(buf[-1].item() == sum(range(comm.size)), f"allreduce of one of many buffers gave {buf[-1].item()}")


def _exchange_once(comm: Communicator) -> None:
    """Makes a call and answers it, with vectors in mapped memory and beside it."""
    end = open_exchange(comm, mapped_bytes=4_000)
    for numel in (1_000, 20_000):
        if isinstance(end, MessageServer):
            request = end.receive()
            assert request is not None
            end.reply(request.caller, 0, request.vector)
        else:
            reply = end[0].call(0, end[0].empty(numel).fill_(numel))
            expect(reply.vector is not None and float(reply.vector[-1]) == numel, "the answer in one of many exchanges")
    for one in [end] if isinstance(end, MessageServer) else end:
        one.close()


def _count_held(comm: Communicator, at_most: dict[str, int] | None = None) -> dict[str, int]:
    """The resources that this process holds while all ranks rest; one after another, as ranks may be threads of one process. If
    they are more than `at_most`, resources on their way out get a moment: the kernel takes a thread off its list some time after it
    was joined."""
    gc.collect()
    held: dict[str, int] = {}
    comm.barrier()
    for r in range(comm.size):
        if r == comm.rank:
            held = _count_resources()
            deadline = monotonic() + SETTLE_S
            while at_most and any(held[what] > at_most[what] for what in held) and monotonic() < deadline:
                sleep(0.01)
                held = _count_resources()
        comm.barrier()
    return held


def _count_resources() -> dict[str, int]:
    """Returns how many threads, file descriptors and memory maps this process holds now, by kind."""
    threads = threading.enumerate()
    lingering = sum(thread.name == LINGERING for thread in threads)
    held = {"threads": len(threads) - lingering}
    if sys.platform.startswith("linux"):
        held["file descriptors"] = len(list(Path("/proc/self/fd").iterdir()))
        held["kernel threads"] = len(list(Path("/proc/self/task").iterdir())) - lingering
        held["memory maps"] = len(Path("/proc/self/maps").read_text().splitlines())
    return held
