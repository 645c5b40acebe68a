"""Sums over the shards of a step with the same bits whatever the number of ranks: `OrderedSum`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from unisono.comm.base import Communicator
from unisono.comm.ordered.shard_tree import merges, num_additions, whole_subtrees
from unisono.comm.ordered.sum_in_memory import SumInMemory
from unisono.comm.ordered.sum_of_slices import SumOfSlices
from unisono.errors import UsageError


class SumMethod(Protocol):
    """The interface of methods that sum the blocks of all ranks."""

    def run(self, blocks: Sequence[Sequence[Tensor]]) -> None:
        """Collective, blocking: sums the blocks of all ranks. `blocks` are the vectors of each own block; afterwards those of
        the last one hold the total."""


class OrderedSum:
    """Sums of vectors over shards, in one fixed order, whichever ranks hold them.

    The order is a binary tree over all shards (`shard_tree.py`), and every sum is made in the vector's own type. Each rank sums the
    largest whole subtrees of its own shards, its blocks, while they come; `finish` combines the blocks of all ranks. A rank whose
    shards are one subtree keeps nothing besides and sends no more than in a ring all-reduce; otherwise it has some blocks more, at
    most two for each doubling of its number of shards.

    The vectors are flat, contiguous, of floating types, and alike in number, length and type on all ranks and in every step. If
    they are not on the device of the communicator, they are copied to it and back. Memory is taken in the first step; give the same
    tensors in every step: others may be given, but those of the first may be written too.
    """

    def __init__(self, comm: Communicator, ranges: Sequence[range]) -> None:
        """Local. `ranges[r]` are the shards of rank r: at least one each, one after another from shard 0."""
        follows = all(one.stop == other.start for one, other in pairwise(ranges))
        if len(ranges) != comm.size or ranges[0].start != 0 or not follows or not all(ranges):
            raise UsageError(
                f"the shards of {comm.size} ranks must follow one another from shard 0, at least one each; received {list(ranges)}"
            )
        num_shards = ranges[-1].stop
        blocks = [whole_subtrees(num_shards, own.start, own.stop) for own in ranges]
        self._comm = comm
        self._num_blocks = [len(some) for some in blocks]
        self._merges = merges(num_shards, [block for some in blocks for block in some])
        self._num_additions = num_additions(num_shards, [range(shard, shard + 1) for shard in ranges[comm.rank]])
        self._num_added = 0
        self._stack: list[list[Tensor]] = []
        """Sums of subtrees, without the newest if it ends with the last shard; `_height` of them are in use."""
        self._height = 0
        self._shapes: list[tuple[int, torch.dtype, torch.device]] = []
        self._last: Sequence[Tensor] = ()
        self._carried: list[list[Tensor]] = []
        self._method: SumMethod | None = None

    def add(self, vectors: Sequence[Tensor]) -> None:
        """Local: adds the vectors of the next own shard, in order. The caller may overwrite them afterwards, except the last
        shard's."""
        self._check_vectors(vectors)
        count = self._num_additions[self._num_added]
        self._num_added += 1
        is_last = self._num_added == len(self._num_additions)
        top = vectors
        for _ in range(count):
            self._height -= 1
            left = self._stack[self._height]
            into = top if is_last else left
            for first, second, out in zip(left, top, into, strict=True):
                torch.add(first, second, out=out)
            top = into
        if is_last:
            self._last = vectors
            return
        if top is vectors:
            for kept, vector in zip(self._level(vectors), vectors, strict=True):
                kept.copy_(vector)
        self._height += 1

    def finish(self) -> None:
        """Collective, blocking: computes the total; the vectors given with the last own shard hold it afterwards, with the same
        bits on every rank and for every division into ranks."""
        if self._num_added != len(self._num_additions):
            raise UsageError(
                f"{self._num_added} of {len(self._num_additions)} shards of rank {self._comm.rank} were added; add all first"
            )
        vectors, self._last = self._last, ()
        blocks = [*self._stack[: self._height], vectors]
        self._num_added = self._height = 0
        if self._comm.size == 1:
            return
        if any(vector.device != self._comm.device for vector in vectors):
            blocks = self._brought(blocks)
        if self._method is None:
            self._method = self._choose(blocks)
        self._method.run(blocks)
        if blocks[-1] is not vectors:
            for vector, total in zip(vectors, blocks[-1], strict=True):
                vector.copy_(total)

    def _choose(self, blocks: Sequence[Sequence[Tensor]]) -> SumMethod:
        """Collective, blocking: returns the method of summing: in shared memory where the engine has it, else by messages."""
        shared = self._comm.share([vector for block in blocks for vector in block])
        if shared is not None:
            return SumInMemory(self._comm, shared, len(blocks[0]), self._merges)
        return SumOfSlices(self._comm, blocks[0], self._num_blocks, self._merges)

    def _level(self, vectors: Sequence[Tensor]) -> list[Tensor]:
        """Returns the vectors of the next free level of the stack."""
        if self._height == len(self._stack):
            self._stack.append([self._empty_like(vector) for vector in vectors])
        return self._stack[self._height]

    def _empty_like(self, vector: Tensor) -> Tensor:
        """Returns an uninitialised vector of the same size and type, in the communicator's memory if the device is the same."""
        if vector.device == self._comm.device:
            return self._comm.empty(vector.numel(), vector.dtype)
        return torch.empty_like(vector)

    def _brought(self, blocks: Sequence[Sequence[Tensor]]) -> list[Sequence[Tensor]]:
        """Returns copies of the blocks on the communicator's device."""
        if not self._carried:
            self._carried = [[self._comm.empty(one.numel(), one.dtype) for one in block] for block in blocks]
        for copies, block in zip(self._carried, blocks, strict=True):
            for copy, vector in zip(copies, block, strict=True):
                copy.copy_(vector)
        return list(self._carried)

    def _check_vectors(self, vectors: Sequence[Tensor]) -> None:
        """Raises `UsageError` for a shard too many, or vectors that are not flat or differ from those of the first shard."""
        if self._num_added == len(self._num_additions):
            raise UsageError(f"all {self._num_added} shards of rank {self._comm.rank} were already added; call finish")
        shapes = [(vector.numel(), vector.dtype, vector.device) for vector in vectors]
        if shapes == self._shapes:
            return
        if self._shapes:
            raise UsageError(f"a shard has vectors of other sizes, types or devices than the first: {shapes}, not {self._shapes}")
        for place, vector in enumerate(vectors):
            if vector.dim() != 1 or not vector.is_contiguous() or not vector.is_floating_point():
                raise UsageError(
                    f"vector {place} of a shard is {vector.dtype} of shape {tuple(vector.shape)}, strides {vector.stride()}; "
                    "give flat, contiguous vectors of a floating type"
                )
        self._shapes = shapes
