"""The Communicator, which every engine implements: a fixed, ordered group of processes that move contiguous tensors.

This file holds what is the same for all engines: the interface, the order of calls, splitting, closing. An engine adds the methods
whose names begin with an underscore.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor

from unisono.comm.arguments import (
    Buffers,
    check_no_overlap,
    check_rank,
    check_same_type,
    check_tag,
    checked_counts,
    checked_parts,
    flat_views,
)
from unisono.comm.calls import ANY, DTYPES, MAX, MIN, SUM, Call, Envelope, Group, Op, even_slices
from unisono.comm.control_plane.control import Control
from unisono.comm.driver import HelperThread, Work
from unisono.comm.watch import Watch
from unisono.errors import CollectiveTimeout, CommError, PeerLost

__all__ = [
    "ANY",
    "Buffers",
    "Call",
    "Communicator",
    "DTYPES",
    "Envelope",
    "Group",
    "MAX",
    "MIN",
    "Op",
    "Reducer",
    "SUM",
    "Watch",
    "Work",
    "even_slices",
]

T = TypeVar("T")
_MOST_REDUCTIONS = 1024
Reducer = Callable[[Sequence[Tensor], Op], None]
"""Function that reduces flat buffers over the members, in place, as one grouped operation."""


class Communicator(ABC):
    """A fixed, ordered group of processes. One thread at a time on one communicator; members make the same collective calls
    in the same order, where a started call counts from its start. After a failed call it cannot be used any more (`is_spent`)."""

    engine: str
    """Name that users type for the engine."""

    def __init__(self, group: Group, control: Control, device: torch.device, time_limit_s: float) -> None:
        self.name = group.name
        self.rank = group.rank
        self.size = len(group.members)
        self.ranks = group.ranks
        self.device = device
        self.time_limit_s = time_limit_s
        self.members = group.members
        self.control = control
        self._seq = 0
        self._num_exchanges = 0
        self._unusable: str | None = None
        self._reductions: dict[object, Call] = {}
        self._driver = HelperThread(f"unisono-{group.name}")
        self._reduce_with: Reducer | None = None
        self._compares = True
        self._dependents: list[Communicator] = []
        self._equip: Callable[[Communicator], object] | None = None
        self.on_behalf: Watch | None = None
        self._owns_control = False
        self.origin = f"{self.size} process{'es' if self.size > 1 else ''}, engine {self.engine}"
        """A description of the group and its engine for people; `connect` replaces it by a more detailed one."""

    @property
    def is_spent(self) -> bool:
        """Local: whether it was closed, or a call on it has failed."""
        return self._unusable is not None

    # ---- what users call -------------------------------------------------------------------------------------------

    def empty(self, shape: int | Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """Local: returns an uninitialised tensor, already mapped by the peers where the engine can map memory."""
        return torch.empty(shape, dtype=dtype, device=self.device)

    def share(self, bufs: Sequence[Tensor]) -> list[list[Tensor]] | None:  # noqa: ARG002 -- of engines that can
        """Collective, blocking, slow: returns the buffers of all members, by rank, in memory that all members read and write; None
        where the engine shares none. The member's own are `bufs` themselves where they are from `empty`, else copies; numbers and
        sizes may differ between members. Writes are seen by the others after a `barrier`. The caller keeps its own while others use
        them.
        """
        return None

    def allreduce(self, bufs: Buffers, op: Op = SUM) -> None:
        """Collective, blocking: reduces each buffer over the members, in place. A list is one grouped operation."""
        tensors = flat_views(bufs, self.device, self.engine)
        call = self._reduction_call(tensors, op)
        if self._driver.busy:
            self._start(call, lambda watch: self._reduce(tensors, op, watch)).wait()
        else:  # in few steps: after a large vector the caches are cold, and every step of Python costs a microsecond
            self._reduce(tensors, op, self._begin(call))

    def start_allreduce(self, bufs: Buffers, op: Op = SUM) -> Work[None]:
        """Collective, not blocking: as `allreduce`; the buffers belong to the communicator until `wait` returns."""
        tensors = flat_views(bufs, self.device, self.engine)
        return self._start(self._reduction_call(tensors, op), lambda watch: self._reduce(tensors, op, watch))

    def broadcast(self, bufs: Buffers, root: int = 0) -> None:
        """Collective, blocking: copies the root's values to all members, in place. A list is one grouped operation."""
        tensors, call = self._broadcast_call(bufs, root)
        self._run(call, lambda watch: self._broadcast(tensors, root, watch))

    def start_broadcast(self, bufs: Buffers, root: int = 0) -> Work[None]:
        """Collective, not blocking: as `broadcast`."""
        tensors, call = self._broadcast_call(bufs, root)
        return self._start(call, lambda watch: self._broadcast(tensors, root, watch))

    def allgather(self, out: Tensor, buf: Tensor, counts: Sequence[int] | None = None) -> None:
        """Collective, blocking: gathers every member's `buf` in `out`, one after another. `counts` are elements by rank when
        uneven."""
        call, args = self._gather_call("allgather", out, buf, counts)
        self._run(call, lambda watch: self._allgather(*args, watch))

    def start_allgather(self, out: Tensor, buf: Tensor, counts: Sequence[int] | None = None) -> Work[None]:
        """Collective, not blocking: as `allgather`."""
        call, args = self._gather_call("allgather", out, buf, counts)
        return self._start(call, lambda watch: self._allgather(*args, watch))

    def reduce_scatter(self, out: Tensor, buf: Tensor, counts: Sequence[int] | None = None, op: Op = SUM) -> None:
        """Collective, blocking: reduces all `buf`; member r gets part r of the result in `out`; `buf` is not changed."""
        call, args = self._gather_call("reduce_scatter", out, buf, counts, op)
        self._run(call, lambda watch: self._reduce_scatter(*args, op, watch))

    def start_reduce_scatter(self, out: Tensor, buf: Tensor, counts: Sequence[int] | None = None, op: Op = SUM) -> Work[None]:
        """Collective, not blocking: as `reduce_scatter`."""
        call, args = self._gather_call("reduce_scatter", out, buf, counts, op)
        return self._start(call, lambda watch: self._reduce_scatter(*args, op, watch))

    def alltoall(
        self,
        out: Tensor,
        buf: Tensor,
        out_counts: Sequence[int] | None = None,
        in_counts: Sequence[int] | None = None,
    ) -> None:
        """Collective, blocking: sends part r of `buf` (`in_counts[r]` elements) to member r; `out_counts` are the elements from
        each member."""
        call, args = self._alltoall_call(out, buf, out_counts, in_counts)
        self._run(call, lambda watch: self._alltoall(*args, watch))

    def start_alltoall(
        self,
        out: Tensor,
        buf: Tensor,
        out_counts: Sequence[int] | None = None,
        in_counts: Sequence[int] | None = None,
    ) -> Work[None]:
        """Collective, not blocking: as `alltoall`."""
        call, args = self._alltoall_call(out, buf, out_counts, in_counts)
        return self._start(call, lambda watch: self._alltoall(*args, watch))

    def send(self, buf: Tensor, dest: int, tag: int = 0) -> None:
        """Local, blocking until `buf` may be reused, which may be when it was received: sends a message. Messages of a pair and
        tag keep order."""
        self.start_send(buf, dest, tag).wait()

    def start_send(self, buf: Tensor, dest: int, tag: int = 0) -> Work[None]:
        """Local, not blocking: as `send`."""
        (tensor,) = self._checked(buf)
        check_rank(dest, self.size, "dest", self.name)
        self._check_usable()
        watch = Watch(self, Call("send", (tensor,), f"dest={dest}, tag={tag}"), self.time_limit_s, (dest,))
        return self._start_send(tensor, dest, check_tag(tag), watch)

    def recv(self, buf: Tensor, source: int = ANY, tag: int = 0) -> Envelope:
        """Local, blocking: receives the next message of that source and tag; from ANY source first come, first served."""
        return self.start_recv(buf, source, tag).wait()

    def start_recv(self, buf: Tensor, source: int = ANY, tag: int = 0) -> Work[Envelope]:
        """Local, not blocking: as `recv`; receives that could take the same message take messages in the order of their start."""
        (tensor,) = self._checked(buf)
        if source != ANY:
            check_rank(source, self.size, "source", self.name)
        self._check_usable()
        shown = "ANY" if source == ANY else source
        sources = tuple(r for r in range(self.size) if r != self.rank) if source == ANY else (source,)
        watch = Watch(self, Call("recv", (tensor,), f"source={shown}, tag={tag}"), self.time_limit_s, sources)
        return self._start_recv(tensor, source, check_tag(tag), watch)

    def allgather_object(self, obj: Any, timeout_s: float | None = None) -> list[Any]:
        """Collective, blocking, slow: returns the plain data (None, bool, int, float, str, bytes, list, tuple, dict) of all
        members, by rank. `timeout_s` replaces the time limit of the communicator."""
        self._num_exchanges += 1
        key = f"{self.name}#{self._num_exchanges}"
        return self._run(Call("allgather_object"), lambda watch: self._exchange(key, obj, watch), timeout_s)

    def broadcast_object(self, obj: Any, root: int = 0, timeout_s: float | None = None) -> Any:
        """Collective, blocking, slow: returns the root's plain data; `timeout_s` as in `allgather_object`."""
        check_rank(root, self.size, "root", self.name)
        return self.allgather_object(obj if self.rank == root else None, timeout_s)[root]

    def barrier(self, timeout_s: float | None = None) -> None:
        """Collective, blocking: returns when all members have called it."""
        limit_s = self.time_limit_s if timeout_s is None else timeout_s
        self._run(Call("barrier"), self._barrier, limit_s)

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Collective, blocking: makes a group for each color, ordered by (key, rank). A color of None joins no group and returns
        None. The new group is equipped as this one is: the all-reduce algorithm that was asked for holds there too."""
        answers = self.allgather_object((color, key))
        if color is None:
            return None
        chosen = sorted((k, r) for r, (c, k) in enumerate(answers) if c == color)
        ranks = tuple(r for _, r in chosen)
        group = Group(
            name=f"{self.name}/{self._num_exchanges}.{color}",
            rank=ranks.index(self.rank),
            members=tuple(self.members[r] for r in ranks),
            ranks=ranks,
        )
        return self._equipped(self._subgroup(group))

    def duplicate(self) -> Communicator:
        """Collective, blocking: makes an independent group of the same members, for another layer's messages; equipped as by
        `split`."""
        copy = self.split(0, self.rank)
        assert copy is not None
        return copy

    def abort(self, reason: str) -> None:
        """Local: notifies the others that this rank gives up, so that they raise `PeerLost` with the reason at once."""
        self._unusable = reason
        self.control.give_up(reason)

    def close(self) -> None:
        """Local: releases what the engine holds. Idempotent; buffers from `empty` stay valid."""
        for dependent in self._dependents:
            dependent.close()
        self._dependents.clear()
        self._driver.close()
        if self._unusable is None:
            self._unusable = "it was closed"
        for call in self._reductions.values():
            call.plan = None  # it may hold memory, and the control plane remembers the newest call
        self._reductions.clear()
        self._close()
        if self._owns_control:
            self.control.close()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None and self._unusable is None:
            self.abort(f"{type(error).__name__}: {error}")
        self.close()

    def own_control(self) -> None:
        """Local: lets `close` of this communicator also leave the job's control plane (for the communicator of the whole job)."""
        self._owns_control = True

    def reduce_with(self, reducer: Reducer, *owned: Communicator, refuses: bool = False) -> None:
        """Local: makes `reducer(bufs, op)` the all-reduce of this communicator; `owned` are closed with it. `refuses`: it sees
        calls that differ between members by itself, so that they need not be compared beside it."""
        self._reduce_with = reducer
        self._compares = not refuses
        self._dependents.extend(owned)

    def equip_groups(self, equip: Callable[[Communicator], object]) -> None:
        """Local: from now on `equip(group)`, collective over its members, prepares every group that is split from this one.
        Until it calls `equip_groups` on the group, what it splits off there is left as the engine makes it."""
        self._equip = equip

    # ---- what an engine adds ---------------------------------------------------------------------------------------

    @abstractmethod
    def _allreduce(self, bufs: list[Tensor], op: Op, watch: Watch) -> None: ...

    @abstractmethod
    def _broadcast(self, bufs: list[Tensor], root: int, watch: Watch) -> None: ...

    @abstractmethod
    def _allgather(self, out: Tensor, buf: Tensor, counts: list[int], watch: Watch) -> None: ...

    @abstractmethod
    def _reduce_scatter(self, out: Tensor, buf: Tensor, counts: list[int], op: Op, watch: Watch) -> None: ...

    @abstractmethod
    def _alltoall(self, out: Tensor, buf: Tensor, out_counts: list[int], in_counts: list[int], watch: Watch) -> None: ...

    @abstractmethod
    def _start_send(self, buf: Tensor, dest: int, tag: int, watch: Watch) -> Work[None]: ...

    @abstractmethod
    def _start_recv(self, buf: Tensor, source: int, tag: int, watch: Watch) -> Work[Envelope]: ...

    @abstractmethod
    def _subgroup(self, group: Group) -> Communicator:
        """Collective over the members of `group`."""

    @abstractmethod
    def _close(self) -> None: ...

    def _compare(self, watch: Watch) -> Callable[[], None]:
        """Starts to compare the calls of the members, for an all-reduce that sees only bytes. Calling the result ends the check."""
        self._barrier(watch)  # which compares what the watch says
        return lambda: None

    def _barrier(self, watch: Watch) -> None:
        self._allreduce([torch.zeros(1, dtype=torch.int32, device=self.device)], SUM, watch)

    # ---- how calls run ---------------------------------------------------------------------------------------------

    def _run(self, call: Call, body: Callable[[Watch], T], limit_s: float | None = None) -> T:
        if self._driver.busy:  # started calls come first: the order of calls is the same on all members
            return self._start(call, body, limit_s).wait()
        return self._perform(call, body, limit_s)

    def _start(self, call: Call, body: Callable[[Watch], T], limit_s: float | None = None) -> Work[T]:
        self._check_usable()
        return self._driver.submit(lambda: self._perform(call, body, limit_s))

    def _perform(self, call: Call, body: Callable[[Watch], T], limit_s: float | None = None) -> T:
        watch = self._begin(call, limit_s)
        try:
            return body(watch)
        except BaseException as error:
            self._fail(error, call)
            raise

    def _begin(self, call: Call, limit_s: float | None = None) -> Watch:
        if self._unusable is not None:
            self._check_usable()
        self._seq += 1
        self.control.current_calls[self.name] = (self._seq, call)
        return Watch(self, call, self.time_limit_s if limit_s is None else limit_s)

    def _fail(self, error: BaseException, call: Call) -> None:
        if self._unusable is None:
            self.give_up(f"{call} failed: {type(error).__name__}: {error}", ())

    def _reduce(self, bufs: list[Tensor], op: Op, watch: Watch) -> None:
        try:
            if self._reduce_with is None:
                self._allreduce(bufs, op, watch)
                return
            for dependent in self._dependents:
                dependent.on_behalf = watch
            compared = self._compare(watch) if self._compares else lambda: None
            self._reduce_with(bufs, op)
            compared()
            for dependent in self._dependents:
                dependent.on_behalf = None
        except BaseException as error:
            self._fail(error, watch.call)
            raise

    def _equipped(self, group: Communicator) -> Communicator:
        if self._equip is not None:
            try:
                self._equip(group)
            except BaseException:
                group.close()
                raise
        return group

    def _exchange(self, key: str, obj: Any, watch: Watch) -> list[Any]:
        try:
            return self.control.exchange(key, self.members, obj, watch.limit_s)
        except PeerLost as error:
            watch.raise_if_lost()
            ranks = [self.members.index(member) for member in error.ranks if member in self.members]
            raise PeerLost(ranks, f"{watch.call} on rank {self.rank} of {self.name} cannot finish: {error}") from error
        except CollectiveTimeout:
            watch.raise_timeout()
            raise

    def give_up(self, reason: str, ranks: Sequence[int]) -> None:
        """Local: makes this communicator unusable, and notifies the others of the reason before they notice the loss."""
        self._unusable = reason
        self.control.give_up(f"gave up: {reason}", [self.members[r] for r in ranks])

    def _raise_mismatch(self, call: Call, rank: int, other: str) -> NoReturn:
        """Raises the error of rank `rank`, which called `other` instead of `call`, for engines that see the peers' calls at
        once."""
        raise Watch(self, call, self.time_limit_s).mismatch(rank, other)

    # ---- checking of arguments -------------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        if self._unusable is not None:
            raise CommError(f"communicator {self.name} cannot be used any more: {self._unusable}")

    def _checked(self, bufs: Buffers) -> list[Tensor]:
        return flat_views(bufs, self.device, self.engine)

    def _reduction_call(self, bufs: list[Tensor], op: Op) -> Call:
        """Returns the call of a reduction. Training reduces the same buffers in every step: their call is kept, with the
        engine's plan for it."""
        key = (op, *[(buf.data_ptr(), buf.numel(), buf.dtype) for buf in bufs])
        call = self._reductions.get(key)
        if call is None:
            if len(self._reductions) >= _MOST_REDUCTIONS:
                self._reductions.clear()
            check_no_overlap(bufs)
            call = self._reductions[key] = Call("allreduce", bufs, op)
        return call

    def _broadcast_call(self, bufs: Buffers, root: int) -> tuple[list[Tensor], Call]:
        check_rank(root, self.size, "root", self.name)
        tensors = self._checked(bufs)
        return tensors, Call("broadcast", tensors, f"root={root}")

    def _gather_call(
        self, kind: str, out: Tensor, buf: Tensor, counts: Sequence[int] | None, op: Op | None = None
    ) -> tuple[Call, tuple[Tensor, Tensor, list[int]]]:
        """`counts` divide the long side: `out` of an allgather, `buf` of a reduce_scatter."""
        out, buf = self._checked((out, buf))
        check_same_type(kind, out, buf)
        long, short = (out, buf) if kind == "allgather" else (buf, out)
        parts = checked_parts(kind, long, short, counts, self.rank, self.size)
        detail = f"counts={parts}" if op is None else f"counts={parts}, {op.value}"
        return Call(kind, (long,), detail), (out, buf, parts)

    def _alltoall_call(
        self, out: Tensor, buf: Tensor, out_counts: Sequence[int] | None, in_counts: Sequence[int] | None
    ) -> tuple[Call, tuple[Tensor, Tensor, list[int], list[int]]]:
        out, buf = self._checked((out, buf))
        dtype = check_same_type("alltoall", out, buf)
        outs = checked_counts("alltoall", out, out_counts, "out_counts", self.size)
        ins = checked_counts("alltoall", buf, in_counts, "in_counts", self.size)
        # Sizes may differ between members, so the call shows only what must be alike.
        return Call("alltoall", (), str(dtype).removeprefix("torch.")), (out, buf, outs, ins)
