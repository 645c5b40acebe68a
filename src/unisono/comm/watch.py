"""Failures of a waiting call: the errors that it raises when a member is lost, late, or calls another operation.

All members that fail because of one rank name that rank: the first to notice notifies the others before it raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import NoReturn, Protocol

from unisono.comm.calls import Call
from unisono.comm.control_plane.control import Control, Loss, Report
from unisono.errors import CollectiveTimeout, MismatchedCall, PeerLost, join_ranks

REPORT_WAIT_S = 3.0
"""Time that a rank that gives up waits for the reports of the others."""

LEFT_WAIT_S = 0.5
"""Time that a call still waits after a member that it needs has closed its communicator."""


class Waiter(Protocol):
    """The interface of a communicator that a watch needs."""

    name: str
    rank: int
    members: tuple[int, ...]
    control: Control
    on_behalf: Watch | None
    """The operation of another communicator that this one performs: failures are reported as failures of that operation."""

    def give_up(self, reason: str, ranks: Sequence[int]) -> None:
        """Notifies the others of the reason, and makes the communicator unusable."""


class Watch:
    """The failure checks of one running operation: `poll` raises once a member is lost or the time limit has passed."""

    __slots__ = ("_grace_until", "call", "comm", "deadline", "limit_s", "sources")

    def __init__(self, comm: Waiter, call: Call, limit_s: float, sources: tuple[int, ...] = ()) -> None:
        self.comm = comm
        self.call = call
        self.limit_s = limit_s
        self.deadline: float = monotonic() + limit_s if comm.on_behalf is None else comm.on_behalf.deadline
        self._grace_until = 0.0
        self.sources = sources
        """Ranks whose message is awaited (point-to-point); empty for a collective."""

    def poll(self) -> None:
        """Local: raises if a member is lost or the time limit has passed; blocks only before it raises."""
        if self.comm.control.lost:
            self.raise_if_lost()
        if monotonic() > self.deadline:
            self.raise_timeout()

    def raise_if_lost(self) -> None:
        """Raises `PeerLost` if a member that this call needs is lost. A message from any source needs one living source."""
        comm, gone = self.comm, self.comm.control.lost
        outer = comm.on_behalf
        if outer is not None:
            outer.raise_if_lost()  # the whole operation needs them all; with rank 0 the hub that would tell us may be gone
        heard = [(comm.members.index(m), loss) for m, loss in tuple(gone.items()) if m in comm.members]
        lost = {r: loss for r, loss in heard if self._needs(r, loss)}
        if not lost or (len(self.sources) > 1 and len(lost) < len(self.sources)):
            return
        if all(loss.left_cleanly for loss in lost.values()):
            # A quick member may finish the last call and leave while its part is still on its way to us.
            self._grace_until = self._grace_until or monotonic() + LEFT_WAIT_S
            if monotonic() < self._grace_until:
                return
        self._raise_lost({comm.members[r]: loss for r, loss in lost.items()})

    def _needs(self, rank: int, loss: Loss) -> bool:
        """Whether this operation needs a lost rank. A rank that left cleanly has finished its collectives."""
        if self.sources:
            return rank in self.sources
        name = self.comm.name
        seq, _ = self.comm.control.current_calls.get(name, (0, ""))
        return not (loss.left_cleanly and loss.done.get(name, 0) >= seq)

    def _raise_lost(self, lost: dict[int, Loss]) -> NoReturn:
        """Raises `PeerLost`; `lost` is by rank of the job, since the group that reports it need not be the group that noticed
        it."""
        comm = self.comm
        if comm.on_behalf is not None:
            comm.on_behalf._raise_lost(lost)
        ranks, why = self._blame({comm.members.index(m): loss for m, loss in lost.items()})
        message = f"{self.call} on rank {comm.rank} of {comm.name} cannot finish: {why}"
        comm.give_up(message, ranks)
        raise PeerLost(ranks, message)

    def raise_timeout(self) -> NoReturn:
        """Asks all members for reports, and raises an error that names the missing ones and shows the stacks of the others."""
        comm = self.comm
        if comm.on_behalf is not None:
            comm.on_behalf.raise_if_lost()
            comm.on_behalf.raise_timeout()
        reports = comm.control.reports([m for m in comm.members if m != comm.control.rank], REPORT_WAIT_S)
        stacks = "\n".join(self._shown_report(r, reports.get(m)) for r, m in enumerate(comm.members) if r != comm.rank)
        if self.sources:
            who = join_ranks(self.sources)
            text = f"{self.call} on rank {comm.rank} of {comm.name}: {who} did not respond within {self.limit_s:g} s"
            comm.give_up(text, self.sources)
            raise CollectiveTimeout(self.sources, f"{text}\n{stacks}")
        seq, call = comm.control.current_calls.get(comm.name, (0, ""))
        missing, different = [], []
        for r, member in enumerate(comm.members):
            report = reports.get(member)
            doing = report.current_calls.get(comm.name) if report else None
            gone = comm.control.lost.get(member)
            if r == comm.rank or (gone is not None and gone.causes):  # the latter was here, and gave up because of another
                continue
            if doing is None or doing.seq < seq:
                missing.append(r)
            elif doing.seq == seq and doing.call != str(call):
                different.append((r, doing.call))
        if different:
            raise self.mismatch(*different[0], stacks)
        if not missing:
            self.raise_if_lost()  # another gave up while we asked, and knows who was late: by now that one has come
        named = join_ranks(missing) if missing else "none (all have arrived, but the engine does not finish)"
        text = (
            f"{self.call} on rank {comm.rank} of {comm.name}: not all members arrived within {self.limit_s:g} s; missing: {named}"
        )
        comm.give_up(text, missing)
        raise CollectiveTimeout(missing, f"{text}\n{stacks}")

    def mismatch(self, rank: int, other: str, stacks: str = "") -> MismatchedCall:
        """Returns the error to raise when rank `rank` called `other` instead of our call, and notifies the others."""
        comm = self.comm
        remedy = (
            "send and receive the same number and type of elements"
            if self.sources
            else "make the same calls in the same order on all ranks"
        )
        text = f"calls of {comm.name} do not match: rank {comm.rank} called {self.call}, rank {rank} called {other}; {remedy}"
        comm.give_up(text, ())
        return MismatchedCall(f"{text}\n{stacks}" if stacks else text)

    def _blame(self, lost: dict[int, Loss]) -> tuple[list[int], str]:
        """Returns the ranks that failed by themselves, not those that failed because of them; and the reasons as text."""
        members = self.comm.members
        own = {r: loss for r, loss in lost.items() if not loss.causes or members[self.comm.rank] in loss.causes}
        own = {r: loss for r, loss in own.items() if not loss.left_cleanly} or own
        blamed: set[int] = set()
        told: set[int] = set()
        for r, loss in lost.items():  # in the order in which we heard of them
            causes = {members.index(m) for m in loss.causes if m in members}
            if not causes <= told:  # else it gave up because of one that had given up before: no cause, but a consequence
                blamed |= causes
            told.add(r)
        shown = own or lost
        return sorted(own or blamed or lost), "; ".join(f"rank {r} {loss.reason}" for r, loss in shown.items())

    def _shown_report(self, rank: int, report: Report | None) -> str:
        """Returns the report of a rank as text: its newest collective of this group and its stack, or that it did not answer."""
        if report is None:
            return f"--- rank {rank}: no answer within {REPORT_WAIT_S:g} s"
        doing = report.current_calls.get(self.comm.name)
        now = f"call {doing.seq}, {doing.call}" if doing else "no call yet"
        return f"--- rank {rank}: newest collective of this group: {now}\n{report.stack}"
