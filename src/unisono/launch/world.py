"""Runs one attempt of all local ranks, from their start to the end of the last: forwards signals, reacts to exits."""

from __future__ import annotations

import os
import selectors
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

from unisono.cluster.machine.process_tree import Process
from unisono.errors import STOPPED_CODE, join_ranks
from unisono.launch.control_messages import failure_report
from unisono.launch.orphans import OrphanGuard
from unisono.launch.output import LauncherOutput
from unisono.launch.rank_process import RankProcess
from unisono.launch.signals import SignalInbox

FAILURE_GRACE_S = 5.0
"""After one rank failed: time for the others to notice it and report it."""
STOP_GRACE_S = 30.0
"""After a signal requested a stop: time for the ranks to save their state."""
TERM_GRACE_S = 5.0
"""Between SIGTERM and SIGKILL."""
LEFTOVER_GRACE_S = 2.0
"""Time for processes left by a rank to clean up, after SIGTERM and again after SIGKILL."""

MAX_RANK_0_RESTARTS = 10
"""Restarts of a rank 0 that was killed while it served the others (elastic)."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Outcome:
    """Result of an attempt: `code` is that of the first rank that failed, or 0."""

    code: int
    stopped: bool
    """Whether the end was requested, by a signal or because the reader of our output left."""


class World:
    """The running ranks of this node. `run` blocks until no process of them is left; it waits for events and does not poll."""

    def __init__(
        self,
        ranks: list[RankProcess],
        selector: selectors.BaseSelector,
        inbox: SignalInbox,
        orphan_guard: OrphanGuard,
        console: LauncherOutput,
        on_failure: str,
        start_rank_0: Callable[[], RankProcess],
    ) -> None:
        """`start_rank_0` starts rank 0 again."""
        self._ranks = ranks
        self._selector = selector
        self._inbox = inbox
        self._orphan_guard = orphan_guard
        self._console = console
        self._on_failure = on_failure
        self._start_rank_0 = start_rank_0
        self._num_rank_0_restarts = 0
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self._code = 0
        self._interrupts = 0
        self._stopped = False
        self._ended_by_us = False
        self._has_no_reader = False

    def run(self) -> Outcome:
        """Local, blocking until all ranks and their descendants have ended; returns how they ended."""
        while not self._is_over():
            wait_for_events(self._selector, min((when for when, _ in self._timers), default=None))
            for signum in self._inbox.received():
                self._forward(signum)
            if self._console.failure is not None and not self._has_no_reader:
                self._end_without_reader()
            exited = [rank for rank in self._ranks if rank.reap()]
            # Those that were killed come first: the others that exited just now may have done so because of them.
            for rank in sorted(exited, key=lambda rank: rank.killed_by is None):
                self._note_exit(rank)
            self._finish_exited()
            self._run_timers()
            self._after_events()
        self._end_leftovers()
        return Outcome(self._code, self._stopped)

    def _is_over(self) -> bool:
        """Whether all ranks are finished."""
        return all(rank.finished for rank in self._ranks)

    def _after_events(self) -> None:
        """Hook of subclasses: called after every batch of events."""

    def kill(self) -> None:
        """Local, not blocking: kills all ranks and their children."""
        self._ended_by_us = True
        for rank in self._ranks:
            if not rank.finished:
                rank.send_to_group(signal.SIGKILL)

    def _forward(self, signum: signal.Signals) -> None:
        """Forwards a signal to the ranks (with elastic workers to rank 0 alone); SIGKILL, or a second Ctrl-C, kills all of them."""
        self._stopped |= signum in (*STOP_SIGNALS, signal.SIGKILL)
        if signum == signal.SIGKILL:
            self._code = self._code or 128 + signum
            self.kill()
            return
        if signum == signal.SIGINT:
            self._interrupts += 1
            if self._interrupts > 1:
                self._console.say("interrupted again: killing all ranks")
                self._code = self._code or 128 + signum
                self.kill()
                return
            self._console.say("interrupted: all ranks are stopping; press Ctrl-C again to kill them")
        # Elastic workers are stopped by rank 0, which serves them, once it has saved its state.
        for rank in self._ranks[:1] if self._on_failure == "elastic" else self._ranks:
            if rank.running and signum == signal.SIGINT:
                rank.send_to_group(signum)  # as the terminal would: a shell between us and the program waits for it
            else:
                rank.send(signum)

    def _note_exit(self, rank: RankProcess) -> None:
        """Handles the exit of a rank: forwards its last lines, reacts to its code, and ends the processes that are left of its
        group.
        """
        rank.output.drain()  # its last lines come before our message
        self._react_to_exit(rank)
        if rank.has_live_group():
            rank.send_to_group(signal.SIGTERM)
            self._after(LEFTOVER_GRACE_S, lambda: self._kill_leftovers(rank))

    def _react_to_exit(self, rank: RankProcess) -> None:
        """Handles the exit of a rank: ends the others or starts their grace time."""
        if self._on_failure == "elastic":
            self._react_to_elastic_exit(rank)
        elif rank.code and not self._ended_by_us:
            self._note_failure(rank, rank.code)

    def _react_to_elastic_exit(self, rank: RankProcess) -> None:
        """Handles the exit of an elastic worker: each rank ends alone. Rank 0, which serves them, is restarted if it was killed;
        when it exits by itself all ranks end, with its code."""
        if rank.rank and rank.code and not self._ended_by_us and not self._stopped and self._ranks[0].running:
            self._console.say(f"{rank.describe_exit()}; the others continue")
        if rank.rank:
            return
        if (
            rank.killed_by is not None
            and not self._stopped
            and not self._ended_by_us
            and self._num_rank_0_restarts < MAX_RANK_0_RESTARTS
        ):
            self._num_rank_0_restarts += 1
            self._console.say(
                f"{rank.describe_exit()}; restarting it ({self._num_rank_0_restarts} of {MAX_RANK_0_RESTARTS}) "
                "while the others wait"
            )
            self._ranks[0] = self._start_rank_0()
            self._ranks.append(rank)  # until nothing of its group is left
            return
        self._code = self._code or rank.code or 0
        self._after(FAILURE_GRACE_S, self._terminate)

    def _note_failure(self, rank: RankProcess, code: int) -> None:
        """Handles a failed rank: reports it, and at the first failure sets the time at which the others are ended, unless they
        continue.
        """
        first = not self._code
        self._code = self._code or code
        others = [other.rank for other in self._ranks if other.running]
        if first and self._on_failure != "continue":
            self._console.report(failure_report(code))  # our own exit may come much later
        if self._console.is_reported(code):
            pass
        elif self._stopped:
            if rank.killed_by not in STOP_SIGNALS:
                self._console.say(rank.describe_exit())
        elif not first or not others:
            self._console.say(rank.describe_exit())
        elif self._on_failure == "continue":
            self._console.say(f"{rank.describe_exit()}; the others continue (--on-failure continue)")
        else:
            self._console.say(f"{rank.describe_exit()}; {join_ranks(others)} will be ended in {FAILURE_GRACE_S:g} s")
        if first and self._on_failure != "continue":
            self._after(STOP_GRACE_S if self._stopped or code == STOPPED_CODE else FAILURE_GRACE_S, self._terminate)

    def _end_without_reader(self) -> None:
        """Ends all ranks because the reader of our output has left, silently, as SIGPIPE ends a single program."""
        self._has_no_reader = self._stopped = True
        self._terminate()

    def _terminate(self) -> None:
        """Sends SIGTERM to all ranks that run, and SIGKILL to those that still run after the grace time."""
        self._end_running(signal.SIGTERM)
        self._after(TERM_GRACE_S, lambda: self._end_running(signal.SIGKILL))

    def _end_running(self, signum: signal.Signals) -> None:
        """Sends a signal to the ranks that still run, with a message."""
        running = [rank for rank in self._ranks if rank.running]
        if running:
            self._ended_by_us = True
            if not self._has_no_reader:
                self._console.say(f"sending {signum.name} to {join_ranks(rank.rank for rank in running)}, still running")
        for rank in running:
            rank.send(signum)  # their children come after their exit

    def _kill_leftovers(self, rank: RankProcess) -> None:
        """Kills the processes that are left of the group of an exited rank; gives up on those that survive it."""
        if not rank.finished:
            rank.send_to_group(signal.SIGKILL)
            self._after(LEFTOVER_GRACE_S, lambda: self._give_up(rank))

    def _give_up(self, rank: RankProcess) -> None:
        """Stops waiting for a group that SIGKILL has not ended: it hangs in the kernel, or belongs to another user."""
        if not rank.finished:
            self._console.say(f"process group {rank.pid} of rank {rank.rank} does not end; look at it with ps -g {rank.pid}")
            self._finish(rank)

    def _end_leftovers(self) -> None:
        """Ends processes that left the groups of the ranks (daemons, new sessions), after the ranks, which they may serve."""
        for signum in (signal.SIGKILL,) if self._interrupts > 1 else (signal.SIGTERM, signal.SIGKILL):
            notified: set[Process] = set()
            deadline = monotonic() + LEFTOVER_GRACE_S
            while left := self._orphan_guard.leftovers():
                for process in set(left) - notified:
                    with suppress(ProcessLookupError, PermissionError):  # gone, or not ours to end
                        os.kill(process.pid, signum)
                notified.update(left)
                if monotonic() >= deadline:
                    break
                wait_for_events(self._selector, deadline)
                if any(received in STOP_SIGNALS for received in self._inbox.received()):
                    deadline = 0.0
            if not left:
                return
        pids = ",".join(str(process.pid) for process in left)
        self._console.say(f"processes that ranks left behind do not end; look at them with ps -p {pids}")

    def _finish_exited(self) -> None:
        """Finishes the exited ranks whose groups have no process left."""
        for rank in self._ranks:
            if not rank.running and not rank.finished and not rank.has_live_group():
                self._finish(rank)

    def _finish(self, rank: RankProcess) -> None:
        """Forwards the last lines of a rank, closes its pipes and marks it as finished."""
        rank.output.drain()
        rank.close()
        rank.finished = True

    def _after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Plans a call of `action` in `delay_s` seconds."""
        self._timers.append((monotonic() + delay_s, action))

    def _run_timers(self) -> None:
        """Runs the planned calls whose time has come."""
        now = monotonic()
        due = [timer for timer in self._timers if timer[0] <= now]
        self._timers = [timer for timer in self._timers if timer[0] > now]
        for _, action in due:
            action()


def wait_for_events(selector: selectors.BaseSelector, deadline: float | None = None) -> None:
    """Local, blocking until something can be read or written, a signal came or the deadline passed; then runs the handlers."""
    timeout_s = None if deadline is None else max(0.0, deadline - monotonic())
    for key, _ in selector.select(timeout_s):
        key.data()
