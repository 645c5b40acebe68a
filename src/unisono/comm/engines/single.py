"""One process alone: every collective is exact and costs nothing, so that programs need no special case for one worker."""
# ruff: noqa: ARG002 -- the interface gives the arguments; one member alone needs few of them

from __future__ import annotations

import secrets
from collections import defaultdict, deque
from collections.abc import Sequence
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from unisono.comm.base import Call, Communicator, Envelope, Group, Op, Watch
from unisono.comm.control_plane.control import Control, Report
from unisono.comm.control_plane.job_pass import Pass
from unisono.comm.control_plane.plain import decode, encode
from unisono.comm.driver import FinishedWork, Work
from unisono.errors import CommError


class SoloControl(Control):
    """The control plane of a job of one process, without peers."""

    def __init__(self) -> None:
        super().__init__(0, 1, Pass(secrets.token_hex(16)))

    def exchange(self, key: str, members: Sequence[int], obj: Any, timeout_s: float) -> list[Any]:
        return [decode(encode(obj))]  # a copy, as from any other member

    def reports(self, members: Sequence[int], timeout_s: float) -> dict[int, Report]:
        return {self.rank: self.own_report()} if self.rank in members else {}

    def give_up(self, reason: str, causes: Sequence[int] = ()) -> None:
        pass

    def close(self) -> None:
        pass


class SingleCommunicator(Communicator):
    """The engine single: a group of one member, whatever the size of the job."""

    engine = "single"

    def __init__(self, group: Group, control: Control, device: torch.device, time_limit_s: float) -> None:
        super().__init__(group, control, device, time_limit_s)
        self._unread: defaultdict[int, deque[Tensor]] = defaultdict(deque)
        """Messages of this rank to itself that no receive was started for, by tag."""
        self._unanswered: defaultdict[int, deque[_Receive]] = defaultdict(deque)
        """Receives without a message, by tag."""

    def _allreduce(self, bufs: list[Tensor], op: Op, watch: Watch) -> None:
        pass

    def _broadcast(self, bufs: list[Tensor], root: int, watch: Watch) -> None:
        pass

    def _allgather(self, out: Tensor, buf: Tensor, counts: list[int], watch: Watch) -> None:
        out.copy_(buf)

    def _reduce_scatter(self, out: Tensor, buf: Tensor, counts: list[int], op: Op, watch: Watch) -> None:
        out.copy_(buf)

    def _alltoall(self, out: Tensor, buf: Tensor, out_counts: list[int], in_counts: list[int], watch: Watch) -> None:
        if out_counts != in_counts:
            mine = Call("alltoall", (), f"out_counts={out_counts}")
            self._raise_mismatch(mine, self.rank, f"alltoall(in_counts={in_counts})")
        out.copy_(buf)

    def _barrier(self, watch: Watch) -> None:
        pass

    def _start_send(self, buf: Tensor, dest: int, tag: int, watch: Watch) -> Work[None]:
        message = buf.clone()
        if self._unanswered[tag]:
            self._unanswered[tag].popleft().message = message
        else:
            self._unread[tag].append(message)
        return FinishedWork(None)

    def _start_recv(self, buf: Tensor, source: int, tag: int, watch: Watch) -> Work[Envelope]:
        receive = _Receive(buf, tag, watch)
        if self._unread[tag]:
            receive.message = self._unread[tag].popleft()
        else:
            self._unanswered[tag].append(receive)
        return receive

    def _subgroup(self, group: Group) -> Communicator:
        return SingleCommunicator(group, self.control, self.device, self.time_limit_s)

    def _close(self) -> None:
        self._unread.clear()
        self._unanswered.clear()


class _Receive(Work[Envelope]):
    """A receive of a message of this rank to itself: it was sent before the wait, or it will never be."""

    def __init__(self, buf: Tensor, tag: int, watch: Watch) -> None:
        self.message: Tensor | None = None
        self._buf = buf
        self._tag = tag
        self._watch = watch
        self._taken = False

    def done(self) -> bool:
        return self.message is not None or monotonic() > self._watch.deadline

    def wait(self, timeout_s: float | None = None) -> Envelope:
        if self.message is None:
            raise CommError(
                f"{self._watch.call} on the only rank of {self._watch.comm.name} can never finish: "
                f"this rank has sent itself no message with tag {self._tag}; send before receiving"
            )
        if not self._taken:
            if (self.message.dtype, self.message.numel()) != (self._buf.dtype, self._buf.numel()):
                sent = Call("send", (self.message,), f"dest=0, tag={self._tag}")
                raise self._watch.mismatch(0, str(sent))
            self._buf.copy_(self.message)
            self._taken = True
        return Envelope(0, self._tag)
