"""Sums blocks in tree order with the collectives that every engine has.

A long vector is cut into a slice for each rank. Slice r of every block goes to rank r by all-to-all, rank r adds them in the order
of the tree, and the sums are gathered. With one block on each of N ranks a rank sends (N - 1) / N of the vector twice, as in a ring
all-reduce. Short vectors travel together: all blocks are gathered at once, and every rank sums all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from unisono.comm.base import Communicator, even_slices

GATHERED_BYTES = 256 * 1024
"""Vectors are short if all their blocks are no longer than this."""
_ALIGN = 16
"""Bytes: where a vector may start inside a message."""

Addition = tuple[Tensor, Tensor, Tensor]
"""Left, right, and the target of the sum."""


class SumOfSlices:
    """The method for all engines. Its vectors are like `vectors`; rank r holds `num_blocks[r]` blocks, which are combined by
    `merges`."""

    def __init__(
        self, comm: Communicator, vectors: Sequence[Tensor], num_blocks: Sequence[int], merges: Sequence[tuple[int, int]]
    ) -> None:
        is_short = [vector.nbytes * sum(num_blocks) <= GATHERED_BYTES for vector in vectors]
        short = [place for place, vector in enumerate(vectors) if is_short[place] and vector.numel()]
        self._long = [
            (place, _Sliced(comm, vector, num_blocks, merges)) for place, vector in enumerate(vectors) if not is_short[place]
        ]
        self._short = short
        self._gathered = _Gathered(comm, [vectors[place] for place in short], num_blocks, merges) if short else None

    def run(self, blocks: Sequence[Sequence[Tensor]]) -> None:
        """Collective, blocking: see `ordered_sum.SumMethod`."""
        for place, sliced in self._long:
            sliced.run([block[place] for block in blocks])
        if self._gathered is not None:
            self._gathered.run([[block[place] for place in self._short] for block in blocks])


class _Sliced:
    """One long vector."""

    def __init__(self, comm: Communicator, like: Tensor, num_blocks: Sequence[int], merges: Sequence[tuple[int, int]]) -> None:
        self._comm = comm
        self._counts = [part.stop - part.start for part in even_slices(like.numel(), comm.size)]
        own = self._counts[comm.rank]
        self._nothing = comm.empty(0, like.dtype)
        self._mine = comm.empty(own, like.dtype)
        received = comm.empty(sum(num_blocks) * own, like.dtype)
        firsts = [0, *accumulate(num_blocks)]
        self._rounds: list[tuple[Tensor, list[int], list[int]]] = []
        """Rounds of the all-to-all: in round k every rank that has so many blocks sends slices of its k-th block. Each has the
        buffer of what arrives, and the elements from and to each rank."""
        slices: dict[int, Tensor] = {}
        start = 0
        for turn in range(max(num_blocks)):
            holders = [r for r, count in enumerate(num_blocks) if count > turn]
            arriving = received[start : start + len(holders) * own]
            start += len(holders) * own
            slices |= {firsts[r] + turn: part for r, part in zip(holders, arriving.view(len(holders), own), strict=True)}
            sent = self._counts if comm.rank in holders else [0] * comm.size
            self._rounds.append((arriving, [own if r in holders else 0 for r in range(comm.size)], sent))
        self._additions = _additions(slices, merges, self._mine)

    def run(self, blocks: Sequence[Tensor]) -> None:
        """Collective, blocking: sums the blocks slice by slice, one slice on each rank; the last block holds the total."""
        for turn, (arriving, out_counts, in_counts) in enumerate(self._rounds):
            block = blocks[turn] if turn < len(blocks) else self._nothing
            self._comm.alltoall(arriving, block, out_counts, in_counts)
        _perform_additions(self._additions)
        self._comm.allgather(blocks[-1], self._mine, self._counts)


class _Gathered:
    """All short vectors: a message is a row for each block, with one vector after another."""

    def __init__(
        self, comm: Communicator, like: Sequence[Tensor], num_blocks: Sequence[int], merges: Sequence[tuple[int, int]]
    ) -> None:
        self._comm = comm
        starts = [0, *accumulate(-(-vector.nbytes // _ALIGN) * _ALIGN for vector in like)]
        row_bytes = starts[-1]
        self._counts = [count * row_bytes for count in num_blocks]
        self._sent = comm.empty(self._counts[comm.rank], torch.uint8).zero_()
        self._received = comm.empty(sum(self._counts), torch.uint8)

        def rows(message: Tensor) -> list[list[Tensor]]:
            return [
                [row[start : start + vector.nbytes].view(vector.dtype) for start, vector in zip(starts, like, strict=False)]
                for row in message.view(-1, row_bytes)
            ]

        self._own = rows(self._sent)
        everybody = rows(self._received)
        self._totals = everybody[0]
        self._additions = [
            addition
            for place, total in enumerate(self._totals)
            for addition in _additions({number: row[place] for number, row in enumerate(everybody)}, merges, total)
        ]

    def run(self, blocks: Sequence[Sequence[Tensor]]) -> None:
        """Collective, blocking: gathers all blocks on every rank and sums them there; the last block holds the total."""
        for row, block in zip(self._own, blocks, strict=True):
            for place, vector in zip(row, block, strict=True):
                place.copy_(vector)
        self._comm.allgather(self._received, self._sent, self._counts)
        _perform_additions(self._additions)
        for vector, total in zip(blocks[-1], self._totals, strict=True):
            vector.copy_(total)


def _additions(parts: dict[int, Tensor], merges: Sequence[tuple[int, int]], total: Tensor) -> list[Addition]:
    """Returns the additions: the target of the last is `total`, that of the others their left part."""
    *inner, (left, right) = merges
    return [*((parts[one], parts[other], parts[one]) for one, other in inner), (parts[left], parts[right], total)]


def _perform_additions(additions: Sequence[Addition]) -> None:
    """Performs the additions in their order."""
    for left, right, into in additions:
        torch.add(left, right, out=into)
