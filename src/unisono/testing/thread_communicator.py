"""Ranks as threads of one process, for tests: every call of the interface, no process to start.

Members meet in a collective: each gives its part, and one of them does the work for all, in rank order. Calls that
differ are seen as soon as the second of them arrives. Messages are copied when they are sent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, TypeVar

import torch
from torch import Tensor

from unisono.comm.arithmetic import reduce_parts
from unisono.comm.base import ANY, Call, Communicator, Envelope, Group, Op, Watch
from unisono.comm.control_plane.plain import decode, encode
from unisono.comm.driver import FinishedWork, Work, not_done
from unisono.errors import CommError, MismatchedCall, PeerLost
from unisono.testing.thread_control import SLICE_S, ThreadControl, ThreadJob

T = TypeVar("T")


def run_threads(size: int, body: Callable[[Communicator], T], time_limit_s: float = 60.0) -> list[T]:
    """Local, blocking: run `body` on `size` ranks and return its results by rank.

    When a rank raises, the others get `PeerLost` from what they wait for; once all have ended, the first exception that is
    not such a consequence is raised.
    """
    job = ThreadJob(size)
    groups = _Groups(job)
    members = tuple(range(size))
    results: dict[int, T] = {}
    failures: list[BaseException] = []

    def main(rank: int) -> None:
        control = job.controls[rank]
        control.thread = threading.get_ident()
        comm = ThreadCommunicator(Group("world", rank, members, members), control, time_limit_s, groups)
        try:
            results[rank] = body(comm)
        except BaseException as error:  # noqa: BLE001 -- raised again by the caller's thread
            failures.append(error)
            comm.abort(f"raised {type(error).__name__}: {error}")
        finally:
            comm.close()
            control.close()

    threads = [threading.Thread(target=main, args=(rank,), name=f"rank {rank}", daemon=True) for rank in members]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:  # an interrupt must not leave ranks that wait for each other
        for control in job.controls:
            control.give_up("was interrupted")
        raise
    if failures:
        causes = [error for error in failures if not isinstance(error, PeerLost)]
        raise (causes or failures)[0]
    return [results[rank] for rank in members]


class ThreadCommunicator(Communicator):
    """One rank's side of a group of threads."""

    engine = "threads"

    def __init__(self, group: Group, control: ThreadControl, time_limit_s: float, groups: _Groups) -> None:
        super().__init__(group, control, torch.device("cpu"), time_limit_s)
        self._thread_control = control
        self._groups = groups
        self._group = groups.enter(group.name, self.size)
        self._num_meetings = 0

    # ---- collectives -----------------------------------------------------------------------------------------------

    def _allreduce(self, bufs: list[Tensor], op: Op, watch: Watch) -> None:
        """Reduces the buffers of all ranks in the order of ranks, and copies the result into each."""

        def act(parts: list[list[Tensor]]) -> None:
            for same in zip(*parts, strict=True):
                total = reduce_parts(same, op)
                for buf in same:
                    buf.copy_(total)

        self._meet(watch, bufs, act)

    def _broadcast(self, bufs: list[Tensor], root: int, watch: Watch) -> None:
        """Copies the root's buffers into those of all other ranks."""

        def act(parts: list[list[Tensor]]) -> None:
            for part in parts:
                for buf, source in zip(part, parts[root], strict=True):
                    if buf is not source:
                        buf.copy_(source)

        self._meet(watch, bufs, act)

    def _allgather(self, out: Tensor, buf: Tensor, counts: list[int], watch: Watch) -> None:  # noqa: ARG002 -- part of the call
        """Copies the concatenated parts of all ranks into every `out`."""

        def act(parts: list[tuple[Tensor, Tensor]]) -> None:
            everything = torch.cat([held for _, held in parts])
            for target, _ in parts:
                target.copy_(everything)

        self._meet(watch, (out, buf), act)

    def _reduce_scatter(self, out: Tensor, buf: Tensor, counts: list[int], op: Op, watch: Watch) -> None:
        """Reduces the buffers of all ranks; each rank gets its piece in `out`."""

        def act(parts: list[tuple[Tensor, Tensor]]) -> None:
            total = reduce_parts([held for _, held in parts], op)
            for (target, _), piece in zip(parts, total.split_with_sizes(counts), strict=True):
                target.copy_(piece)

        self._meet(watch, (out, buf), act)

    def _alltoall(self, out: Tensor, buf: Tensor, out_counts: list[int], in_counts: list[int], watch: Watch) -> None:
        """Sends piece r of `buf` to rank r; `out` receives the pieces of all ranks in order."""
        pieces = tuple(piece.clone() for piece in buf.split_with_sizes(in_counts))  # `out` may lie in `buf`
        self._meet(watch, (out.split_with_sizes(out_counts), pieces), _deal)

    def _barrier(self, watch: Watch) -> None:
        self._meet(watch, None, lambda _: None)

    def _exchange(self, key: str, obj: Any, watch: Watch) -> list[Any]:  # noqa: ARG002 -- the meeting has a number
        """Returns the objects of all ranks, by rank, as copies."""
        everybody = self._meet(watch, encode(obj), lambda parts: parts)
        return [decode(part) for part in everybody]

    # ---- messages --------------------------------------------------------------------------------------------------

    def _start_send(self, buf: Tensor, dest: int, tag: int, watch: Watch) -> Work[None]:
        """Puts a copy of the buffer into the box of the receiver; done at once."""
        message = _Message(self.rank, tag, buf.clone())
        with self._groups.changed:
            watch.poll()
            self._group.boxes[dest].put(message)
            self._groups.changed.notify_all()
        return FinishedWork(None)

    def _start_recv(self, buf: Tensor, source: int, tag: int, watch: Watch) -> Work[Envelope]:
        """Registers a receive in the box of this rank and returns it, to be waited for."""
        receive = _Receive(buf, source, tag, watch, self._groups.changed)
        with self._groups.changed:
            self._group.boxes[self.rank].take(receive)
        return receive

    # ---- life ------------------------------------------------------------------------------------------------------

    def _subgroup(self, group: Group) -> Communicator:
        return ThreadCommunicator(group, self._thread_control, self.time_limit_s, self._groups)

    def _close(self) -> None:
        """Leaves the group; the last member removes it."""
        self._groups.leave(self.name, self.rank)

    def _meet(self, watch: Watch, part: Any, act: Callable[[list[Any]], T]) -> T:
        """Collective, blocking: calls `act` once on the parts of all ranks, while all others wait for it; returns its result."""
        self._num_meetings += 1
        changed = self._groups.changed
        with changed:
            meeting = self._group.meetings.setdefault(self._num_meetings, _Collective())
            meeting.calls[self.rank] = str(watch.call)
            self._refuse_if_different(meeting, watch.call)
            watch.poll()  # a member that gave up may have left its part behind
            meeting.parts[self.rank] = part
            changed.notify_all()
            while len(meeting.parts) < self.size:
                changed.wait(SLICE_S)
                self._refuse_if_different(meeting, watch.call)
                if len(meeting.parts) < self.size:
                    watch.poll()
            acting = self._group.meetings.pop(self._num_meetings, None) is not None
            while not acting and not meeting.done:
                changed.wait(SLICE_S)  # it is only arithmetic now
        if acting:
            meeting.do(act, self.size)
            with changed:
                meeting.done = True
                changed.notify_all()
        if meeting.error is not None:
            raise meeting.error
        result: T = meeting.result
        return result

    def _refuse_if_different(self, meeting: _Collective, call: Call) -> None:
        """Raises if another member has come to this meeting with a different call."""
        mine = str(call)
        for rank, other in meeting.calls.items():
            if other != mine:
                self._raise_mismatch(call, rank, other)


