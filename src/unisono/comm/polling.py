"""Polling of libraries whose calls cannot be interrupted: often at first, then with growing pauses."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from time import monotonic
from typing import NoReturn, TypeVar

from unisono.comm.driver import Work
from unisono.comm.watch import Watch
from unisono.errors import CommError

T = TypeVar("T")

CHECK_INTERVAL_S = 0.1
"""Longest time between two checks for lost ranks in a waiting call."""
SHORT_CHECK_INTERVAL_S = 0.02
"""The same where a launcher may end this rank soon after another has died, before this one has reported which."""
LOSS_WAIT_S = 2.0
"""Time in which the control plane must report a lost rank once a library has failed."""

_FIRST_PAUSE_S = 10e-6


class Backoff:
    """Pauses between two polls: for `spin_s` it only yields the time slice, so that this rank takes no core from another; then
    sleeps of doubling length."""

    def __init__(self, spin_s: float, longest_s: float) -> None:
        self._spin_until = monotonic() + spin_s
        self._pause_s = _FIRST_PAUSE_S
        self._longest_s = longest_s

    def pause(self) -> bool:
        """Blocking for one pause; returns whether it was a sleep, after which the caller has time for other checks."""
        if monotonic() < self._spin_until:
            os.sched_yield()
            return False
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, self._longest_s)
        return True


def wait_watched(work: Work[T], watch: Watch) -> T:
    """Blocking: returns the result of `work`; raises what `watch` raises, and then leaves the work unfinished."""
    while not work.done():
        with suppress(CommError):  # not done yet; if it is the work's own error, it comes again below
            work.wait(SHORT_CHECK_INTERVAL_S)
        if not work.done():
            watch.poll()
    return work.wait()


def raise_root_cause(watch: Watch, error: BaseException, what: str) -> NoReturn:
    """Blocking: raises `PeerLost` if the control plane reports a lost rank, else `CommError` with the library's own error.

    A library that loses a connection names the neighbour, which may itself have failed only because of another rank.
    """
    deadline = monotonic() + LOSS_WAIT_S
    while monotonic() < deadline:
        watch.poll()
        time.sleep(0.01)
    comm = watch.comm
    text = f"{watch.call} on rank {comm.rank} of {comm.name} failed in {what}, but no member is known to be lost: {error}"
    comm.give_up(text, ())
    raise CommError(text) from error
