"""Measures speed and latency between two ranks through an engine, in about a second. Imports torch."""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unisono.comm.base import Communicator

TRIAL_BYTES = 1 << 20
LARGEST_BYTES = 64 << 20
NUM_PINGS = 50
MAX_MESSAGES = 8
BUDGET_S = 1.0


def measure(comm: Communicator, here: int, there: int) -> tuple[float, float]:
    """Collective over the two ranks `here` and `there` of `comm`, blocking: GB/s and microseconds one way, as `here` saw them.

    `here` leads: it chooses sizes by what a first message showed and tells the other.
    """
    other = there if comm.rank == here else here
    leads = comm.rank == here
    latency_s = _ping(comm, other, leads, num_bytes=1, times=NUM_PINGS)
    trial_s = _ping(comm, other, leads, TRIAL_BYTES, times=2)
    plan = _tell(comm, other, leads, _plan(trial_s) if leads else (0, 0))
    large_s = _ping(comm, other, leads, plan[0], plan[1])
    return plan[0] / max(large_s - latency_s / 2, 1e-9) / 1e9, latency_s / 2 * 1e6


def _plan(trial_s: float) -> tuple[int, int]:
    """Returns size and number of messages that fit the time budget, from the time of one trial message."""
    per_byte_s = max(trial_s, 1e-6) / TRIAL_BYTES
    num_bytes = int(min(LARGEST_BYTES, max(TRIAL_BYTES, BUDGET_S / 4 / per_byte_s)))
    return num_bytes, int(min(MAX_MESSAGES, max(1, BUDGET_S / (num_bytes * per_byte_s))))


def _ping(comm: Communicator, other: int, leads: bool, num_bytes: int, times: int) -> float:
    """Returns the median seconds of a message of this size and a short answer; the first is not counted."""
    import torch

    message, answer = comm.empty(num_bytes, torch.uint8), comm.empty(1, torch.uint8)
    message.fill_(1)
    taken_s = []
    for _ in range(times + 1):
        started = perf_counter()
        if leads:
            comm.send(message, other)
            comm.recv(answer, other)
        else:
            comm.recv(message, other)
            comm.send(answer, other)
        _settle(comm)
        taken_s.append(perf_counter() - started)
    return median(taken_s[1:])


def _settle(comm: Communicator) -> None:
    """Waits for the GPU, where a message is only launched when the call returns."""
    if comm.device.type == "cuda":
        import torch

        torch.cuda.synchronize(comm.device)


def _tell(comm: Communicator, other: int, leads: bool, plan: tuple[int, int]) -> tuple[int, int]:
    """Sends the plan (size, number of messages) from the leading rank to the other; returns it on both."""
    import torch

    numbers = comm.empty(2, torch.int64)
    numbers.copy_(torch.tensor(plan))
    comm.send(numbers, other) if leads else comm.recv(numbers, other)
    return int(numbers[0]), int(numbers[1])
