"""A communicator over MPI.

Every collective begins with a small reduction that compares the calls of the members, so that a mistake is reported and not left to
MPI, which may hang or give wrong numbers. Short ones run at the same time, without blocking. Before long ones it tells when all
have arrived: then MPI's blocking call finishes in the time of the transfer, with the algorithms that its non-blocking one lacks (2
to 3 times faster with Open MPI 5 from 1 MB on). It runs on a separate thread, since a waiting call cannot be left.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from unisono.comm.base import ANY, MAX, MIN, SUM, Call, Communicator, Envelope, Group, Op, Watch
from unisono.comm.control_plane.control import Control
from unisono.comm.driver import HelperThread, Work
from unisono.comm.engines.mpi_library import LONGEST_PAUSE_S, Library
from unisono.comm.engines.mpi_messages import MessageWork, check_length
from unisono.comm.packing import Pack, pack, unpack
from unisono.comm.polling import raise_root_cause, wait_watched
from unisono.errors import CommError, MismatchedCall

LONG_BYTES = 512 * 1024
"""From this length on the blocking call is worth the switch to its thread."""
BACKGROUND_SPIN_S, BACKGROUND_PAUSE_S = 50e-6, 0.2e-3
"""Polling of started calls, which share the core with the computation."""
MOST_ELEMENTS = 1 << 30
"""MPI counts with 32 bits."""

WIRE: Mapping[torch.dtype, torch.dtype] = {
    **dict.fromkeys((torch.float16, torch.bfloat16), torch.float32),
    **dict.fromkeys((torch.int8, torch.uint8, torch.int16), torch.int32),
}
"""Types that are reduced in another type: halves are summed in float32 and rounded once; sums of narrow integers must wrap, but
Open MPI's stop at the largest number on CPUs with AVX."""

NUMBERS: Mapping[torch.dtype, str] = {
    torch.float32: "FLOAT",
    torch.float64: "DOUBLE",
    torch.int32: "INT32_T",
    torch.int64: "INT64_T",
}
"""MPI's names of the types in which it reduces."""
MOST_FINGERPRINTS = 1000

_CARD = struct.Struct("=4q")


