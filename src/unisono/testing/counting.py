"""A wrapper that counts what a member sends, around any communicator: for tests of an algorithm's cost."""
# ruff: noqa: ARG002 -- the wrapped communicator watches its calls itself

from __future__ import annotations

from typing import Any

from torch import Tensor

from unisono.comm.base import Communicator, Envelope, Group, Op, Watch
from unisono.comm.driver import Work


class Counting(Communicator):
    """Does what the wrapped communicator does and records every message sent (not what collectives send underneath)."""

    def __init__(self, inner: Communicator) -> None:
        group = Group(inner.name, inner.rank, inner.members, inner.ranks)
        self.engine = inner.engine
        super().__init__(group, inner.control, inner.device, inner.time_limit_s)
        self.inner = inner
        self.sends: list[tuple[int, int]] = []
        """(destination, bytes) of every message, in order."""

    @property
    def bytes_sent(self) -> int:
        return sum(num_bytes for _, num_bytes in self.sends)

    def _start_send(self, buf: Tensor, dest: int, tag: int, watch: Watch) -> Work[None]:
        self.sends.append((dest, buf.nbytes))
        return self.inner.start_send(buf, dest, tag)

    def _start_recv(self, buf: Tensor, source: int, tag: int, watch: Watch) -> Work[Envelope]:
        return self.inner.start_recv(buf, source, tag)

    def _allreduce(self, bufs: list[Tensor], op: Op, watch: Watch) -> None:
        self.inner.allreduce(bufs, op)

    def _broadcast(self, bufs: list[Tensor], root: int, watch: Watch) -> None:
        self.inner.broadcast(bufs, root)

    def _allgather(self, out: Tensor, buf: Tensor, counts: list[int], watch: Watch) -> None:
        self.inner.allgather(out, buf, counts)

    def _reduce_scatter(self, out: Tensor, buf: Tensor, counts: list[int], op: Op, watch: Watch) -> None:
        self.inner.reduce_scatter(out, buf, counts, op)

    def _alltoall(self, out: Tensor, buf: Tensor, out_counts: list[int], in_counts: list[int], watch: Watch) -> None:
        self.inner.alltoall(out, buf, out_counts, in_counts)

    def _barrier(self, watch: Watch) -> None:
        self.inner.barrier(watch.limit_s)

    def _exchange(self, key: str, obj: Any, watch: Watch) -> list[Any]:
        return self.inner.allgather_object(obj)

    def _subgroup(self, group: Group) -> Communicator:
        return Counting(self.inner._subgroup(group))

    def _close(self) -> None:
        self.inner.close()