class _Collective:
    """One collective of one group."""

    def __init__(self) -> None:
        self.calls: dict[int, str] = {}
        self.parts: dict[int, Any] = {}
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None

    def do(self, act: Callable[[list[Any]], Any], size: int) -> None:
        """Calls `act` on the parts of all ranks; keeps its result, or its error for every member."""
        try:
            self.result = act([self.parts[rank] for rank in range(size)])
        except BaseException as error:  # noqa: BLE001 -- raised again on every member
            self.error = error


class _Message:
    def __init__(self, source: int, tag: int, data: Tensor) -> None:
        self.source = source
        self.tag = tag
        self.data = data


class _Receive(Work[Envelope]):
    """A started receive; the message is copied into the buffer by `wait`."""

    def __init__(self, buf: Tensor, source: int, tag: int, watch: Watch, changed: threading.Condition) -> None:
        self.source = source
        self.tag = tag
        self.message: _Message | None = None
        self._buf = buf
        self._watch = watch
        self._changed = changed
        self._envelope: Envelope | None = None
        self._error: CommError | None = None

    def done(self) -> bool:
        if self.message is None and self._error is None:
            try:
                self._watch.poll()
            except CommError as error:
                self._error = error
        return self.message is not None or self._error is not None

    def wait(self, timeout_s: float | None = None) -> Envelope:
        if self._envelope is None:
            self._envelope = self._copy_message(self._await_message(timeout_s))
        return self._envelope

    def _await_message(self, timeout_s: float | None) -> _Message:
        """Waits for the message and returns it; raises where time is up or the receive has failed."""
        until = None if timeout_s is None else monotonic() + timeout_s
        with self._changed:
            while self.message is None:
                if self._error is not None:
                    raise self._error
                if until is not None and monotonic() > until:
                    raise not_done(self._watch.call, timeout_s)
                self._watch.poll()
                self._changed.wait(SLICE_S if until is None else min(SLICE_S, max(0.0, until - monotonic())))
            return self.message

    def _copy_message(self, message: _Message) -> Envelope:
        """Copies the message into the buffer; returns its envelope; raises if dtype or size differ."""
        data, comm = message.data, self._watch.comm
        if (data.dtype, data.numel()) != (self._buf.dtype, self._buf.numel()):
            sent = Call("send", (data,), f"dest={comm.rank}, tag={message.tag}")
            raise self._watch.mismatch(message.source, str(sent))
        self._buf.copy_(data)
        return Envelope(message.source, message.tag)