class MpiCommunicator(Communicator):
    """MPI's own collectives and messages. A rank that dies leaves MPI useless for all: the process must end."""

    engine = "mpi"

    def __init__(self, group: Group, control: Control, time_limit_s: float, library: Library, spin_s: float) -> None:
        super().__init__(group, control, torch.device("cpu"), time_limit_s)
        self._library = library
        self._mpi = library.mpi
        self._spin_s = spin_s
        self._handle: Any = None
        self._blocking_thread = HelperThread(f"unisono-mover-{group.name}")
        self._card = bytearray(_CARD.size)
        self._card_spec = [self._card, self._mpi.INT64_T]
        self._fingerprints: dict[object, int] = {}
        self._ops = {SUM: self._mpi.SUM, MIN: self._mpi.MIN, MAX: self._mpi.MAX}
        self._types = {dtype: getattr(self._mpi, name) for dtype, name in NUMBERS.items()}
        self._carriers = {size: getattr(self._mpi, f"INT{8 * size}_T") for size in (1, 2, 4, 8)}
        self._is_world = True
        self._is_open = True

    def open(self, parent: MpiCommunicator | None) -> None:
        """Collective over the members, blocking: opens the communicator. Without a parent it is the whole job."""
        self._is_world = parent is None
        try:
            self._perform(Call("open"), lambda watch: self._join(parent, watch))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._library.failed |= self._unusable is not None
            self._library.num_open -= self._is_world
        super().close()

    # ---- collectives -----------------------------------------------------------------------------------------------

    def _allreduce(self, bufs: list[Tensor], op: Op, watch: Watch) -> None:
        packs = pack(bufs, WIRE)
        calls = [(self._mpi.IN_PLACE, self._numbers(part), self._ops[op]) for wire, _ in packs for part in _pieces(wire)]
        self._collective("Allreduce", calls, _num_bytes(packs), [wire for wire, _ in packs], watch)
        unpack(packs)

    def _broadcast(self, bufs: list[Tensor], root: int, watch: Watch) -> None:
        packs = pack(bufs, {})
        calls = [(self._bits(part), root) for wire, _ in packs for part in _pieces(wire)]
        self._collective("Bcast", calls, _num_bytes(packs), [wire for wire, _ in packs], watch)
        unpack(packs)

    def _allgather(self, out: Tensor, buf: Tensor, counts: list[int], watch: Watch) -> None:
        self._collective("Allgatherv", [(self._bits(buf), self._bits(out, counts))], out.nbytes, [out, buf], watch)

    def _reduce_scatter(self, out: Tensor, buf: Tensor, counts: list[int], op: Op, watch: Watch) -> None:
        wire = WIRE.get(buf.dtype, buf.dtype)
        wide, part = buf.to(wire), torch.empty_like(out, dtype=wire) if wire != out.dtype else out
        call = (self._numbers(wide), self._numbers(part), counts, self._ops[op])
        self._collective("Reduce_scatter", [call], wide.nbytes, [wide, part], watch)
        if part is not out:
            out.copy_(part)

    def _alltoall(self, out: Tensor, buf: Tensor, out_counts: list[int], in_counts: list[int], watch: Watch) -> None:
        self._compare_counts(out_counts, in_counts, watch)
        self._collective(
            "Alltoallv", [(self._bits(buf, in_counts), self._bits(out, out_counts))], out.nbytes + buf.nbytes, [out, buf], watch
        )

    def _barrier(self, watch: Watch) -> None:
        self._collective("Barrier", [], 0, [], watch)

    def _collective(
        self, name: str, calls: Sequence[tuple[Any, ...]], num_bytes: int, bufs: Sequence[object], watch: Watch
    ) -> None:
        """Collective, blocking: calls MPI's `name` with each of `calls`, once the calls of all members were compared. `num_bytes`
        is the same on all members (except in an alltoall), and so is the way they choose by it.
        """
        is_long = num_bytes >= LONG_BYTES
        requests = [self._start_agreement(watch, is_long)]
        try:
            # Only where all members know the sizes do all know that it is short.
            if not is_long and name != "Alltoallv":
                requests += self._start_all(name, calls)
            self._wait_for_requests(requests[:1], watch)
            may_block = self._check_agreement(watch)
            if len(requests) < 1 + len(calls):
                if may_block:
                    self._run_blocking(name, calls, watch)
                    return
                requests += self._start_all(name, calls)
            self._wait_for_requests(requests[1:], watch)
        except BaseException as error:
            self._library.abandon(requests, bufs)
            if isinstance(error, self._mpi.Exception):
                raise_root_cause(watch, error, "MPI")
            raise

    def _start_all(self, name: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Starts MPI's nonblocking call `name` with each of `calls` and returns the requests."""
        start = getattr(self._handle, f"I{name.lower()}")
        with self._library.call_lock:
            return [start(*args) for args in calls]

    def _run_blocking(self, name: str, calls: Sequence[tuple[Any, ...]], watch: Watch) -> None:
        """Blocking: runs MPI's blocking call, when all members have arrived and none does anything else."""

        def body() -> None:
            for args in calls:
                getattr(self._handle, name)(*args)

        wait_watched(self._blocking_thread.submit(body), watch)

    def _wait_for_requests(self, requests: Sequence[Any], watch: Watch) -> None:
        """Blocking until the requests are done; raises what `watch` raises."""
        beside = self._driver.is_current_thread
        spin_s, longest_s = (BACKGROUND_SPIN_S, BACKGROUND_PAUSE_S) if beside else (self._spin_s, LONGEST_PAUSE_S)
        self._library.wait(requests, watch, spin_s, longest_s)

    def _start_agreement(self, watch: Watch, is_long: bool) -> Any:
        """Starts the comparison: the maximum of (h, -h) shows whether all hashes are equal; the rest says whether a member
        cannot, or need not, block."""
        number = self._fingerprint(watch.call)
        _CARD.pack_into(self._card, 0, number, -number, self._driver.is_current_thread or not self._library.any_thread, is_long)
        with self._library.call_lock:
            return self._handle.Iallreduce(self._mpi.IN_PLACE, self._card_spec, self._mpi.MAX)

    def _check_agreement(self, watch: Watch) -> bool:
        """Whether all members may block, and one has so much to move that they should."""
        largest, smallest, somebody_cannot, is_long = _CARD.unpack(self._card)
        if largest != -smallest:
            texts = self._exchange(f"{self.name}!{self._seq}", str(watch.call), watch)
            other = next(r for r, text in enumerate(texts) if text != texts[self.rank])
            raise watch.mismatch(other, texts[other])
        return bool(is_long and not somebody_cannot)

    def _fingerprint(self, call: Call) -> int:
        """Returns a number that identifies a call. Programs repeat their calls, and the text costs more than a short message."""
        key = (call.kind, tuple(call.shapes), call.detail)
        number = self._fingerprints.get(key)
        if number is None:
            if len(self._fingerprints) >= MOST_FINGERPRINTS:
                self._fingerprints.clear()
            number = self._fingerprints[key] = crc32(str(call).encode())
        return number

    def _compare_counts(self, out_counts: list[int], in_counts: list[int], watch: Watch) -> None:
        """Blocking: raises if a member sends another number of elements than is expected from it."""
        sent, awaited = np.array(in_counts, dtype=np.int64), np.empty(self.size, dtype=np.int64)
        self._collective("Alltoall", [(sent, awaited)], 0, [sent, awaited], watch)
        for source in range(self.size):
            if awaited[source] != out_counts[source]:
                text = (
                    f"{watch.call} on rank {self.rank} of {self.name}: rank {source} sends {awaited[source]} elements, "
                    f"but this rank expects {out_counts[source]} from it (out_counts)"
                )
                self.give_up(text, ())
                raise MismatchedCall(text)

    # ---- messages --------------------------------------------------------------------------------------------------

    def _start_send(self, buf: Tensor, dest: int, tag: int, watch: Watch) -> Work[None]:
        spec = self._bits(buf)
        with self._library.call_lock:
            request = self._handle.Isend(spec, dest, tag)
        return MessageWork(self._library, request, buf, watch, self._spin_s, lambda _: None)

    def _start_recv(self, buf: Tensor, source: int, tag: int, watch: Watch) -> Work[Envelope]:
        spec = self._bits(buf)
        with self._library.call_lock:
            request = self._handle.Irecv(spec, self._mpi.ANY_SOURCE if source == ANY else source, tag)

        def envelope(status: Any) -> Envelope:
            num_bytes = status.Get_count(self._mpi.BYTE)
            if num_bytes != buf.nbytes:
                raise CommError(
                    f"{watch.call} on rank {self.rank} of {self.name}: got a message of {num_bytes} bytes from rank "
                    f"{status.Get_source()}, but its buffer has {buf.nbytes}; send and receive the same number of elements"
                )
            return Envelope(status.Get_source(), tag)

        return MessageWork(self._library, request, buf, watch, self._spin_s, envelope)

    # ---- beginning and end -----------------------------------------------------------------------------------------

    def _join(self, parent: MpiCommunicator | None, watch: Watch) -> None:
        """Collective, blocking: makes MPI's communicator of this group, a part of the parent's or a copy of the world."""
        try:
            if parent is None:
                with self._library.call_lock:
                    self._handle, request = self._mpi.COMM_WORLD.Idup()
                self._wait_for_requests([request], watch)
            else:
                self._handle = self._split_off(parent, watch)
        except self._mpi.Exception as error:
            raise_root_cause(watch, error, "MPI")

    def _split_off(self, parent: MpiCommunicator, watch: Watch) -> Any:
        """Collective over the members, blocking: returns MPI's communicator of these members of the parent."""

        def body() -> Any:
            whole = parent._handle.Get_group()
            part = whole.Incl(self.ranks)
            try:
                return parent._handle.Create_group(part, crc32(self.name.encode()) % 32768)
            finally:
                part.Free()
                whole.Free()

        return wait_watched(self._blocking_thread.submit(body), watch) if self._library.any_thread else body()

    def _subgroup(self, group: Group) -> Communicator:
        comm = MpiCommunicator(group, self.control, self.time_limit_s, self._library, self._spin_s)
        comm.open(self)
        return comm

    def _close(self) -> None:
        failed = self._library.failed
        self._blocking_thread.close(timeout_s=0.0 if failed else 5.0)
        handle, self._handle = self._handle, None
        if handle is not None and not failed:
            self._library.close_messages(self)
            with self._library.call_lock:
                handle.Free()

    # ---- buffers as MPI takes them ---------------------------------------------------------------------------------

    def _memory_of(self, buf: Tensor) -> Any:
        """Returns the memory of a buffer as MPI's buffer object, without a copy."""
        return self._mpi.buffer.fromaddress(buf.data_ptr(), buf.nbytes)

    def _numbers(self, buf: Tensor) -> list[Any]:
        """Returns the buffer in MPI's form for reductions."""
        check_length(buf)
        return [self._memory_of(buf), buf.numel(), self._types[buf.dtype]]

    def _bits(self, buf: Tensor, counts: list[int] | None = None) -> list[Any]:
        """Returns the buffer in MPI's form for messages of any type, in parts of `counts` elements."""
        check_length(buf)
        carrier = self._carriers[buf.element_size()]
        if counts is None:
            return [self._memory_of(buf), buf.numel(), carrier]
        return [self._memory_of(buf), (counts, [0, *accumulate(counts[:-1])]), carrier]


def _num_bytes(packs: Sequence[Pack]) -> int:
    """Returns the number of bytes of all packed messages."""
    return sum(wire.nbytes for wire, _ in packs)


def _pieces(buf: Tensor) -> Sequence[Tensor]:
    """Divides a buffer into pieces of as many elements as MPI can count."""
    return (buf,) if buf.numel() <= MOST_ELEMENTS else torch.split(buf, MOST_ELEMENTS)
