"""Waiting for libraries that cannot be interrupted: look again and again, at first often, later seldom."""

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

SLICE_S = 0.1
"""Longest time in which a waiting call does not look who is gone."""
GLANCE_S = 0.02
"""The same where a launcher may end us as soon as another rank has died, before we have said who it was."""
SETTLE_S = 2.0
"""How long the control plane may take to say who died, once a library has failed."""

_FIRST_PAUSE_S = 10e-6


class Pauses:
    """The time between two looks: for `spin_s` only the time slice is given away, so that no rank lacks the core that this one
    spins on; then sleeps of doubling length."""

    def __init__(self, spin_s: float, longest_s: float) -> None:
        self._spin_until = monotonic() + spin_s
        self._pause_s = _FIRST_PAUSE_S
        self._longest_s = longest_s

    def next(self) -> bool:
        """Blocking for one pause; whether it was one of those that leave time to look at other things too."""
        if monotonic() < self._spin_until:
            os.sched_yield()
            return False
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, self._longest_s)
        return True


def wait_watched(work: Work[T], watch: Watch) -> T:
    """Blocking: the result of `work`; raises what `watch` raises, which leaves the work to itself."""
    while not work.done():
        with suppress(CommError):  # not done yet; if it is the work's own error, it comes again below
            work.wait(GLANCE_S)
        if not work.done():
            watch.poll()
    return work.wait()


def raise_settled(watch: Watch, error: BaseException, what: str) -> NoReturn:
    """Blocking: raise `PeerLost` if the control plane says who is gone, else what the library said.

    A library that loses a connection names the neighbour at which it noticed, who may only have noticed earlier.
    """
    deadline = monotonic() + SETTLE_S
    while monotonic() < deadline:
        watch.poll()
        time.sleep(0.01)
    comm = watch.comm
    text = f"{watch.call} on rank {comm.rank} of {comm.name} failed in {what}, though no member is known to be gone: {error}"
    comm.give_up(text, ())
    raise CommError(text) from error
