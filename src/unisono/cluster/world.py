"""One life of all local ranks, from their start to the end of the last: signals go in, lines and exit codes come out."""

from __future__ import annotations

import os
import selectors
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

from unisono.cluster.descent import Process
from unisono.cluster.mortality import Mortality
from unisono.cluster.orders import failed
from unisono.cluster.output import Console
from unisono.cluster.rank_process import RankProcess
from unisono.cluster.signals import SignalInbox
from unisono.errors import join_ranks

STOPPED_CODE = 75
"""Of ranks that stop by themselves, in time and with everything saved: the others are about to do the same."""
NOTICE_S = 5.0
"""After one rank failed: how long the others have to notice by themselves and say what they saw."""
STOP_NOTICE_S = 30.0
"""The same after a signal asked all to stop: they may be saving their state."""
TERM_S = 5.0
"""Between SIGTERM and SIGKILL."""
LEFTOVER_S = 2.0
"""How long what a rank left behind has to clean up, after SIGTERM and again after SIGKILL."""

MOST_REVIVALS = 10
"""Of a rank 0 that was killed while it served the others."""
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Outcome:
    """How a world ended: `code` is that of the first rank that failed, or 0."""

    code: int
    stopped: bool
    """Whether the end was asked for: by a signal, or as our reader left."""


