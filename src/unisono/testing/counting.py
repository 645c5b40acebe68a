"""A wrapper around any communicator that counts what a member sends: for tests of an algorithm's cost and of what it leaves
open."""
# ruff: noqa: ARG002 -- the wrapped communicator watches its calls itself

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor

from unisono.comm.base import Call, Communicator, Envelope, Group, Op, Watch
from unisono.comm.driver import Work

T = TypeVar("T")


@dataclass
class Tally:
    """The counts of one member on a communicator and on all groups that were split from it."""

    num_bytes: float = 0.0
    """Bytes that it sent: in messages, and what collectives must send at the least (an all-reduce of B bytes over a ring of N
    members: 2 (N - 1) / N B)."""
    sends: list[Work[None]] = field(default_factory=list)
    num_received: int = 0
    """Messages that it waited for and got."""
    collectives: list[Work[Any]] = field(default_factory=list)
    """Collectives that were started and not waited for at once."""
    groups: list[Communicator] = field(default_factory=list)
    """Groups that were split off."""

    def open_operations(self) -> list[str]:
        """Local: describes the operations that were started and have not ended."""
        sends, collectives = (sum(not work.done() for work in works) for works in (self.sends, self.collectives))
        found = [f"{sends} messages that were sent and never awaited"] if sends else []
        found += [f"{collectives} started collectives that are not finished"] if collectives else []
        return found + [f"the group {group.name}, not closed" for group in self.groups if not group.is_spent]


class Counting(Communicator):
    """A communicator that passes every call on and counts every message sent (not what collectives send underneath)."""

    def __init__(self, inner: Communicator, tally: Tally | None = None) -> None:
        group = Group(inner.name, inner.rank, inner.members, inner.ranks)
        self.engine = inner.engine
        super().__init__(group, inner.control, inner.device, inner.time_limit_s)
        self.inner = inner
        self.tally = Tally() if tally is None else tally
        self.sends: list[tuple[int, int]] = []
        """(destination, bytes) of every message, in order."""

    @property
    def bytes_sent(self) -> int:
        """Bytes of all messages sent by this communicator; what collectives send underneath is not counted."""
        return sum(num_bytes for _, num_bytes in self.sends)

    def _start(self, call: Call, body: Callable[[Watch], T], limit_s: float | None = None) -> Work[T]:
        """Starts a collective and notes it in the tally."""
        work = super()._start(call, body, limit_s)
        self.tally.collectives.append(work)
        return work

    def _start_send(self, buf: Tensor, dest: int, tag: int, watch: Watch) -> Work[None]:
        """Passes the message on; counts its bytes and keeps its work."""
        self.sends.append((dest, buf.nbytes))
        self.tally.num_bytes += buf.nbytes
        self.tally.sends.append(self.inner.start_send(buf, dest, tag))
        return self.tally.sends[-1]

    def _start_recv(self, buf: Tensor, source: int, tag: int, watch: Watch) -> Work[Envelope]:
        """Passes the receive on; the message counts once it was waited for."""
        return _Receive(self.inner.start_recv(buf, source, tag), self.tally)

    def _allreduce(self, bufs: list[Tensor], op: Op, watch: Watch) -> None:
        """Passes the call on and counts the bytes that a ring must send for it: 2 (N - 1) / N times those of the buffers."""
        self.tally.num_bytes += 2 * self._others * sum(buf.nbytes for buf in bufs)
        self.inner.allreduce(bufs, op)

    def _broadcast(self, bufs: list[Tensor], root: int, watch: Watch) -> None:
        """Passes the call on; the root counts the bytes of its buffers once."""
        self.tally.num_bytes += sum(buf.nbytes for buf in bufs) * (root == self.rank)
        self.inner.broadcast(bufs, root)

    def _allgather(self, out: Tensor, buf: Tensor, counts: list[int], watch: Watch) -> None:
        """Passes the call on and counts the own part once for each other rank."""
        self.tally.num_bytes += buf.nbytes * (self.size - 1)
        self.inner.allgather(out, buf, counts)

    def _reduce_scatter(self, out: Tensor, buf: Tensor, counts: list[int], op: Op, watch: Watch) -> None:
        """Passes the call on and counts the share (N - 1) / N of the input."""
        self.tally.num_bytes += self._others * buf.nbytes
        self.inner.reduce_scatter(out, buf, counts, op)

    def _alltoall(self, out: Tensor, buf: Tensor, out_counts: list[int], in_counts: list[int], watch: Watch) -> None:
        """Passes the call on and counts what goes to other ranks."""
        self.tally.num_bytes += buf.nbytes - in_counts[self.rank] * buf.itemsize
        self.inner.alltoall(out, buf, out_counts, in_counts)

    def _barrier(self, watch: Watch) -> None:
        """Passes the call on, uncounted."""
        self.inner.barrier(watch.limit_s)

    def _exchange(self, key: str, obj: Any, watch: Watch) -> list[Any]:
        """Gathers the objects of all ranks, uncounted."""
        return self.inner.allgather_object(obj)

    def _subgroup(self, group: Group) -> Communicator:
        found = Counting(self.inner._subgroup(group), self.tally)
        self.tally.groups.append(found)
        return found

    def _close(self) -> None:
        """Closes the communicator inside."""
        self.inner.close()

    @property
    def _others(self) -> float:
        """The share (N - 1) / N of the data that belongs to the other ranks."""
        return (self.size - 1) / self.size


class _Receive(Work[Envelope]):
    """A started receive that counts the message when it was waited for."""

    def __init__(self, inner: Work[Envelope], tally: Tally) -> None:
        self._inner = inner
        self._tally: Tally | None = tally

    def done(self) -> bool:
        return self._inner.done()

    def wait(self, timeout_s: float | None = None) -> Envelope:
        found = self._inner.wait(timeout_s)
        if self._tally is not None:
            self._tally.num_received += 1
            self._tally = None
        return found
