"""Ranks of one machine talk through shared memory.

A large all-reduce works straight on the ranks' mapped buffers: rank r reduces slice r of everybody's vector, in rank order, and
writes the result into everybody's vector. No other copy is made, nobody else touches that slice, and all get the same bits.
Buffers from `empty` are mapped already; others are staged through one that is.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from unisono.comm.arithmetic import HALVES
from unisono.comm.base import Call, Communicator, Envelope, Group, Op, Watch, even_slices
from unisono.comm.board import SMALL_BYTES, TEXT_BYTES, Board, Layout
from unisono.comm.control import Control
from unisono.comm.driver import Work
from unisono.comm.futex import Futex
from unisono.comm.mailbox import Mailbox
from unisono.comm.pieces import Pieces, reduce_into
from unisono.comm.segments import Arena, Place, Segment, open_peer
from unisono.errors import CommError, UsageError

CHUNK_BYTES = 512 << 10
"""All ranks' parts of one piece of work together stay in a core's second-level cache."""

STAGE_BYTES = 1 << 20
"""Buffers outside shared memory pass through a stage of this size."""

_MOST_KEPT = 1024
"""Texts and views of calls seen before, in each communicator."""


def open_shm(group: Group, control: Control, time_limit_s: float, num_cpus: int, arena: Arena | None = None) -> ShmCommunicator:
    """Collective over the group, blocking: every rank makes its row of the board and maps the others'."""
    Futex()  # refuses machines that cannot do it, before anything is made
    arena = arena or Arena()
    row = Segment.create(Layout(len(group.members)).num_bytes)
    try:
        mine = (os.getpid(), row.fd, row.identity)
        others = control.exchange(f"{group.name}:rows", group.members, mine, time_limit_s)
        problem, rows = "", []
        try:
            rows = [row if r == group.rank else open_peer(*place) for r, place in enumerate(others)]
        except CommError as error:
            problem = str(error)
        # Also tells that everybody has mapped everything, so that the file may be closed.
        problems = [text for text in control.exchange(f"{group.name}:mapped", group.members, problem, time_limit_s) if text]
    finally:
        os.close(row.fd)
    if problems:
        raise UsageError(problems[0])
    pids = [pid for pid, _, _ in others]
    spin = len(group.members) <= num_cpus
    board = Board(group.rank, rows, pids, arena, spin)
    return ShmCommunicator(group, control, time_limit_s, board, arena, num_cpus)


