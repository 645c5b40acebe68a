"""Ranks of one machine talk through shared memory.

In every collective the ranks publish where their buffers are, and read them there. Buffers from `empty` are mapped already; others
are staged through one that is.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from unisono.comm.base import DTYPES, Call, Communicator, Envelope, Group, Op, Watch
from unisono.comm.control_plane.control import Control
from unisono.comm.driver import Work
from unisono.comm.polling import raise_root_cause
from unisono.comm.shared_memory.board import SMALL_BYTES, Board, Layout, PackedPlace, aligned
from unisono.comm.shared_memory.futex import Futex
from unisono.comm.shared_memory.mailbox import Mailbox
from unisono.comm.shared_memory.memory_allreduce import AllReduce
from unisono.comm.shared_memory.post_office import PostOffice
from unisono.comm.shared_memory.reduce_slices import reduce_into
from unisono.comm.shared_memory.segments import Arena, Place, Segment, Unreachable, open_peer
from unisono.comm.shared_memory.word import Word
from unisono.errors import CommError, UsageError


def open_shm(
    group: Group, control: Control, time_limit_s: float, num_cpus: int, office: PostOffice | None = None
) -> ShmCommunicator:
    """Collective over the group, blocking: opens the communicator; every rank makes its row of the board and maps the others'."""
    Futex()  # refuses machines that cannot do it, before anything is made
    office = office or PostOffice(Arena())
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
    board = Board(group.rank, rows, pids, office.arena, spin)
    return ShmCommunicator(group, control, time_limit_s, board, office, num_cpus)


