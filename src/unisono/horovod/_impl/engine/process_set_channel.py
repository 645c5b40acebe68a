"""The operations of one process set on this rank: submitted by any thread, in any order, and carried out by one thread.

The thread starts a round of negotiation only when it has a reason, and otherwise sleeps. A rank that waits for others waits inside
the collective with which a round begins, where it sleeps too. So no rank is woken for nothing, and no cycles are counted.
"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Sequence
from time import monotonic

import torch

from unisono.comm.base import Communicator
from unisono.comm.control_plane.control import Loss
from unisono.horovod._impl.engine.agreed_operation import Agreement
from unisono.horovod._impl.engine.carrier import Carrier
from unisono.horovod._impl.engine.fusion import fuse
from unisono.horovod._impl.engine.negotiation import Negotiation
from unisono.horovod._impl.engine.negotiation_rounds import Negotiator
from unisono.horovod._impl.engine.operation_entry import Entry
from unisono.horovod._impl.engine.operation_request import JOIN, on_one_line
from unisono.horovod._impl.exceptions import HorovodInternalError
from unisono.horovod._impl.job.job_settings import HorovodSettings
from unisono.horovod._impl.timeline.operation_timeline import OFF, Timeline

FOR_EVER_S = 1e9
"""Ranks may come as late as they like; the stall report says whom the others wait for."""
LONGEST_PAUSE_S = 10e-3
"""Between two rounds in which all ranks waited for something and agreed on nothing."""
STOP_WAIT_S = 5.0
GRACE_S = 0.2
"""What the thread may take to come back from an operation that is done."""
SHUT_DOWN = "was shut down by hvd.shutdown()"


class Channel:
    """The operations of a process set on this rank. Made collectively over the set; it owns the communicator."""

    def __init__(
        self,
        comm: Communicator,
        ranks: Sequence[int],
        settings: HorovodSettings,
        title: str,
        timeline: Timeline = OFF,
    ) -> None:
        self.ranks = tuple(ranks)
        self.title = title
        self._comm = comm
        comm.time_limit_s = FOR_EVER_S
        self._settings = settings
        self._timeline = timeline
        self._negotiation = Negotiation(comm.rank, ranks, settings.cache_capacity)
        self._negotiator = Negotiator(comm, settings.cache_capacity)
        self._carrier = Carrier(comm, ranks, timeline)
        self._changed = threading.Condition()
        self._entries: dict[str, Entry] = {}
        self._fresh: list[Entry] = []
        self._fresh_since = 0.0
        self._urgent = False
        self._leaving = False
        self._over: str | None = None
        """Why nothing can be submitted any more."""
        self._thread: threading.Thread | None = None
        self._last_round_at, self._pause_s = 0.0, 0.0
        self._unnamed: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)
        self._made: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)
        self.era = object()
        """Another object after each complete join: ranks that had joined did not receive what the others exchanged before."""
        comm.control.current_calls[title] = (0, self)

    # ---- what users' threads call ------------------------------------------------------------------------------------

    def number(self, what: str) -> int:
        """Returns 0, 1, 2, ... for each `what`: names for operations that users did not name. The numbers begin again after a join,
        as ranks that have joined did not count with the others. Local."""
        with self._changed:
            return next(self._unnamed[what])

    def persistent_number(self, what: str) -> int:
        """Returns 0, 1, 2, ... for each `what`: names for objects that stay, such as optimisers, made in one order on all ranks.
        Local."""
        with self._changed:
            return next(self._made[what])

    def submit(self, entry: Entry) -> None:
        """Submits an operation. Raises `ValueError` if an operation of that name is in flight here. Local, not blocking."""
        name = entry.request.name
        with self._changed:
            if self._over is not None:
                raise HorovodInternalError(f"{name} cannot be submitted: {self._over}; call hvd.shutdown() and hvd.init()")
            if JOIN in self._entries and name != JOIN:
                raise ValueError(
                    f"{name} cannot be submitted: this rank has called join() and adds zeros to all operations; submit it before "
                    "join(), or after join() has returned"
                )
            if name in self._entries:
                raise ValueError(
                    f"{name} is already in flight on this rank; call hvd.synchronize on its handle first, or use another name"
                )
            self._entries[name] = entry
            if len(self.ranks) == 1:
                self._carry_alone(entry)
                return
            self._fresh.append(entry)
            entry.hurry = self._begin_round_soon
            if len(self._fresh) == 1:
                self._fresh_since = monotonic()
                self._changed.notify()
            if self._thread is None:
                self._start_thread()

    def waiting(self) -> list[Entry]:
        """Returns the operations in flight, the oldest first. Local."""
        with self._changed:
            return sorted(self._entries.values(), key=lambda entry: entry.began_at)

    def __str__(self) -> str:
        """Returns the names in flight, a line each, for the reports of the control plane."""
        return "\n".join(on_one_line(name) for name in tuple(self._entries))

    def leave(self) -> None:
        """Waits until all ranks leave; operations that are then in flight fail. Collective over the set, blocking."""
        with self._changed:
            self._leaving = True
            if len(self.ranks) > 1 and self._over is None:
                self._start_thread()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        self._close_communicator("the process set was removed")

    def stop(self, reason: str = SHUT_DOWN) -> None:
        """Ends the channel, whatever is in flight. Peers that wait for this rank are told. Local, blocking for a moment."""
        with self._changed:
            self._over = self._over or f"the communication {reason}"
            self._changed.notify()
        thread = self._thread
        if thread is not None:
            thread.join(GRACE_S)
            if thread.is_alive():  # it waits for peers: that this rank is gone ends its call, as it ends theirs
                self._comm.control.lost[self._comm.control.rank] = Loss(reason)
                thread.join(STOP_WAIT_S)
        self._close_communicator(f"the communication {reason}")

    def fail(self, reason: str) -> None:
        """Makes all operations in flight fail and tells the peers why. The peers are told first: one that found this rank no longer
        waiting would count it among those that never came. Local, not blocking."""
        with self._changed:
            self._over = self._over or reason
        self._comm.abort(reason)
        self._end_operations(reason)

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _start_thread(self) -> None:
        """Starts the thread of the channel, once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run_rounds, name=f"unisono-{self.title}", daemon=True)
            self._thread.start()

    def _run_rounds(self) -> None:
        """The thread: negotiates and carries out what is agreed until the channel ends; an error makes all operations in flight
        fail."""
        try:
            while self._wait_for_round():
                self._timeline.on_round()
                found = self._negotiator.round(self._negotiation, self._leaving)
                self._last_round_at = monotonic()
                self._timeline.on_requests(found.requests)
                if found.agreed:
                    self._pause_s = 0.0
                    self._timeline.on_agreement(found.agreed)
                    self._carry_out(found.agreed)
                else:
                    self._pause_s = min(max(2 * self._pause_s, self._settings.cycle_time_s / 8, 50e-6), LONGEST_PAUSE_S)
                if found.all_leave:
                    return
        except BaseException as error:  # noqa: BLE001 -- carried over to the threads that wait
            reason = self._over or f"{type(error).__name__}: {error}"
            self._end_operations(reason)
            if not self._comm.is_spent:
                self._comm.abort(reason)

    def _wait_for_round(self) -> bool:
        """Waits until a round is due, submits the new operations to it and returns True; False at the end. Blocking."""
        with self._changed:
            while self._over is None:
                now = monotonic()
                due = self._due_at(now)
                if due is not None and due <= now:
                    for entry in self._fresh:
                        self._negotiation.submit(entry.request)
                    self._timeline.on_submit(self._fresh)
                    self._fresh.clear()
                    self._urgent = False
                    return True
                self._changed.wait(None if due is None else due - now)
            return False

    def _due_at(self, now: float) -> float | None:
        """Returns the time at which the next round is due; None: not before something happens here."""
        if self._leaving or self._negotiation.has_joined or (self._fresh and self._urgent):
            return now
        reasons = []
        if self._fresh:  # nobody waits for it yet: more operations may come that can be fused with it
            reasons.append(self._fresh_since + self._settings.cycle_time_s)
        if self._negotiation.is_waiting:
            # While things are agreed on, at once: we sleep in the collective until a peer comes with something new. Only if
            # all ranks wait for something else would nobody ever sleep, so then there are pauses.
            reasons.append(self._last_round_at + self._pause_s)
        return min(reasons, default=None)

    def _begin_round_soon(self) -> None:
        """Makes the thread begin a round at once if operations are new, as somebody waits for one of them."""
        with self._changed:
            if self._fresh and not self._urgent:
                self._urgent = True
                self._changed.notify()

    def _carry_out(self, agreed: list[Agreement]) -> None:
        """Carries out these agreements in fused buckets and finishes their entries; refusals finish with their error."""
        for bucket in fuse(agreed, self._settings.fusion_threshold_bytes):
            error = bucket[0].error
            if error is None:
                self._timeline.on_start(bucket)
                with torch.no_grad():
                    self._carrier.carry(bucket, self._entries)
                self._timeline.on_done()
            with self._changed:
                ours = [self._entries.pop(agreement.name, None) for agreement in bucket]
                if bucket[0].last_joined is not None:
                    self._unnamed.clear()
                    self.era = object()
            for entry in ours:
                if entry is not None:
                    entry.finish(None if error is None else HorovodInternalError(error))

    def _carry_alone(self, entry: Entry) -> None:
        """Carries out an operation where this rank is the only one."""
        agreed = [Agreement((entry.request,), last_joined=0)]
        self._timeline.on_round()
        self._timeline.on_submit([entry])
        self._timeline.on_agreement(agreed)
        try:
            self._timeline.on_start(agreed)
            with torch.no_grad():
                self._carrier.carry(agreed, self._entries)
            self._timeline.on_done()
        finally:
            del self._entries[entry.request.name]
        entry.finish()

    # ---- the end -----------------------------------------------------------------------------------------------------

    def _end_operations(self, reason: str) -> None:
        """Ends the channel: all operations in flight fail with this reason."""
        with self._changed:
            self._over = self._over or reason
            left = list(self._entries.values())
            self._entries.clear()
            self._fresh.clear()
            self._changed.notify()
        for entry in left:
            entry.finish(HorovodInternalError(f"{entry.request.name} cannot finish: {reason}"))

    def _close_communicator(self, reason: str) -> None:
        """Ends the channel with this reason and closes its communicator."""
        self._end_operations(reason)
        self._comm.control.current_calls.pop(self.title, None)
        self._comm.close()
