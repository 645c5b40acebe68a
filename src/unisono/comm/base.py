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
    """A fixed, ordered group of processes that exchange tensors.

    `un.connect()` returns that of all processes; `split` and `duplicate` make others from it. Tensors must be contiguous
    and lie on `device`; any number of dimensions will do, as only the elements count. All members make the same collective
    calls in the same order, each from one thread at a time. A call that was started with `start_...` counts from its start.

    Calls that differ between members raise `MismatchedCall`, members that are gone `PeerLost`, and members that do not
    arrive within `time_limit_s` seconds `CollectiveTimeout`. After an error the communicator cannot be used any more
    (`is_spent`). A wrong argument raises `UsageError` before anything is sent. A group of one member is allowed: every call
    is exact and free.

    Every method says whether it is collective (all members call it) or local, and whether it blocks.

    Example:
        import torch
        import unisono as un

        with un.connect() as comm:
            value = torch.tensor([float(comm.rank)])
            comm.allreduce(value)
            value.item() == sum(range(comm.size))  # -> True

    Attributes:
        rank: The place of this process in the group, from 0.
        size: The number of members.
        ranks: For each member its rank in the group that this one was split from.
        device: Where tensors must lie: the CPU, or with nccl the GPU of this process.
        engine: The name of the engine: single, shm, mpi, gloo or nccl.
        origin: One line on the processes, the engine, and why it was chosen.
        time_limit_s: Seconds that a call waits for a missing member.

    Args:
        group: The members, and which of them this process is. (`un.connect` and `split` make communicators; the constructor
            is for engines.)
        control: The connection over which members tell each other of small things and of their end.
        device: Where tensors must lie.
        time_limit_s: Seconds that a call waits for a missing member.
    """

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
        """Whether the communicator was closed or a call on it has failed, so that it cannot be used any more. Local."""
        return self._unusable is not None

    # ---- what users call -------------------------------------------------------------------------------------------

    def empty(self, shape: int | Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """Returns an uninitialised tensor on the device of the communicator.

        Engines that share memory place it there, which makes calls on it faster: no copy is needed. Any other tensor works
        too. The tensor stays valid after `close`. Local, not blocking.

        Args:
            shape: Number of elements, or the sizes of the dimensions.
            dtype: Element type.
        """
        return torch.empty(shape, dtype=dtype, device=self.device)

    def share(self, bufs: Sequence[Tensor]) -> list[list[Tensor]] | None:  # noqa: ARG002 -- of engines that can
        """Returns the buffers of all members, by rank, in memory that all members can read and write.

        Your own buffers are the tensors that you gave if these are from `empty`, otherwise copies. Number and sizes may
        differ between members. The others see what you write after the next `barrier`. Keep your own tensors as long as
        others use them. Returns None unless the engine is shm. Collective, blocking, slow.

        Args:
            bufs: The tensors that the others may use.
        """
        return None

    def allreduce(self, bufs: Buffers, op: Op = SUM) -> None:
        """Combines a tensor over all members; afterwards each member holds the result, in place.

        Several tensors in a list are one call, which costs less than one call for each. Sizes and types must be the same on
        all members, and the tensors of a list must not share memory. An empty tensor is allowed. Collective, blocking.

        Example:
            import torch
            import unisono as un

            with un.connect() as comm:
                gradient, count = torch.ones(4), torch.tensor([comm.rank + 1])
                comm.allreduce([gradient, count])
                gradient.sum().item() == 4 * comm.size  # -> True

        Args:
            bufs: The tensor, or a list of tensors, that is replaced by the result.
            op: `un.SUM`, `un.MIN` or `un.MAX`.
        """
        tensors = flat_views(bufs, self.device, self.engine)
        call = self._reduction_call(tensors, op)
        if self._driver.busy:
            self._start(call, lambda watch: self._reduce(tensors, op, watch)).wait()
        else:  # in few steps: after a large vector the caches are cold, and every step of Python costs a microsecond
            self._reduce(tensors, op, self._begin(call))

    def start_allreduce(self, bufs: Buffers, op: Op = SUM) -> Work[None]:
        """Starts an `allreduce` and returns at once; `wait()` on the result ends it.

        Do not read or write the tensors before `wait` has returned. Collective, not blocking.

        Example:
            import torch
            import unisono as un

            with un.connect() as comm:
                gradient = torch.ones(1000)
                work = comm.start_allreduce(gradient)
                other = torch.rand(1000).sum()  # computed meanwhile
                work.wait()

        Args:
            bufs, op: As for `allreduce`.
        """
        tensors = flat_views(bufs, self.device, self.engine)
        return self._start(self._reduction_call(tensors, op), lambda watch: self._reduce(tensors, op, watch))

    def broadcast(self, bufs: Buffers, root: int = 0) -> None:
        """Copies the tensors of one member to all others, in place.

        Sizes and types must be the same on all members. A list of tensors is one call. Collective, blocking.

        Example:
            import torch
            import unisono as un

            with un.connect() as comm:
                weights = torch.full((3,), float(comm.rank))
                comm.broadcast(weights)
                weights.tolist()  # -> [0.0, 0.0, 0.0]

        Args:
            bufs: The tensor, or a list of tensors, that is sent by the root and overwritten on the others.
            root: The rank of the member whose values are sent.
        """
        tensors, call = self._broadcast_call(bufs, root)
        self._run(call, lambda watch: self._broadcast(tensors, root, watch))

    def start_broadcast(self, bufs: Buffers, root: int = 0) -> Work[None]:
        """Starts a `broadcast` and returns at once; `wait()` on the result ends it. Collective, not blocking.

        Args:
            bufs, root: As for `broadcast`.
        """
        tensors, call = self._broadcast_call(bufs, root)
        return self._start(call, lambda watch: self._broadcast(tensors, root, watch))

    def allgather(self, out: Tensor, buf: Tensor, counts: Sequence[int] | None = None) -> None:
        """Writes the tensors of all members one after another into `out`, in the order of the ranks.

        Without `counts` every member gives the same number of elements, and `out` has `size` times as many. With `counts`
        members may give different numbers, also none. Collective, blocking.

        Example:
            import torch
            import unisono as un

            with un.connect() as comm:
                counts = [rank + 1 for rank in range(comm.size)]
                out = torch.empty(sum(counts))
                comm.allgather(out, torch.full((comm.rank + 1,), float(comm.rank)), counts)
                out[0].item()  # -> 0.0

        Args:
            out: The tensor that receives all parts.
            buf: The part of this member.
            counts: The number of elements of each member, by rank, the same list everywhere; left out, all give equally
                many.
        """
        call, args = self._gather_call("allgather", out, buf, counts)
        self._run(call, lambda watch: self._allgather(*args, watch))

    def start_allgather(self, out: Tensor, buf: Tensor, counts: Sequence[int] | None = None) -> Work[None]:
        """Starts an `allgather` and returns at once; `wait()` on the result ends it. Collective, not blocking.

        Args:
            out, buf, counts: As for `allgather`.
        """
        call, args = self._gather_call("allgather", out, buf, counts)
        return self._start(call, lambda watch: self._allgather(*args, watch))

    def reduce_scatter(self, out: Tensor, buf: Tensor, counts: Sequence[int] | None = None, op: Op = SUM) -> None:
        """Combines the tensors of all members and leaves each member one part of the result.

        `buf` is as long on every member and is not changed; the member of rank r gets part r in `out`. Without `counts` the
        parts are equal, so the length of `buf` must be `size` times that of `out`. Collective, blocking.

        Example:
            import torch
            import unisono as un

            with un.connect() as comm:
                out = torch.empty(2)
                comm.reduce_scatter(out, torch.ones(2 * comm.size))
                out.tolist() == [comm.size, comm.size]  # -> True

        Args:
            out: The tensor that receives the part of this member.
            buf: The tensor that is combined with those of the others.
            counts: The number of elements of each part, by rank, the same list everywhere; left out, all parts are equal.
            op: `un.SUM`, `un.MIN` or `un.MAX`.
        """
        call, args = self._gather_call("reduce_scatter", out, buf, counts, op)
        self._run(call, lambda watch: self._reduce_scatter(*args, op, watch))

    def start_reduce_scatter(self, out: Tensor, buf: Tensor, counts: Sequence[int] | None = None, op: Op = SUM) -> Work[None]:
        """Starts a `reduce_scatter` and returns at once; `wait()` on the result ends it. Collective, not blocking.

        Args:
            out, buf, counts, op: As for `reduce_scatter`.
        """
        call, args = self._gather_call("reduce_scatter", out, buf, counts, op)
        return self._start(call, lambda watch: self._reduce_scatter(*args, op, watch))

    def alltoall(
        self,
        out: Tensor,
        buf: Tensor,
        out_counts: Sequence[int] | None = None,
        in_counts: Sequence[int] | None = None,
    ) -> None:
        """Sends a different part of `buf` to each member, and receives one part from each in `out`.

        Part r of `buf` goes to rank r; what rank r sent here becomes part r of `out`. Without counts all parts are equal,
        and the length must divide by `size`. A part may be empty. What one member sends must be as long as what the other
        expects, otherwise `MismatchedCall` is raised. Collective, blocking.

        Example:
            import torch
            import unisono as un

            with un.connect() as comm:
                out = torch.empty(comm.size)
                comm.alltoall(out, torch.full((comm.size,), float(comm.rank)))
                out.tolist() == list(range(comm.size))  # -> True

        Args:
            out: The tensor that receives a part from each member.
            buf: The tensor whose parts are sent.
            out_counts: The number of elements received from each member, by rank; left out, all are equal.
            in_counts: The number of elements sent to each member, by rank; left out, all are equal.
        """
        call, args = self._alltoall_call(out, buf, out_counts, in_counts)
        self._run(call, lambda watch: self._alltoall(*args, watch))

    def start_alltoall(
        self,
        out: Tensor,
        buf: Tensor,
        out_counts: Sequence[int] | None = None,
        in_counts: Sequence[int] | None = None,
    ) -> Work[None]:
        """Starts an `alltoall` and returns at once; `wait()` on the result ends it. Collective, not blocking.

        Args:
            out, buf, out_counts, in_counts: As for `alltoall`.
        """
        call, args = self._alltoall_call(out, buf, out_counts, in_counts)
        return self._start(call, lambda watch: self._alltoall(*args, watch))

    def send(self, buf: Tensor, dest: int, tag: int = 0) -> None:
        """Sends a tensor to one member, which receives it with `recv`.

        Messages between two members with the same tag arrive in the order in which they were sent. Local; blocks until
        `buf` may be changed, which may be only once the message was received, so two members that `send` to each other
        first can wait for ever: use `start_send` there.

        Args:
            buf: The tensor that is sent.
            dest: The rank of the receiver.
            tag: A number from 0 to 32767 that the receiver asks for, to tell kinds of messages apart.
        """
        self.start_send(buf, dest, tag).wait()

    def start_send(self, buf: Tensor, dest: int, tag: int = 0) -> Work[None]:
        """Starts a `send` and returns at once; do not change the tensor before `wait()` on the result has returned.

        Local, not blocking.

        Example:
            import torch
            import unisono as un

            with un.connect() as comm:
                work = comm.start_send(torch.tensor([comm.rank]), dest=(comm.rank + 1) % comm.size)
                received = torch.empty(1, dtype=torch.int64)
                comm.recv(received, source=(comm.rank - 1) % comm.size)
                work.wait()
                received.item() == (comm.rank - 1) % comm.size  # -> True

        Args:
            buf, dest, tag: As for `send`.
        """
        (tensor,) = self._checked(buf)
        check_rank(dest, self.size, "dest", self.name)
        self._check_usable()
        watch = Watch(self, Call("send", (tensor,), f"dest={dest}, tag={tag}"), self.time_limit_s, (dest,))
        return self._start_send(tensor, dest, check_tag(tag), watch)

    def recv(self, buf: Tensor, source: int = ANY, tag: int = 0) -> Envelope:
        """Receives one message into a tensor, and returns who sent it (`source`) and its tag.

        Size and type must be those of the message, otherwise `MismatchedCall` is raised. From `un.ANY` source the first
        message to arrive is taken. Local, blocking.

        Example:
            import torch
            import unisono as un

            with un.connect() as comm:
                work = comm.start_send(torch.ones(2), dest=0, tag=7)
                if comm.rank == 0:
                    buf = torch.empty(2)
                    senders = [comm.recv(buf, un.ANY, tag=7).source for _ in range(comm.size)]
                    sorted(senders) == list(range(comm.size))  # -> True
                work.wait()

        Args:
            buf: The tensor that receives the message.
            source: The rank of the sender, or `un.ANY`.
            tag: The tag that the message was sent with.
        """
        return self.start_recv(buf, source, tag).wait()

    def start_recv(self, buf: Tensor, source: int = ANY, tag: int = 0) -> Work[Envelope]:
        """Starts a `recv` and returns at once; `wait()` on the result returns who sent the message.

        Of several receives that could take the same message, the one that was started first takes it. Local, not blocking.

        Args:
            buf, source, tag: As for `recv`.
        """
        (tensor,) = self._checked(buf)
        if source != ANY:
            check_rank(source, self.size, "source", self.name)
        self._check_usable()
        shown = "ANY" if source == ANY else source
        sources = tuple(r for r in range(self.size) if r != self.rank) if source == ANY else (source,)
        watch = Watch(self, Call("recv", (tensor,), f"source={shown}, tag={tag}"), self.time_limit_s, sources)
        return self._start_recv(tensor, source, check_tag(tag), watch)

    def allgather_object(self, obj: Any, timeout_s: float | None = None) -> list[Any]:
        """Returns a list with the value of every member, by rank.

        For small things: it is far slower than `allgather`. Values are None, bool, int, float, str or bytes, and lists,
        tuples and dicts of these; anything else is refused. Collective, blocking, slow.

        Example:
            import unisono as un

            with un.connect() as comm:
                names = comm.allgather_object(f"rank {comm.rank}")
                names[0]  # -> 'rank 0'

        Args:
            obj: The value of this member.
            timeout_s: Seconds to wait for the others; left out, the time limit of the communicator.
        """
        self._num_exchanges += 1
        key = f"{self.name}#{self._num_exchanges}"
        return self._run(Call("allgather_object"), lambda watch: self._exchange(key, obj, watch), timeout_s)

    def broadcast_object(self, obj: Any, root: int = 0, timeout_s: float | None = None) -> Any:
        """Returns the value of one member on all of them; what the others pass is ignored.

        For small things, of the types that `allgather_object` takes. Collective, blocking, slow.

        Example:
            import unisono as un

            with un.connect() as comm:
                settings = comm.broadcast_object({"lr": 0.1} if comm.rank == 0 else None)
                settings  # -> {'lr': 0.1}

        Args:
            obj: The value; only that of the root counts.
            root: The rank of the member whose value is returned.
            timeout_s: Seconds to wait for the others; left out, the time limit of the communicator.
        """
        check_rank(root, self.size, "root", self.name)
        return self.allgather_object(obj if self.rank == root else None, timeout_s)[root]

    def barrier(self, timeout_s: float | None = None) -> None:
        """Returns when all members have called it. Collective, blocking.

        Args:
            timeout_s: Seconds to wait for the others; left out, the time limit of the communicator.
        """
        limit_s = self.time_limit_s if timeout_s is None else timeout_s
        self._run(Call("barrier"), self._barrier, limit_s)

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Divides the members into groups, and returns the communicator of the group of this member.

        Members with the same color form a group, in the order of their keys, and of their ranks where keys are equal. A
        member with color None joins no group and gets None. The all-reduce algorithm that was chosen for this communicator
        is used in the groups too. Close the groups when they are no longer needed. Collective, blocking.

        Example:
            import unisono as un

            with un.connect() as comm:
                half = comm.split(comm.rank % 2)  # even and odd ranks
                half.ranks[half.rank] == comm.rank  # -> True
                half.close()

        Args:
            color: A whole number that names the group, or None to join none.
            key: What the ranks of the group are ordered by.
        """
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
        """Returns a second communicator of the same members, whose calls never mix with those of this one.

        Give one to a library or a thread that communicates by itself. Collective, blocking.
        """
        copy = self.split(0, self.rank)
        assert copy is not None
        return copy

    def abort(self, reason: str) -> None:
        """Tells the others that this member gives up: they raise `PeerLost` with the reason at once.

        The communicator cannot be used afterwards. A `with` statement does this by itself when an exception leaves it.
        Local, not blocking.

        Args:
            reason: What went wrong, for the messages of the others.
        """
        self._unusable = reason
        self.control.give_up(reason)

    def close(self) -> None:
        """Releases what the communicator holds. It may be called twice; tensors from `empty` stay valid. Local."""
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
        """Makes `close` also leave the job: for the communicator of all processes (`un.connect` calls it). Local."""
        self._owns_control = True

    def reduce_with(self, reducer: Reducer, *owned: Communicator, refuses: bool = False) -> None:
        """Replaces the all-reduce of this communicator by another function; for authors of all-reduce algorithms. Local.

        Args:
            reducer: A function (bufs, op) that combines flat tensors over all members, in place, as one operation.
            owned: Communicators that the function uses, and that are closed with this one.
            refuses: True if the function itself notices calls that differ between members, so that they are not compared
                before.
        """
        self._reduce_with = reducer
        self._compares = not refuses
        self._dependents.extend(owned)

    def equip_groups(self, equip: Callable[[Communicator], object]) -> None:
        """Sets a function that prepares every group split from this communicator; for authors of all-reduce algorithms. Local.

        Groups of a group are prepared only if the function calls `equip_groups` on the group.

        Args:
            equip: A function of the new group; all members of the group call it.
        """
        self._equip = equip

    # ---- what an engine adds ---------------------------------------------------------------------------------------

    @abstractmethod
    def _allreduce(self, bufs: list[Tensor], op: Op, watch: Watch) -> None:
        """Combines the buffers over all members, in place."""

    @abstractmethod
    def _broadcast(self, bufs: list[Tensor], root: int, watch: Watch) -> None:
        """Copies the buffers of `root` to all members, in place."""

    @abstractmethod
    def _allgather(self, out: Tensor, buf: Tensor, counts: list[int], watch: Watch) -> None:
        """Writes the buffers of all members into `out`; `counts[r]` elements come from rank r."""

    @abstractmethod
    def _reduce_scatter(self, out: Tensor, buf: Tensor, counts: list[int], op: Op, watch: Watch) -> None:
        """Combines `buf` over all members; `out` gets this rank's part, of `counts[rank]` elements."""

    @abstractmethod
    def _alltoall(self, out: Tensor, buf: Tensor, out_counts: list[int], in_counts: list[int], watch: Watch) -> None:
        """Sends `in_counts[r]` elements of `buf` to rank r, and receives `out_counts[r]` from it into `out`."""

    @abstractmethod
    def _start_send(self, buf: Tensor, dest: int, tag: int, watch: Watch) -> Work[None]:
        """Starts to send a buffer; may return before it was received."""

    @abstractmethod
    def _start_recv(self, buf: Tensor, source: int, tag: int, watch: Watch) -> Work[Envelope]:
        """Starts to receive a message into a buffer; the work returns who sent it."""

    @abstractmethod
    def _subgroup(self, group: Group) -> Communicator:
        """Collective over the members of `group`: opens and returns its communicator."""

    @abstractmethod
    def _close(self) -> None:
        """Releases what the engine holds."""

    def _compare(self, watch: Watch) -> Callable[[], None]:
        """Starts to compare the calls of the members, for an all-reduce that sees only bytes. Calling the result ends the check."""
        self._barrier(watch)  # which compares what the watch says
        return lambda: None

    def _barrier(self, watch: Watch) -> None:
        """Returns when all members have called it."""
        self._allreduce([torch.zeros(1, dtype=torch.int32, device=self.device)], SUM, watch)

    # ---- how calls run ---------------------------------------------------------------------------------------------

    def _run(self, call: Call, body: Callable[[Watch], T], limit_s: float | None = None) -> T:
        """Runs a call and returns its result, after the calls that were started before."""
        if self._driver.busy:  # started calls come first: the order of calls is the same on all members
            return self._start(call, body, limit_s).wait()
        return self._perform(call, body, limit_s)

    def _start(self, call: Call, body: Callable[[Watch], T], limit_s: float | None = None) -> Work[T]:
        """Starts a call on the helper thread and returns its work."""
        self._check_usable()
        return self._driver.submit(lambda: self._perform(call, body, limit_s))

    def _perform(self, call: Call, body: Callable[[Watch], T], limit_s: float | None = None) -> T:
        """Runs the body of a call with a new watch and returns its result; an error makes the communicator unusable."""
        watch = self._begin(call, limit_s)
        try:
            return body(watch)
        except BaseException as error:
            self._fail(error, call)
            raise

    def _begin(self, call: Call, limit_s: float | None = None) -> Watch:
        """Notes the call as the newest one of this group and returns its watch; raises if the communicator is unusable."""
        if self._unusable is not None:
            self._check_usable()
        self._seq += 1
        self.control.current_calls[self.name] = (self._seq, call)
        return Watch(self, call, self.time_limit_s if limit_s is None else limit_s)

    def _fail(self, error: BaseException, call: Call) -> None:
        """Makes the communicator unusable because of an error, and tells the others; the first error counts."""
        if self._unusable is None:
            self.give_up(f"{call} failed: {type(error).__name__}: {error}", ())

    def _reduce(self, bufs: list[Tensor], op: Op, watch: Watch) -> None:
        """All-reduces the buffers by the function of `reduce_with`, or else by the engine."""
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
        """Returns the new group after the function of `equip_groups` has prepared it; closes it if that fails."""
        if self._equip is not None:
            try:
                self._equip(group)
            except BaseException:
                group.close()
                raise
        return group

    def _exchange(self, key: str, obj: Any, watch: Watch) -> list[Any]:
        """Returns the objects of all members, by rank, through the control plane; raises errors with ranks of this group."""
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
        """Makes the communicator unusable and tells the others why; for authors of engines. Local.

        Args:
            reason: What went wrong.
            ranks: The members whose loss is the cause, if any.
        """
        self._unusable = reason
        self.control.give_up(f"gave up: {reason}", [self.members[r] for r in ranks])

    def _raise_mismatch(self, call: Call, rank: int, other: str) -> NoReturn:
        """Raises the error of rank `rank`, which called `other` instead of `call`, for engines that see the peers' calls at
        once."""
        raise Watch(self, call, self.time_limit_s).mismatch(rank, other)

    # ---- checking of arguments -------------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        """Raises `CommError` if the communicator is spent."""
        if self._unusable is not None:
            raise CommError(f"communicator {self.name} cannot be used any more: {self._unusable}")

    def _checked(self, bufs: Buffers) -> list[Tensor]:
        """Returns the buffers as flat views; raises `UsageError` for those that this engine cannot send."""
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
        """Checks the arguments of a broadcast; returns the flat buffers and the call."""
        check_rank(root, self.size, "root", self.name)
        tensors = self._checked(bufs)
        return tensors, Call("broadcast", tensors, f"root={root}")

    def _gather_call(
        self, kind: str, out: Tensor, buf: Tensor, counts: Sequence[int] | None, op: Op | None = None
    ) -> tuple[Call, tuple[Tensor, Tensor, list[int]]]:
        """Checks the arguments; returns the call and (out, buf, counts). `counts` divide the long side: `out` of an allgather,
        `buf` of a reduce_scatter.
        """
        out, buf = self._checked((out, buf))
        check_same_type(kind, out, buf)
        long, short = (out, buf) if kind == "allgather" else (buf, out)
        parts = checked_parts(kind, long, short, counts, self.rank, self.size)
        detail = f"counts={parts}" if op is None else f"counts={parts}, {op.value}"
        return Call(kind, (long,), detail), (out, buf, parts)

    def _alltoall_call(
        self, out: Tensor, buf: Tensor, out_counts: Sequence[int] | None, in_counts: Sequence[int] | None
    ) -> tuple[Call, tuple[Tensor, Tensor, list[int], list[int]]]:
        """Checks the arguments of an alltoall; returns the call and (out, buf, out_counts, in_counts)."""
        out, buf = self._checked((out, buf))
        dtype = check_same_type("alltoall", out, buf)
        outs = checked_counts("alltoall", out, out_counts, "out_counts", self.size)
        ins = checked_counts("alltoall", buf, in_counts, "in_counts", self.size)
        # Sizes may differ between members, so the call shows only what must be alike.
        return Call("alltoall", (), str(dtype).removeprefix("torch.")), (out, buf, outs, ins)
