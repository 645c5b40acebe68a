"""What every engine offers: a fixed, ordered group of processes that move contiguous tensors.

This file owns what is the same everywhere: checking of arguments, the order of calls, time limits, who is to blame, splitting.
An engine adds the methods whose names begin with an underscore.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from time import monotonic
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import Tensor

from unisono.comm.control import Control, Loss
from unisono.comm.driver import Driver, Work
from unisono.errors import CollectiveTimeout, CommError, MismatchedCall, PeerLost, UsageError, join_ranks

T = TypeVar("T")
Buffers = Tensor | Sequence[Tensor]
Reducer = Callable[[Tensor, "Op"], None]

ANY = -1
"""Any source, for `recv`."""

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
)
"""Types that every engine moves and reduces (an engine that lacks one casts it)."""

REPORT_WAIT_S = 3.0
"""How long a rank that gives up waits for the others to say what they are doing."""


class Op(Enum):
    SUM = "sum"
    MIN = "min"
    MAX = "max"


SUM, MIN, MAX = Op.SUM, Op.MIN, Op.MAX


@dataclass(frozen=True)
class Envelope:
    """Where a received message came from."""

    source: int
    tag: int


@dataclass(frozen=True)
class Group:
    """Who belongs to a communicator: `members` are ranks of the job, `ranks` are ranks of the parent group."""

    name: str
    rank: int
    members: tuple[int, ...]
    ranks: tuple[int, ...]


class Call:
    """One operation with what must be alike on all members. Its text is made only when somebody asks."""

    __slots__ = ("kind", "shapes", "detail")

    def __init__(self, kind: str, bufs: Sequence[Tensor] = (), detail: object = "") -> None:
        self.kind = kind
        self.shapes = [(buf.dtype, buf.numel()) for buf in bufs]
        self.detail = detail

    def __str__(self) -> str:
        bufs = " + ".join(f"{str(dtype).removeprefix('torch.')}[{numel}]" for dtype, numel in self.shapes)
        detail = self.detail.value if isinstance(self.detail, Op) else str(self.detail)
        return f"{self.kind}({', '.join(part for part in (bufs, detail) if part)})"


class Watch:
    """A running operation as its waiting loops see it: `poll` raises once a member is lost or the time is up."""

    __slots__ = ("comm", "call", "deadline", "limit_s", "sources")

    def __init__(self, comm: Communicator, call: Call, limit_s: float, sources: tuple[int, ...] = ()) -> None:
        self.comm = comm
        self.call = call
        self.limit_s = limit_s
        self.deadline = monotonic() + limit_s
        self.sources = sources
        """Ranks whose message is awaited (point-to-point); empty for a collective."""

    def poll(self) -> None:
        if self.comm._control.lost:
            self.comm._raise_if_lost(self.call, self.sources)
        if monotonic() > self.deadline:
            self.comm._raise_late(self.call, self.limit_s, self.sources)


class Communicator(ABC):
    """A fixed, ordered group of processes. One thread at a time on one communicator; members make the same collective calls
    in the same order, the started ones counted where they are started. A failed call leaves the communicator spent."""

    engine: str
    """Name that users type."""

    def __init__(self, group: Group, control: Control, device: torch.device, time_limit_s: float) -> None:
        self.name = group.name
        self.rank = group.rank
        self.size = len(group.members)
        self.ranks = group.ranks
        self.device = device
        self.time_limit_s = time_limit_s
        self._members = group.members
        self._control = control
        self._seq = 0
        self._num_exchanges = 0
        self._spent: str | None = None
        self._driver = Driver(f"unisono-{group.name}")
        self._reduce_with: Reducer | None = None
        self._dependents: list[Communicator] = []

    # ---- what users call -------------------------------------------------------------------------------------------

    def empty(self, shape: int | Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """Local: an uninitialised tensor, already mapped by the peers where the engine can."""
        return torch.empty(shape, dtype=dtype, device=self.device)

    def allreduce(self, bufs: Buffers, op: Op = SUM) -> None:
        """Collective, blocking: reduce each buffer over the members, in place. A list is one grouped operation."""
        tensors = self._checked(bufs)
        self._run(Call("allreduce", tensors, op), lambda watch: self._reduce(tensors, op, watch))

    def start_allreduce(self, bufs: Buffers, op: Op = SUM) -> Work[None]:
        """Collective, not blocking: as `allreduce`; the buffers belong to the communicator until `wait` returns."""
        tensors = self._checked(bufs)
        return self._start(Call("allreduce", tensors, op), lambda watch: self._reduce(tensors, op, watch))

    def broadcast(self, bufs: Buffers, root: int = 0) -> None:
        """Collective, blocking: the root's values to all, in place. A list is one grouped operation."""
        tensors, call = self._broadcast_call(bufs, root)
        self._run(call, lambda watch: self._broadcast(tensors, root, watch))

    def start_broadcast(self, bufs: Buffers, root: int = 0) -> Work[None]:
        """Collective, not blocking: as `broadcast`."""
        tensors, call = self._broadcast_call(bufs, root)
        return self._start(call, lambda watch: self._broadcast(tensors, root, watch))

    def allgather(self, out: Tensor, buf: Tensor, counts: Sequence[int] | None = None) -> None:
        """Collective, blocking: every member's `buf` one after another in `out`. `counts` are elements by rank when uneven."""
        call, args = self._gather_call("allgather", out, buf, counts)
        self._run(call, lambda watch: self._allgather(*args, watch))

    def start_allgather(self, out: Tensor, buf: Tensor, counts: Sequence[int] | None = None) -> Work[None]:
        """Collective, not blocking: as `allgather`."""
        call, args = self._gather_call("allgather", out, buf, counts)
        return self._start(call, lambda watch: self._allgather(*args, watch))

    def reduce_scatter(self, out: Tensor, buf: Tensor, counts: Sequence[int] | None = None, op: Op = SUM) -> None:
        """Collective, blocking: member r gets part r of the reduction of all `buf` in `out`; `buf` is left as it was."""
        call, args = self._gather_call("reduce_scatter", out, buf, counts, op)
        self._run(call, lambda watch: self._reduce_scatter(*args, op, watch))

    def start_reduce_scatter(
        self, out: Tensor, buf: Tensor, counts: Sequence[int] | None = None, op: Op = SUM
    ) -> Work[None]:
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
        """Collective, blocking: part r of `buf` (`in_counts[r]` elements) goes to member r, whose `out_counts` says where from."""
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
        """Local, blocking until `buf` may be reused, which may be when it was received. Messages of a pair and tag keep order."""
        self.start_send(buf, dest, tag).wait()

    def start_send(self, buf: Tensor, dest: int, tag: int = 0) -> Work[None]:
        """Local, not blocking: as `send`."""
        (tensor,) = self._checked(buf)
        self._check_rank(dest, "dest")
        self._check_usable()
        watch = Watch(self, Call("send", (tensor,), f"dest={dest}, tag={tag}"), self.time_limit_s, (dest,))
        return self._start_send(tensor, dest, _checked_tag(tag), watch)

    def recv(self, buf: Tensor, source: int = ANY, tag: int = 0) -> Envelope:
        """Local, blocking: the next message of that source and tag; from ANY source first come, first served."""
        return self.start_recv(buf, source, tag).wait()

    def start_recv(self, buf: Tensor, source: int = ANY, tag: int = 0) -> Work[Envelope]:
        """Local, not blocking: as `recv`; receives that could take the same message take messages in the order of their start."""
        (tensor,) = self._checked(buf)
        if source != ANY:
            self._check_rank(source, "source")
        self._check_usable()
        shown = "ANY" if source == ANY else source
        sources = tuple(r for r in range(self.size) if r != self.rank) if source == ANY else (source,)
        watch = Watch(self, Call("recv", (tensor,), f"source={shown}, tag={tag}"), self.time_limit_s, sources)
        return self._start_recv(tensor, source, _checked_tag(tag), watch)

    def allgather_object(self, obj: Any) -> list[Any]:
        """Collective, blocking, slow: everybody's plain data (None, bool, int, float, str, bytes, list, tuple, dict) by rank."""
        self._num_exchanges += 1
        key = f"{self.name}#{self._num_exchanges}"
        return self._run(Call("allgather_object"), lambda watch: self._exchange(key, obj, watch))

    def broadcast_object(self, obj: Any, root: int = 0) -> Any:
        """Collective, blocking, slow: the root's plain data."""
        self._check_rank(root, "root")
        return self.allgather_object(obj if self.rank == root else None)[root]

    def barrier(self, timeout_s: float | None = None) -> None:
        """Collective, blocking: returns when all members have called it."""
        limit_s = self.time_limit_s if timeout_s is None else timeout_s
        self._run(Call("barrier"), self._barrier, limit_s)

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Collective, blocking: a group for each color, ordered by (key, rank). A color of None joins no group and gives None."""
        answers = self.allgather_object((color, key))
        if color is None:
            return None
        chosen = sorted((k, r) for r, (c, k) in enumerate(answers) if c == color)
        ranks = tuple(r for _, r in chosen)
        group = Group(
            name=f"{self.name}/{self._num_exchanges}.{color}",
            rank=ranks.index(self.rank),
            members=tuple(self._members[r] for r in ranks),
            ranks=ranks,
        )
        return self._subgroup(group)

    def duplicate(self) -> Communicator:
        """Collective, blocking: the same members with a life of their own, for another layer's messages."""
        copy = self.split(0, self.rank)
        assert copy is not None
        return copy

    def abort(self, reason: str) -> None:
        """Local: tell the others that this rank gives up, so that they raise `PeerLost` with the reason at once."""
        self._spent = reason
        self._control.give_up(reason)

    def close(self) -> None:
        """Local: give back what the engine holds. Idempotent; buffers from `empty` stay valid."""
        for dependent in self._dependents:
            dependent.close()
        self._dependents.clear()
        self._driver.close()
        if self._spent is None:
            self._spent = "it was closed"
        self._close()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._spent is None:
            self.abort(f"{type(error).__name__}: {error}")
        self.close()

    def reduce_with(self, reducer: Reducer, *owned: Communicator) -> None:
        """Local: let `reducer(buf, op)` do the all-reduce of this communicator; `owned` are closed with it."""
        self._reduce_with = reducer
        self._dependents.extend(owned)

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
    def _alltoall(
        self, out: Tensor, buf: Tensor, out_counts: list[int], in_counts: list[int], watch: Watch
    ) -> None: ...

    @abstractmethod
    def _start_send(self, buf: Tensor, dest: int, tag: int, watch: Watch) -> Work[None]: ...

    @abstractmethod
    def _start_recv(self, buf: Tensor, source: int, tag: int, watch: Watch) -> Work[Envelope]: ...

    @abstractmethod
    def _subgroup(self, group: Group) -> Communicator:
        """Collective over the members of `group`."""

    @abstractmethod
    def _close(self) -> None: ...

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
        self._check_usable()
        self._seq += 1
        self._control.doing[self.name] = (self._seq, call)
        try:
            return body(Watch(self, call, self.time_limit_s if limit_s is None else limit_s))
        except BaseException as error:
            self._spend(error, call)
            raise

    def _spend(self, error: BaseException, call: Call) -> None:
        if self._spent is None:
            self._spent = f"{call} failed: {error}"

    def _reduce(self, bufs: list[Tensor], op: Op, watch: Watch) -> None:
        if self._reduce_with is None:
            self._allreduce(bufs, op, watch)
        else:
            for buf in bufs:
                self._reduce_with(buf, op)

    def _exchange(self, key: str, obj: Any, watch: Watch) -> list[Any]:
        try:
            return self._control.exchange(key, self._members, obj, watch.limit_s)
        except PeerLost:
            self._raise_if_lost(watch.call, ())
            raise
        except CollectiveTimeout:
            self._raise_late(watch.call, watch.limit_s, ())
            raise

    # ---- who is to blame -------------------------------------------------------------------------------------------

    def _raise_if_lost(self, call: Call, sources: tuple[int, ...]) -> None:
        """Raise `PeerLost` if a member that this call needs is gone. A message from ANY needs one living source."""
        lost = {r: self._control.lost[m] for r, m in enumerate(self._members) if m in self._control.lost}
        needed = {r: loss for r, loss in lost.items() if not sources or r in sources}
        if not needed or (len(sources) > 1 and len(needed) < len(sources)):
            return
        ranks, why = self._blame(needed)
        message = f"{call} on rank {self.rank} of {self.name} cannot finish: {why}"
        self._give_up(message, ranks)
        raise PeerLost(ranks, message)

    def _blame(self, lost: dict[int, Loss]) -> tuple[list[int], str]:
        """Those who went by themselves, rather than those who went because of them."""
        own = {r: loss for r, loss in lost.items() if not loss.causes or self._members[self.rank] in loss.causes}
        if own:
            return list(own), "; ".join(f"rank {r} {loss.reason}" for r, loss in own.items())
        blamed = {self._members.index(m) for loss in lost.values() for m in loss.causes if m in self._members}
        return sorted(blamed or lost), "; ".join(f"rank {r} {loss.reason}" for r, loss in lost.items())

    def _raise_late(self, call: Call, limit_s: float, sources: tuple[int, ...]) -> None:
        """Ask everybody what they are doing, say who is missing and where, and raise."""
        others = [m for m in self._members if m != self._control.rank]
        reports = self._control.reports(others, REPORT_WAIT_S)
        mine = self._control.doing.get(self.name, (0, ""))
        missing, different, stacks = [], [], []
        for r, member in enumerate(self._members):
            if r == self.rank:
                continue
            report = reports.get(member)
            if report is None:
                missing.append(r)
                stacks.append(f"--- rank {r}: no answer within {REPORT_WAIT_S:g} s")
                continue
            doing = report.doing.get(self.name)
            if doing is None or doing.seq < mine[0]:
                missing.append(r)
            elif doing.seq == mine[0] and doing.call != str(mine[1]):
                different.append(f"rank {r} called {doing.call}")
            now = f"call {doing.seq}, {doing.call}" if doing else "no call yet"
            stacks.append(f"--- rank {r}: newest collective of this group: {now}\n{report.stack}")
        where = f"{call} on rank {self.rank} of {self.name}"
        shown = "\n".join(stacks)
        if sources:
            text = f"{where}: nothing came or was taken within {limit_s:g} s by {join_ranks(sources)}"
            self._give_up(text, sources)
            raise CollectiveTimeout(sources, f"{text}\n{shown}")
        if different:
            text = f"members of {self.name} call different operations: rank {self.rank} called {call}, {', '.join(different)}"
            self._give_up(text, ())
            raise MismatchedCall(f"{text}\n{shown}")
        text = f"{where}: not all members arrived within {limit_s:g} s; missing: {join_ranks(missing) if missing else 'none'}"
        self._give_up(text, missing)
        raise CollectiveTimeout(missing, f"{text}\n{shown}")

    def _raise_mismatch(self, call: Call, rank: int, other: str) -> None:
        """For engines that see the peers' calls at once."""
        text = (
            f"members of {self.name} call different operations: rank {self.rank} called {call}, rank {rank} called {other}"
        )
        self._give_up(text, ())
        raise MismatchedCall(text)

    def _give_up(self, reason: str, ranks: Sequence[int]) -> None:
        self._spent = reason
        self._control.give_up(f"gave up: {reason}", [self._members[r] for r in ranks])

    # ---- checking of arguments -------------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        if self._spent is not None:
            raise CommError(f"communicator {self.name} cannot be used any more: {self._spent}")

    def _check_rank(self, rank: int, what: str) -> None:
        if not 0 <= rank < self.size:
            raise UsageError(f"{what} must lie in 0..{self.size - 1} of {self.name}; received {rank}")

    def _checked(self, bufs: Buffers) -> list[Tensor]:
        """The buffers as flat views; one message for each thing that can be wrong with them."""
        tensors = [bufs] if isinstance(bufs, Tensor) else list(bufs)
        flat = []
        for position, tensor in enumerate(tensors):
            if not tensor.is_contiguous():
                raise UsageError(
                    f"buffer {position} (shape {tuple(tensor.shape)}, strides {tensor.stride()}) is not contiguous; "
                    "communicate a contiguous tensor, e.g. tensor.contiguous()"
                )
            if tensor.device.type != self.device.type:
                raise UsageError(
                    f"buffer {position} is on {tensor.device}, but engine {self.engine} moves tensors on {self.device.type}; "
                    f"move it with tensor.to({self.device.type!r}) or choose another --engine"
                )
            if tensor.dtype not in DTYPES:
                raise UsageError(
                    f"buffer {position} has type {tensor.dtype}, which cannot be communicated; "
                    f"use one of {', '.join(str(d).removeprefix('torch.') for d in DTYPES)}"
                )
            flat.append(tensor.detach().view(-1))
        return flat

    def _broadcast_call(self, bufs: Buffers, root: int) -> tuple[list[Tensor], Call]:
        self._check_rank(root, "root")
        tensors = self._checked(bufs)
        return tensors, Call("broadcast", tensors, f"root={root}")

    def _gather_call(
        self, kind: str, out: Tensor, buf: Tensor, counts: Sequence[int] | None, op: Op | None = None
    ) -> tuple[Call, tuple[Tensor, Tensor, list[int]]]:
        """`counts` divide the long side: `out` of an allgather, `buf` of a reduce_scatter."""
        out, buf = self._checked((out, buf))
        long, short, names = (out, buf, "out") if kind == "allgather" else (buf, out, "buf")
        if out.dtype != buf.dtype:
            raise UsageError(f"{kind}: out has type {out.dtype} but buf has {buf.dtype}; give both the same type")
        if counts is None and long.numel() != short.numel() * self.size:
            raise UsageError(
                f"{kind}: {names} has {long.numel()} elements, expected {self.size} x {short.numel()}; give counts if uneven"
            )
        parts = [short.numel()] * self.size if counts is None else self._checked_counts(kind, long, counts, "counts")
        if parts[self.rank] != short.numel():
            raise UsageError(f"{kind}: counts[{self.rank}] is {parts[self.rank]} but rank {self.rank} holds {short.numel()}")
        return Call(kind, (long,), f"counts={parts}" if op is None else f"counts={parts}, {op.value}"), (out, buf, parts)

    def _alltoall_call(
        self, out: Tensor, buf: Tensor, out_counts: Sequence[int] | None, in_counts: Sequence[int] | None
    ) -> tuple[Call, tuple[Tensor, Tensor, list[int], list[int]]]:
        out, buf = self._checked((out, buf))
        if out.dtype != buf.dtype:
            raise UsageError(f"alltoall: out has type {out.dtype} but buf has {buf.dtype}; give both the same type")
        even = [
            self._checked_counts("alltoall", tensor, counts, name)
            for tensor, counts, name in ((out, out_counts, "out_counts"), (buf, in_counts, "in_counts"))
        ]
        # Sizes may differ between members, so the call shows only what must be alike.
        call = Call("alltoall", (), str(buf.dtype).removeprefix("torch."))
        return call, (out, buf, even[0], even[1])

    def _checked_counts(self, kind: str, tensor: Tensor, counts: Sequence[int] | None, name: str) -> list[int]:
        if counts is None:
            if tensor.numel() % self.size:
                raise UsageError(f"{kind}: {tensor.numel()} elements do not divide by {self.size} members; give {name}")
            return [tensor.numel() // self.size] * self.size
        if len(counts) != self.size or min(counts) < 0 or sum(counts) != tensor.numel():
            raise UsageError(
                f"{kind}: {name} must be {self.size} numbers >= 0 with sum {tensor.numel()}; received {list(counts)}"
            )
        return [int(count) for count in counts]


def _checked_tag(tag: int) -> int:
    # Every MPI promises tags up to 32767; more would work on some engines only.
    if not 0 <= tag <= 32767:
        raise UsageError(f"tag must lie in 0..32767; received {tag}")
    return tag


def even_slices(numel: int, parts: int, align: int = 1) -> list[slice]:
    """`numel` elements in `parts` slices as equal as multiples of `align` allow; the last may be shorter or empty."""
    step = math.ceil(math.ceil(numel / parts) / align) * align if numel else 0
    return [slice(min(part * step, numel), min((part + 1) * step, numel)) for part in range(parts)]