class ShmCommunicator(Communicator):
    engine = "shm"

    def __init__(
        self, group: Group, control: Control, time_limit_s: float, board: Board, office: PostOffice, num_cpus: int
    ) -> None:
        super().__init__(group, control, torch.device("cpu"), time_limit_s)
        self._board = board
        self._office = office
        self._arena = arena = office.arena
        self._num_cpus = num_cpus
        self._mailbox = Mailbox(board, office)
        board.on_idle = office.progress
        self._all_reduce = AllReduce(board, arena)
        arena.hold()

    def empty(self, shape: int | Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        return self._arena.empty(shape, dtype)

    def share(self, bufs: Sequence[Tensor]) -> list[list[Tensor]]:
        held = [self._mapped(buf) for buf in bufs]
        shown = [(DTYPES.index(buf.dtype), None if place is None else (place.fd, place.offset, buf.nbytes)) for buf, place in held]
        everybody = self.allgather_object(shown)
        others = self._run(Call("share"), lambda _: [self._reached(r, theirs) for r, theirs in enumerate(everybody)])
        return [[buf for buf, _ in held] if r == self.rank else theirs for r, theirs in enumerate(others)]

    def word(self, memory: Tensor) -> Word:
        """Local: returns a number at the beginning of memory from `share`, on which one member can sleep and which others
        change."""
        return Word(memory, self._board)

    # ---- collectives -----------------------------------------------------------------------------------------------

    def _allreduce(self, bufs: list[Tensor], op: Op, watch: Watch) -> None:
        self._all_reduce.run(bufs, op, watch)

    def _broadcast(self, bufs: list[Tensor], root: int, watch: Watch) -> None:
        small = len(bufs) <= self._board.layout.num_places and sum(aligned(buf.nbytes) for buf in bufs) <= SMALL_BYTES
        for batch in [bufs] if small else _batches(bufs, self._board.layout.num_places):
            staged = self._publish(watch.call, batch if self.rank == root else [], small)
            self._arrive_and_compare(watch)
            if self.rank != root:
                for index, buf in enumerate(batch):
                    buf.copy_(self._board.peer_bytes(root, index).view(buf.dtype))
            if not small:
                self._board.arrive(watch)
            del staged

    def _allgather(self, out: Tensor, buf: Tensor, counts: list[int], watch: Watch) -> None:
        small = max(counts) * buf.itemsize <= SMALL_BYTES
        staged = self._publish(watch.call, [buf], small)
        self._arrive_and_compare(watch)
        for r, part in enumerate(torch.split(out, counts)):
            part.copy_(buf if r == self.rank else self._board.peer_bytes(r, 0).view(buf.dtype))
        if not small:
            self._board.arrive(watch)
        del staged

    def _reduce_scatter(self, out: Tensor, buf: Tensor, counts: list[int], op: Op, watch: Watch) -> None:
        small = buf.nbytes <= SMALL_BYTES
        staged = self._publish(watch.call, [buf], small)
        self._arrive_and_compare(watch)
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
        self._turn_page(watch.call)
        offset = 0
        for r, count in enumerate(in_counts):
            board.write_place(r, place, count * buf.itemsize, offset)
            offset += count * buf.itemsize
        self._arrive_and_compare(watch)
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
        self._turn_page(watch.call)
        self._arrive_and_compare(watch)

    def _exchange(self, key: str, obj: Any, watch: Watch) -> list[Any]:
        self._barrier(watch)  # here messages move on while members are late; in the control plane they would not
        return super()._exchange(key, obj, watch)

    def _fail(self, error: BaseException, call: Call) -> None:
        """As inherited; where a member's memory cannot be opened it raises the cause instead: `PeerLost`, or else `CommError`."""
        if isinstance(error, Unreachable):  # the member may have died before we opened its memory
            raise_root_cause(Watch(self, call, self.time_limit_s), error, "shared memory")
        super()._fail(error, call)

    # ---- messages --------------------------------------------------------------------------------------------------

    def _start_send(self, buf: Tensor, dest: int, tag: int, watch: Watch) -> Work[None]:
        return self._mailbox.start_send(buf, dest, tag, watch)

    def _start_recv(self, buf: Tensor, source: int, tag: int, watch: Watch) -> Work[Envelope]:
        return self._mailbox.start_recv(buf, source, tag, watch)

    def _subgroup(self, group: Group) -> Communicator:
        # A part of the job spins no more than the whole: the others need their cores too.
        num_cpus = self._num_cpus if self._board.spin_s else 0
        return open_shm(group, self.control, self.time_limit_s, num_cpus, self._office)

    def _close(self) -> None:
        if self._board is not None:
            self._all_reduce.clear()
            self._mailbox.close()
            self._board.close()
            self._arena.release()
            del self._board, self._mailbox
            self._board = None  # type: ignore[assignment]

    # ---- parts of a collective -------------------------------------------------------------------------------------

    def _turn_page(self, call: Call) -> None:
        """Begins a collective: writes the call on this rank's next page."""
        self._board.turn_page(self._board.text_of(call))

    def _arrive_and_compare(self, watch: Watch) -> None:
        """Waits for the pages of all ranks; raises if one of them shows another call."""
        self._board.arrive(watch)
        self._board.refuse_other_calls(self._board.text_of(watch.call), watch)

    def _mapped(self, buf: Tensor) -> tuple[Tensor, Place | None]:
        """Returns the buffer itself if the peers can read it, else a copy that they can read, and its place; an empty one needs
        no place."""
        place = self._arena.place(buf)
        if place is not None or buf.numel() == 0:
            return buf, place
        staged = self._arena.empty(buf.numel(), buf.dtype)
        staged.copy_(buf)
        return staged, self._arena.place(staged)

    def _reached(self, rank: int, shown: Sequence[tuple[int, PackedPlace | None]]) -> list[Tensor]:
        """Returns the buffers of a rank by type and place; those without a place are empty."""
        return [
            (torch.empty(0) if place is None else self._board.bytes_at(rank, place)).view(DTYPES[dtype]) for dtype, place in shown
        ]

    def _publish(self, call: Call, bufs: list[Tensor], small: bool) -> list[Tensor]:
        """Begins a collective in which the others read `bufs`; the result must stay alive until they have."""
        held = [] if small else [self._mapped(buf) for buf in bufs]
        self._turn_page(call)
        offset = 0
        for index, buf in enumerate(bufs):
            if small:
                self._board.write_place(index, None, buf.nbytes, offset)
                self._board.small_data(self.rank, buf.nbytes, offset).view(buf.dtype).copy_(buf)
                offset += aligned(buf.nbytes)
            else:
                self._board.write_place(index, held[index][1], buf.nbytes)
        return [tensor for tensor, _ in held]


def _batches(bufs: list[Tensor], most: int) -> list[list[Tensor]]:
    """Returns the buffers in lists of at most `most`."""
    return [bufs[start : start + most] for start in range(0, len(bufs), most)]