class World:
    """The ranks of this node. `run` blocks until nothing of them is left; all waiting is for events, none of it polls."""

    def __init__(
        self,
        ranks: list[RankProcess],
        selector: selectors.BaseSelector,
        inbox: SignalInbox,
        mortality: Mortality,
        console: Console,
        on_failure: str,
        start_first: Callable[[], RankProcess],
    ) -> None:
        """`start_first` starts rank 0 again."""
        self._ranks = ranks
        self._selector = selector
        self._inbox = inbox
        self._mortality = mortality
        self._console = console
        self._on_failure = on_failure
        self._start_first = start_first
        self._num_revivals = 0
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self._code = 0
        self._interrupts = 0
        self._stopped = False
        self._ended_by_us = False
        self._unread = False

    def run(self) -> Outcome:
        """Local, blocking: until all ranks and their descendants have ended."""
        while not self._is_over():
            wait_for_events(self._selector, min((when for when, _ in self._timers), default=None))
            for signum in self._inbox.take():
                self._forward(signum)
            if self._console.failure is not None and not self._unread:
                self._end_unread()
            exited = [rank for rank in self._ranks if rank.reap()]
            # Those that were killed come first: the others that exited just now may have done so because of them.
            for rank in sorted(exited, key=lambda rank: rank.killed_by is None):
                self._note_exit(rank)
            self._note_gone()
            self._run_timers()
            self._take_turn()
        self._end_leftovers()
        return Outcome(self._code, self._stopped)

    def _is_over(self) -> bool:
        return all(rank.gone for rank in self._ranks)

    def _take_turn(self) -> None:
        """For worlds that do more than to watch: called whenever something happened."""

    def kill(self) -> None:
        """Local, not blocking: end all ranks and their children at once."""
        self._ended_by_us = True
        for rank in self._ranks:
            if not rank.gone:
                rank.send_to_group(signal.SIGKILL)

    def _forward(self, signum: signal.Signals) -> None:
        self._stopped |= signum in (*STOPS, signal.SIGKILL)
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
            self._console.say("interrupted: told all ranks; interrupt again (Ctrl-C) to kill them")
        # Members that come and go are told by the one that serves them, when it has all that it must save.
        for rank in self._ranks[:1] if self._on_failure == "elastic" else self._ranks:
            if rank.running and signum == signal.SIGINT:
                rank.send_to_group(signum)  # as the terminal would: a shell between us and the program waits for it
            else:
                rank.send(signum)

    def _note_exit(self, rank: RankProcess) -> None:
        rank.output.drain()  # its last words come before ours
        self._judge(rank)
        if rank.leaves_children():
            rank.send_to_group(signal.SIGTERM)
            self._after(LEFTOVER_S, lambda: self._kill_leftovers(rank))

    def _judge(self, rank: RankProcess) -> None:
        """What the exit of a rank means for the others."""
        if self._on_failure == "elastic":
            self._note_exit_of_member(rank)
        elif rank.code and not self._ended_by_us:
            self._note_failure(rank, rank.code)

    def _note_exit_of_member(self, rank: RankProcess) -> None:
        """Of members that may come and go: each ends alone. Rank 0, which serves them, is started again if it was killed; where it
        ends by itself all is over, with its code."""
        if rank.rank and rank.code and not self._ended_by_us and not self._stopped and self._ranks[0].running:
            self._console.say(f"{rank.fate()}; the others go on")
        if rank.rank:
            return
        if rank.killed_by is not None and not self._stopped and not self._ended_by_us and self._num_revivals < MOST_REVIVALS:
            self._num_revivals += 1
            self._console.say(f"{rank.fate()}; it is started again ({self._num_revivals} of {MOST_REVIVALS}), the others wait")
            self._ranks[0] = self._start_first()
            self._ranks.append(rank)  # until nothing of its group is left
            return
        self._code = self._code or rank.code or 0
        self._after(NOTICE_S, self._terminate)

    def _note_failure(self, rank: RankProcess, code: int) -> None:
        first = not self._code
        self._code = self._code or code
        others = [other.rank for other in self._ranks if other.running]
        if first and self._on_failure != "continue":
            self._console.report(failed(code))  # our own exit may come much later
        if self._console.is_told(code):
            pass
        elif self._stopped:
            if rank.killed_by not in STOPS:
                self._console.say(rank.fate())
        elif not first or not others:
            self._console.say(rank.fate())
        elif self._on_failure == "continue":
            self._console.say(f"{rank.fate()}; the others go on (--on-failure continue)")
        else:
            self._console.say(f"{rank.fate()}; {join_ranks(others)} will be ended in {NOTICE_S:g} s")
        if first and self._on_failure != "continue":
            self._after(STOP_NOTICE_S if self._stopped or code == STOPPED_CODE else NOTICE_S, self._terminate)

    def _end_unread(self) -> None:
        """Nobody takes our lines any more. One program alone would end of it, without a word; so do all ranks."""
        self._unread = self._stopped = True
        self._terminate()

    def _terminate(self) -> None:
        self._end_running(signal.SIGTERM)
        self._after(TERM_S, lambda: self._end_running(signal.SIGKILL))

    def _end_running(self, signum: signal.Signals) -> None:
        running = [rank for rank in self._ranks if rank.running]
        if running:
            self._ended_by_us = True
            if not self._unread:
                self._console.say(f"sending {signum.name} to {join_ranks(rank.rank for rank in running)}, still running")
        for rank in running:
            rank.send(signum)  # their children come after their exit

    def _kill_leftovers(self, rank: RankProcess) -> None:
        if not rank.gone:
            rank.send_to_group(signal.SIGKILL)
            self._after(LEFTOVER_S, lambda: self._forget(rank))

    def _forget(self, rank: RankProcess) -> None:
        """What even SIGKILL has not ended hangs in the kernel, or is not ours to end; we do not hang with it."""
        if not rank.gone:
            self._console.say(f"process group {rank.pid} of rank {rank.rank} does not end; look at it with ps -g {rank.pid}")
            self._leave(rank)

    def _end_leftovers(self) -> None:
        """What left the groups of the ranks (daemons, sessions of their own). It served them, so it ends after the last."""
        for signum in (signal.SIGKILL,) if self._interrupts > 1 else (signal.SIGTERM, signal.SIGKILL):
            told: set[Process] = set()
            deadline = monotonic() + LEFTOVER_S
            while left := self._mortality.leftovers():
                for process in set(left) - told:
                    with suppress(ProcessLookupError, PermissionError):  # gone, or not ours to end
                        os.kill(process.pid, signum)
                told.update(left)
                if monotonic() >= deadline:
                    break
                wait_for_events(self._selector, deadline)
                if any(received in STOPS for received in self._inbox.take()):
                    deadline = 0.0
            if not left:
                return
        pids = ",".join(str(process.pid) for process in left)
        self._console.say(f"what ranks left behind does not end; look at it with ps -p {pids}")

    def _note_gone(self) -> None:
        for rank in self._ranks:
            if not rank.running and not rank.gone and not rank.leaves_children():
                self._leave(rank)

    def _leave(self, rank: RankProcess) -> None:
        rank.output.drain()
        rank.close()
        rank.gone = True

    def _after(self, delay_s: float, action: Callable[[], None]) -> None:
        self._timers.append((monotonic() + delay_s, action))

    def _run_timers(self) -> None:
        now = monotonic()
        due = [timer for timer in self._timers if timer[0] <= now]
        self._timers = [timer for timer in self._timers if timer[0] > now]
        for _, action in due:
            action()


def wait_for_events(selector: selectors.BaseSelector, deadline: float | None = None) -> None:
    """Local, blocking: until something can be read or written, a signal came or the deadline passed; act on what can be."""
    timeout_s = None if deadline is None else max(0.0, deadline - monotonic())
    for key, _ in selector.select(timeout_s):
        key.data()
