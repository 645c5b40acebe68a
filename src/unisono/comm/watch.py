"""Who is to blame: what a waiting call does when a member is lost, late, or calls something else.

All members that fail because of one rank name that rank: whoever notices first tells the others before it goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import NoReturn, Protocol

from unisono.comm.calls import Call
from unisono.comm.control import Control, Loss, Report
from unisono.errors import CollectiveTimeout, MismatchedCall, PeerLost, join_ranks

REPORT_WAIT_S = 3.0
"""How long a rank that gives up waits for the others to say what they are doing."""

LEFT_WAIT_S = 0.5
"""How long a call goes on after a member that it needs has left in good order."""


class Waiter(Protocol):
    """What a watch needs of a communicator."""

    name: str
    rank: int
    members: tuple[int, ...]
    control: Control
    on_behalf: Watch | None
    """The operation of another communicator that this one is carrying out: failures are told in its words."""

    def give_up(self, reason: str, ranks: Sequence[int]) -> None:
        """Tell the others, and be spent."""


class Watch:
    """A running operation as its waiting loops see it: `poll` raises once a member is lost or the time is up."""

    __slots__ = ("_patience_until", "call", "comm", "deadline", "limit_s", "sources")

    def __init__(self, comm: Waiter, call: Call, limit_s: float, sources: tuple[int, ...] = ()) -> None:
        self.comm = comm
        self.call = call
        self.limit_s = limit_s
        self.deadline: float = monotonic() + limit_s if comm.on_behalf is None else comm.on_behalf.deadline
        self._patience_until = 0.0
        self.sources = sources
        """Ranks whose message is awaited (point-to-point); empty for a collective."""

    def poll(self) -> None:
        """Local, blocking only when it is about to raise."""
        if self.comm.control.lost:
            self.raise_if_lost()
        if monotonic() > self.deadline:
            self.raise_late()

    def raise_if_lost(self) -> None:
        """Raise `PeerLost` if a member that this call needs is gone. A message from any source needs one living source."""
        comm, gone = self.comm, self.comm.control.lost
        outer = comm.on_behalf
        if outer is not None:
            outer.raise_if_lost()  # the whole operation needs them all; with rank 0 the hub that would tell us may be gone
        heard = [(comm.members.index(m), loss) for m, loss in tuple(gone.items()) if m in comm.members]
        lost = {r: loss for r, loss in heard if self._needs(r, loss)}
        if not lost or (len(self.sources) > 1 and len(lost) < len(self.sources)):
            return
        if all(loss.in_good_order for loss in lost.values()):
            # Who is quick may finish the last call and leave while its part is still on its way to us.
            self._patience_until = self._patience_until or monotonic() + LEFT_WAIT_S
            if monotonic() < self._patience_until:
                return
        self._raise_lost({comm.members[r]: loss for r, loss in lost.items()})

    def _needs(self, rank: int, loss: Loss) -> bool:
        """Whether a lost rank still owes this operation something. Who left in good order has finished its collectives."""
        if self.sources:
            return rank in self.sources
        name = self.comm.name
        seq, _ = self.comm.control.doing.get(name, (0, ""))
        return not (loss.in_good_order and loss.done.get(name, 0) >= seq)

    def _raise_lost(self, lost: dict[int, Loss]) -> NoReturn:
        """`lost` is by rank of the job, since the group that tells it need not be the group that found it."""
        comm = self.comm
        if comm.on_behalf is not None:
            comm.on_behalf._raise_lost(lost)
        ranks, why = self._blame({comm.members.index(m): loss for m, loss in lost.items()})
        message = f"{self.call} on rank {comm.rank} of {comm.name} cannot finish: {why}"
        comm.give_up(message, ranks)
        raise PeerLost(ranks, message)

    def raise_late(self) -> NoReturn:
        """Ask everybody what they are doing, say who is missing and where everybody is, and raise."""
        comm = self.comm
        if comm.on_behalf is not None:
            comm.on_behalf.raise_if_lost()
            comm.on_behalf.raise_late()
        reports = comm.control.reports([m for m in comm.members if m != comm.control.rank], REPORT_WAIT_S)
        stacks = "\n".join(self._shown(r, reports.get(m)) for r, m in enumerate(comm.members) if r != comm.rank)
        if self.sources:
            who = join_ranks(self.sources)
            text = f"{self.call} on rank {comm.rank} of {comm.name}: {who} did nothing about it within {self.limit_s:g} s"
            comm.give_up(text, self.sources)
            raise CollectiveTimeout(self.sources, f"{text}\n{stacks}")
        seq, call = comm.control.doing.get(comm.name, (0, ""))
        missing, different = [], []
        for r, member in enumerate(comm.members):
            report = reports.get(member)
            doing = report.doing.get(comm.name) if report else None
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
        named = join_ranks(missing) if missing else "none (all are here, but the engine does not finish)"
        text = (
            f"{self.call} on rank {comm.rank} of {comm.name}: not all members arrived within {self.limit_s:g} s; missing: {named}"
        )
        comm.give_up(text, missing)
        raise CollectiveTimeout(missing, f"{text}\n{stacks}")

    def mismatch(self, rank: int, other: str, stacks: str = "") -> MismatchedCall:
        """The error to raise when rank `rank` called `other` instead of our call. Tells the others."""
        comm = self.comm
        text = f"members of {comm.name} call different operations: rank {comm.rank} called {self.call}, rank {rank} called {other}"
        comm.give_up(text, ())
        return MismatchedCall(f"{text}\n{stacks}" if stacks else text)

    def _blame(self, lost: dict[int, Loss]) -> tuple[list[int], str]:
        """Those who went by themselves, rather than those who went because of them."""
        members = self.comm.members
        own = {r: loss for r, loss in lost.items() if not loss.causes or members[self.comm.rank] in loss.causes}
        own = {r: loss for r, loss in own.items() if not loss.in_good_order} or own
        blamed: set[int] = set()
        told: set[int] = set()
        for r, loss in lost.items():  # in the order in which we heard of them
            causes = {members.index(m) for m in loss.causes if m in members}
            if not causes <= told:  # else it gave up because of one that had given up before: no cause, but a consequence
                blamed |= causes
            told.add(r)
        shown = own or lost
        return sorted(own or blamed or lost), "; ".join(f"rank {r} {loss.reason}" for r, loss in shown.items())

    def _shown(self, rank: int, report: Report | None) -> str:
        if report is None:
            return f"--- rank {rank}: no answer within {REPORT_WAIT_S:g} s"
        doing = report.doing.get(self.comm.name)
        now = f"call {doing.seq}, {doing.call}" if doing else "no call yet"
        return f"--- rank {rank}: newest collective of this group: {now}\n{report.stack}"