class _Box:
    """The messages to one member: either messages wait here for a receive or receives for a message, never a fitting pair."""

    def __init__(self) -> None:
        self._messages: list[_Message] = []
        self._receives: list[_Receive] = []

    def put(self, message: _Message) -> None:
        """Gives a message to the first receive that it fits, else keeps it."""
        for index, receive in enumerate(self._receives):
            if _fit(receive, message):
                self._receives.pop(index).message = message
                return
        self._messages.append(message)

    def take(self, receive: _Receive) -> None:
        """Gives a receive the first message that fits, else keeps the receive."""
        for index, message in enumerate(self._messages):
            if _fit(receive, message):
                receive.message = self._messages.pop(index)
                return
        self._receives.append(receive)


class _GroupState:
    """The shared state of the members of one group."""

    def __init__(self, size: int) -> None:
        self.meetings: dict[int, _Collective] = {}
        self.boxes = [_Box() for _ in range(size)]
        self.inside = set(range(size))


class _Groups:
    """The state of all groups, by name, from the arrival of a group's first member to the leaving of its last."""

    def __init__(self, job: ThreadJob) -> None:
        self.changed = job.changed
        self._by_name: dict[str, _GroupState] = {}

    def enter(self, name: str, size: int) -> _GroupState:
        """Returns the state that the members of a group share, made by the first of them."""
        with self.changed:
            return self._by_name.setdefault(name, _GroupState(size))

    def leave(self, name: str, rank: int) -> None:
        """Takes a member out of a group, and removes the group after its last member."""
        with self.changed:
            state = self._by_name.get(name)
            if state is not None:
                state.inside.discard(rank)
                if not state.inside:
                    del self._by_name[name]


def _fit(receive: _Receive, message: _Message) -> bool:
    """Whether a message has the source and the tag that a receive wants."""
    return receive.source in (ANY, message.source) and receive.tag == message.tag


def _deal(parts: Sequence[tuple[Sequence[Tensor], Sequence[Tensor]]]) -> None:
    """Piece r of member s goes to place s of member r, if both agree on its size."""
    for source, (_, pieces) in enumerate(parts):
        for dest, piece in enumerate(pieces):
            place = parts[dest][0][source]
            if place.numel() != piece.numel():
                raise MismatchedCall(
                    f"alltoall: rank {source} has in_counts[{dest}] = {piece.numel()}, "
                    f"but rank {dest} has out_counts[{source}] = {place.numel()}"
                )
            place.copy_(piece)