class ShmCommunicator(Communicator):
    engine = "shm"

    def __init__(self, group: Group, control: Control, time_limit_s: float, board: Board, arena: Arena, num_cpus: int) -> None:
        super().__init__(group, control, torch.device("cpu"), time_limit_s)
        self._board = board
        self._arena = arena
        self._num_cpus = num_cpus
        self._mailbox = Mailbox(board, arena, self.rank, self.size)
        self._texts: dict[object, bytes] = {}
        self._stage: Tensor | None = None
        self._views: dict[object, list[list[Tensor]]] = {}
        self._pieces_at: dict[object, Pieces] = {}
        arena.hold()

    def empty(self, shape: int | Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        return self._arena.empty(shape, dtype)

    # ---- collectives -----------------------------------------------------------------------------------------------

    def _allreduce(self, bufs: list[Tensor], op: Op, watch: Watch) -> None:
        if sum(buf.nbytes for buf in bufs) <= SMALL_BYTES - 64 * len(bufs):
            self._allreduce_small(bufs, op, watch)
        else:
            for batch in _batches(bufs, self._board.layout.num_places):
                self._allreduce_large(batch, op, watch)

    def _allreduce_small(self, bufs: list[Tensor], op: Op, watch: Watch) -> None:
        """One phase: everybody shows its values and reduces all of them by itself."""
        self._begin(watch.call)
        parts_of = self._small_parts(bufs)
        for buf, parts in zip(bufs, parts_of, strict=True):
            parts[self.rank].copy_(buf)
        self._meet(watch)
        for buf, parts in zip(bufs, parts_of, strict=True):
            reduce_into(buf, parts, op)

    def _small_parts(self, bufs: list[Tensor]) -> list[list[Tensor]]:
        """For each buffer the place in each rank's page; kept, as making these views would cost more than the reduction."""
        key = (self._board.page, *((buf.dtype, buf.numel()) for buf in bufs))
        found = self._views.get(key)
        if found is None:
            if len(self._views) >= _MOST_KEPT:
                self._views.clear()
            found, offset = [], 0
            for buf in bufs:
                found.append([self._board.small(r, buf.nbytes, offset).view(buf.dtype) for r in range(self.size)])
                offset += _aligned(buf.nbytes)
            self._views[key] = found
        return found

    def _allreduce_large(self, bufs: list[Tensor], op: Op, watch: Watch) -> None:
        """Two phases: everybody's buffers are ready; every slice is reduced and written to all."""
        board = self._board
        mapped = [self._arena.place(buf) for buf in bufs]
        self._begin(watch.call)
        for index, (buf, place) in enumerate(zip(bufs, mapped, strict=True)):
            if place is None:  # shows its stage instead, and says so by a size of nothing
                board.write_place(index, self._stage_place(), 0)
            else:
                board.write_place(index, place, buf.nbytes)
        self._meet(watch)
        staged = []
        for index, (buf, place) in enumerate(zip(bufs, mapped, strict=True)):
            places = [board.place(r, index) for r in range(self.size)]
            if buf.nbytes == 0 or all(num_bytes for _, _, num_bytes in places):
                self._pieces(places, buf.dtype).reduce(op)
            else:
                staged.append((buf, place, places))
        board.arrive(watch)
        for buf, place, places in staged:
            self._allreduce_staged(buf, place, places, op, watch)

    def _allreduce_staged(self, buf: Tensor, place: Place | None, places: list[tuple[int, int, int]], op: Op, watch: Watch) -> None:
        """For buffers that some rank has outside shared memory: they pass through that rank's stage, block by block."""
        done = 0
        for block in torch.split(buf, STAGE_BYTES // buf.itemsize):
            now = [(fd, where + done if num_bytes else where, block.nbytes) for fd, where, num_bytes in places]
            shown = block
            if place is None:
                shown = self._board.placed(self.rank, now[self.rank]).view(buf.dtype)
                shown.copy_(block)
            self._board.arrive(watch)
            self._pieces(now, buf.dtype).reduce(op)
            self._board.arrive(watch)
            if place is None:
                block.copy_(shown)
            done += block.nbytes

    def _stage_place(self) -> Place:
        if self._stage is None:
            self._stage = self._arena.empty(STAGE_BYTES, torch.uint8)
        place = self._arena.place(self._stage)
        assert place is not None
        return place

    def _pieces(self, places: list[tuple[int, int, int]], dtype: torch.dtype) -> Pieces:
        """This rank's slice of the vectors at `places`, in pieces that stay in the cache; kept, as the buffers come again."""
        num_threads = torch.get_num_threads()
        key = (dtype, num_threads, *places)
        found = self._pieces_at.get(key)
        if found is None:
            if len(self._pieces_at) >= _MOST_KEPT:
                self._pieces_at.clear()
            vectors = [self._board.placed(r, place).view(dtype) for r, place in enumerate(places)]
            mine = even_slices(vectors[0].numel(), self.size, 64)[self.rank]
            step = max(4096, CHUNK_BYTES // dtype.itemsize // self.size) * num_threads
            rows = [torch.split(vector[mine], step) for vector in vectors]
            tensors = [list(pieces) for pieces in zip(*rows, strict=True) if pieces[0].numel()]
            found = self._pieces_at[key] = Pieces(tensors, in_numpy=num_threads == 1 and dtype not in HALVES)
        return found

    def _broadcast(self, bufs: list[Tensor], root: int, watch: Watch) -> None:
        small = sum(buf.nbytes for buf in bufs) <= SMALL_BYTES - 64 * len(bufs)
        for batch in [bufs] if small else _batches(bufs, self._board.layout.num_places):
            staged = self._show(watch.call, batch if self.rank == root else [], small)
            self._meet(watch)
            if self.rank != root:
                for index, buf in enumerate(batch):
                    buf.copy_(self._board.peer_bytes(root, index).view(buf.dtype))
            if not small:
                self._board.arrive(watch)
            del staged

    def _allgather(self, out: Tensor, buf: Tensor, counts: list[int], watch: Watch) -> None:
        small = max(counts) * buf.itemsize <= SMALL_BYTES
        staged = self._show(watch.call, [buf], small)
        self._meet(watch)
        for r, part in enumerate(torch.split(out, counts)):
            part.copy_(buf if r == self.rank else self._board.peer_bytes(r, 0).view(buf.dtype))
        if not small:
            self._board.arrive(watch)
        del staged

    def _reduce_scatter(self, out: Tensor, buf: Tensor, counts: list[int], op: Op, watch: Watch) -> None:
        small = buf.nbytes <= SMALL_BYTES
        staged = self._show(watch.call, [buf], small)
        self._meet(watch)
        start = sum(counts[: self.rank])
        mine = slice(start, start + counts[self.rank])
        vectors = [buf if r == self.rank else self._board.peer_bytes(r, 0).view(buf.dtype) for r in range(self.size)]
        reduce_into(out, [vector[mine] for vector in vectors], op)
        if not small:
            self._board.arrive(watch)
        del staged

    def _alltoall(self, out: Tensor, buf: Tensor, out_counts: list[int], in_counts: list[int], watch: Watch) -> None:
        # Sizes differ between ranks, so everybody takes both phases.
        board = self._board
        tensor, place = self._mapped(buf)
        self._begin(watch.call)
        offset = 0
        for r, count in enumerate(in_counts):
            board.write_place(r, place, count * buf.itemsize, offset)
            offset += count * buf.itemsize
        self._meet(watch)
        start = sum(in_counts[: self.rank])
        parts = [
            buf[start : start + in_counts[r]] if r == self.rank else board.peer_bytes(r, self.rank).view(buf.dtype)
            for r in range(self.size)
        ]
        wrong = [r for r in range(self.size) if parts[r].numel() != out_counts[r]]
        board.arrive(watch)
        if wrong:
            r = wrong[0]
            self._raise_mismatch(
                Call("alltoall", (), f"out_counts[{r}]={out_counts[r]}"),
                r,
                f"alltoall(in_counts[{self.rank}]={parts[r].numel()})",
            )
        for part, target in zip(parts, torch.split(out, out_counts), strict=True):
            target.copy_(part)
        board.arrive(watch)
        del tensor

    def _barrier(self, watch: Watch) -> None:
        self._begin(watch.call)
        self._meet(watch)

    # ---- messages --------------------------------------------------------------------------------------------------

    def _start_send(self, buf: Tensor, dest: int, tag: int, watch: Watch) -> Work[None]:
        return self._mailbox.start_send(buf, dest, tag, watch)

    def _start_recv(self, buf: Tensor, source: int, tag: int, watch: Watch) -> Work[Envelope]:
        return self._mailbox.start_recv(buf, source, tag, watch)

    def _subgroup(self, group: Group) -> Communicator:
        # A part of the job spins no more than the whole: the others need their cores too.
        num_cpus = self._num_cpus if self._board.spin_s else 0
        return open_shm(group, self.control, self.time_limit_s, num_cpus, self._arena)

    def _close(self) -> None:
        if self._board is not None:
            self._views.clear()
            self._pieces_at.clear()
            self._board.close()
            self._arena.release()
            del self._board, self._mailbox
            self._board = None  # type: ignore[assignment]

    # ---- parts of a collective -------------------------------------------------------------------------------------

    def _begin(self, call: Call) -> None:
        key = (call.kind, call.detail, *call.shapes)
        text = self._texts.get(key)
        if text is None:
            if len(self._texts) >= _MOST_KEPT:
                self._texts.clear()
            shown = str(call).encode()
            digest = f" #{zlib.crc32(shown):08x}".encode()
            text = (shown[: TEXT_BYTES - len(digest)] + digest).ljust(TEXT_BYTES, b"\0")
            self._texts[key] = text
        self._text = text
        self._board.turn_page(text)

    def _meet(self, watch: Watch) -> None:
        """Everybody's page is there; refuse to go on if one of them shows another call."""
        self._board.arrive(watch)
        other = self._board.same_text(self._text)
        if other is not None:
            shown = self._board.text(other).rstrip(b"\0").decode(errors="replace")
            self._raise_mismatch(watch.call, other, shown.rsplit(" #", 1)[0])

    def _mapped(self, buf: Tensor) -> tuple[Tensor, Place | None]:
        """The buffer itself if the peers can see it, else a copy that they can; an empty one needs no place."""
        place = self._arena.place(buf)
        if place is not None or buf.numel() == 0:
            return buf, place
        staged = self._arena.empty(buf.numel(), buf.dtype)
        staged.copy_(buf)
        return staged, self._arena.place(staged)

    def _show(self, call: Call, bufs: list[Tensor], small: bool) -> list[Tensor]:
        """Begin a collective in which the others read `bufs`; the result must live until they have."""
        held = [] if small else [self._mapped(buf) for buf in bufs]
        self._begin(call)
        offset = 0
        for index, buf in enumerate(bufs):
            if small:
                self._board.write_place(index, None, buf.nbytes, offset)
                self._board.small(self.rank, buf.nbytes, offset).view(buf.dtype).copy_(buf)
                offset += _aligned(buf.nbytes)
            else:
                self._board.write_place(index, held[index][1], buf.nbytes)
        return [tensor for tensor, _ in held]


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // 64) * 64


def _batches(bufs: list[Tensor], most: int) -> list[list[Tensor]]:
    return [bufs[start : start + most] for start in range(0, len(bufs), most)]
