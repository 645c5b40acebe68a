"""All-reduce through shared memory.

A large vector is reduced straight in the ranks' mapped buffers: rank r reduces slice r of everybody's vector, in rank order, and
writes the result into everybody's vector. No other copy is made, nobody else touches that slice, and all get the same bits. Small
ones travel inside the pages of the board, and everybody reduces all of them by itself.

Training reduces the same buffers again and again, so what follows from their addresses is worked out once: a plan holds what this
rank writes on its page, and its steps for each answer that the others have given to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from unisono.comm.base import Call, Op, Watch, even_slices
from unisono.comm.shared_memory.board import SMALL_BYTES, Board, PackedPlace, aligned, packed_place
from unisono.comm.shared_memory.reduce_slices import reduction, reduction_into, unowned_view
from unisono.comm.shared_memory.segments import Arena, Place
from unisono.comm.shared_memory.twin_sum import Step

STAGE_BYTES = 1 << 20
"""Buffers outside shared memory pass through a stage of this size."""

_MOST_STEPS = 16
"""Most sets of buffers of the others for which a plan keeps steps."""

Places = list[PackedPlace]
"""Place of one buffer in every rank: file, offset, number of bytes."""


@dataclass(frozen=True)
class Block:
    """A part of a buffer that passes through stages: this rank's stage if it needs one, and the reduction of this rank's slice."""

    part: slice
    stage: Tensor | None
    step: Step


@dataclass
class ReductionSteps:
    """One rank's part of a reduction, for the buffers whose places all ranks have published."""

    steps: list[Step] = field(default_factory=list)
    staged: list[tuple[int, list[Block]]] = field(default_factory=list)
    """Buffers that must pass through a stage, by index."""


@dataclass
class Batch:
    """A batch of buffers: as many as fit on a page."""

    bufs: slice
    head: bytes
    """Text of the call and this rank's places."""
    steps: dict[tuple[bytes, ...], ReductionSteps] = field(default_factory=dict)


@dataclass
class Plan:
    """What can be computed of a call before it is made: batches, or for a small one the steps before and after the others
    arrive, on either page."""

    num_threads: int
    head: bytes
    batches: Sequence[Batch] = ()
    small: Sequence[tuple[Sequence[Step], Sequence[Step]]] = ()


