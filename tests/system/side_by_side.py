"""Groups of ranks at the same time: ranks wait for each other, for time limits and for launchers, and meanwhile cores are idle."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

RANKS_PER_CORE = 2


def run_side_by_side(jobs: Sequence[tuple[int, Callable[[], object]]]) -> None:
    """Local, blocking: all jobs (how many ranks, what to do), begun in their order, with no more than two ranks for each core at
    any time; one that has more runs alone. Raises what the first failing one raised, once all are over."""
    num_seats = RANKS_PER_CORE * len(os.sched_getaffinity(0))
    seats = threading.Semaphore(num_seats)

    def run(num_taken: int, job: Callable[[], object]) -> None:
        try:
            job()
        finally:
            seats.release(num_taken)

    with ThreadPoolExecutor(max(1, len(jobs))) as pool:
        running = []
        for num_ranks, job in jobs:
            num_taken = min(num_ranks, num_seats)
            for _ in range(num_taken):
                seats.acquire()
            running.append(pool.submit(run, num_taken, job))
    for future in running:
        future.result()