class AllReduce:
    """The all-reduce of one communicator."""

    def __init__(self, board: Board, arena: Arena) -> None:
        self._board = board
        self._arena = arena
        self._stage: Tensor | None = None

    def run(self, bufs: Sequence[Tensor], op: Op, watch: Watch) -> None:
        """Collective, blocking: reduces the buffers in place."""
        call = watch.call
        plan: Plan | None = call.plan
        if plan is None or plan.num_threads != torch.get_num_threads():
            plan = call.plan = self._new_plan(bufs, op, call)
        if not plan.small:
            for batch in plan.batches:
                self._run_batch(batch, bufs[batch.bufs], op, watch)
            return
        board = self._board
        board.turn_page(plan.head)
        before, after = plan.small[board.page]
        for step in before:
            step()
        board.arrive(watch)
        board.refuse_other_calls(plan.head, watch)
        for step in after:
            step()

    def clear(self) -> None:
        """Local: releases the stage."""
        self._stage = None

    def _run_batch(self, batch: Batch, bufs: Sequence[Tensor], op: Op, watch: Watch) -> None:
        """Runs a batch in two phases: the buffers of all are ready; every slice is reduced and written to all."""
        board = self._board
        board.turn_page(batch.head)
        board.arrive(watch)
        heads = board.heads(len(batch.head))
        job = batch.steps.get(heads)
        if job is None:
            board.refuse_other_calls(board.text_of(watch.call), watch)
            if len(batch.steps) >= _MOST_STEPS:
                batch.steps.clear()
            job = batch.steps[heads] = self._new_steps(bufs, op)
        for step in job.steps:
            step()
        board.arrive(watch)
        for index, blocks in job.staged:
            self._run_staged(bufs[index], blocks, watch)

    def _run_staged(self, buf: Tensor, blocks: Sequence[Block], watch: Watch) -> None:
        """Reduces buffers that some rank has outside shared memory: they are copied through that rank's stage, block by block."""
        for block in blocks:
            if block.stage is not None:
                block.stage.copy_(buf[block.part])
            self._board.arrive(watch)
            block.step()
            self._board.arrive(watch)
            if block.stage is not None:
                buf[block.part].copy_(block.stage)

    # ---- working out -----------------------------------------------------------------------------------------------

    def _new_plan(self, bufs: Sequence[Tensor], op: Op, call: Call) -> Plan:
        """Returns the plan of a call: the steps for small buffers, batches for large ones."""
        text, num_threads = self._board.text_of(call), torch.get_num_threads()
        if sum(aligned(buf.nbytes) for buf in bufs) <= SMALL_BYTES:
            return Plan(num_threads, text, small=[self._small_steps(bufs, op, page) for page in (0, 1)])
        batches = []
        for start in range(0, len(bufs), self._board.layout.num_places):
            part = slice(start, start + self._board.layout.num_places)
            batches.append(Batch(part, text + b"".join(self._packed(buf) for buf in bufs[part])))
        return Plan(num_threads, text, batches)

    def _packed(self, buf: Tensor) -> bytes:
        """Returns the place of a buffer; for one outside shared memory that of this rank's stage, marked by size 0."""
        place = self._arena.place(buf)
        return packed_place(self._stage_place(), 0) if place is None else packed_place(place, buf.nbytes)

    def _small_steps(self, bufs: Sequence[Tensor], op: Op, page: int) -> tuple[list[Step], list[Step]]:
        """Returns the steps for small buffers on one page: those before the others arrive (copy in) and those after (combine)."""
        board, before, after, offset = self._board, [], [], 0
        for buf in bufs:
            parts = [board.small_data(r, buf.nbytes, offset, page).view(buf.dtype) for r in range(board.size)]
            mine = unowned_view(buf)
            before.append(reduction_into(parts[board.rank], [mine], op))
            after.append(reduction_into(mine, parts, op))
            offset += aligned(buf.nbytes)
        return before, after

    def _new_steps(self, bufs: Sequence[Tensor], op: Op) -> ReductionSteps:
        """Makes this rank's steps for the buffers whose places all ranks have published."""
        board, job = self._board, ReductionSteps()
        for index, buf in enumerate(bufs):
            places = [board.place(r, index) for r in range(board.size)]
            if buf.nbytes == 0 or all(num_bytes for _, _, num_bytes in places):
                job.steps.append(self._reduction(places, buf.dtype, op))
            else:
                job.staged.append((index, self._blocks(buf, places, op)))
        return job

    def _blocks(self, buf: Tensor, places: Places, op: Op) -> list[Block]:
        """Returns the blocks of a buffer that goes through the stage, each with the reduction of its part."""
        board, blocks = self._board, []
        is_staged, step = places[board.rank][2] == 0, STAGE_BYTES // buf.itemsize
        for start in range(0, buf.numel(), step):
            part = slice(start, min(start + step, buf.numel()))
            num_bytes, done = (part.stop - part.start) * buf.itemsize, start * buf.itemsize
            now = [(fd, where + done if given else where, num_bytes) for fd, where, given in places]
            stage = board.bytes_at(board.rank, now[board.rank]).view(buf.dtype) if is_staged else None
            blocks.append(Block(part, stage, self._reduction(now, buf.dtype, op)))
        return blocks

    def _reduction(self, places: Places, dtype: torch.dtype, op: Op) -> Step:
        """Makes the reduction of this rank's slice of the vectors at `places`."""
        board = self._board
        vectors = [board.bytes_at(r, place).view(dtype) for r, place in enumerate(places)]
        mine = even_slices(vectors[0].numel(), board.size, 64)[board.rank]
        return reduction([vector[mine] for vector in vectors], op)

    def _stage_place(self) -> Place:
        """Returns the place of this rank's stage, which is made at the first call."""
        if self._stage is None:
            self._stage = self._arena.empty(STAGE_BYTES, torch.uint8)
        place = self._arena.place(self._stage)
        assert place is not None
        return place
