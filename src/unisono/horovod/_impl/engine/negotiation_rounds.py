"""The rounds in which the ranks of a set negotiate, over the communicator's own small collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from unisono.comm.base import MIN, Communicator
from unisono.comm.control_plane.plain import decode, encode
from unisono.horovod._impl.engine.agreed_operation import Agreement
from unisono.horovod._impl.engine.negotiation import HEAD, Negotiation
from unisono.horovod._impl.engine.operation_request import Request

_BLOCK, _LENGTH = 1024, 8
"""Bytes of what a rank tells at once, and of the length that stands before it."""
_STEP = 64
"""The vector grows in such steps, so that its all-reduce is seldom a new one to the engine."""


@dataclass(frozen=True)
class Round:
    """What came of it, the same on all ranks."""

    agreed: list[Agreement]
    all_leave: bool
    requests: Sequence[Sequence[Request]] = ()
    """What each rank told in full, by rank of the set; nothing if nobody had something to tell."""


class Negotiator:
    """One thread's side of it."""

    def __init__(self, comm: Communicator, capacity: int) -> None:
        self._comm = comm
        self._marks = comm.empty(HEAD + capacity + _STEP, torch.uint8)
        self._block = comm.empty(_BLOCK, torch.uint8)
        self._blocks = comm.empty(comm.size * _BLOCK, torch.uint8)

    def round(self, negotiation: Negotiation, leaving: bool) -> Round:
        """Collective over the set, blocking: one short all-reduce, and one or two gathers if somebody has something new."""
        num_marks = negotiation.num_marks
        vector = self._marks[: -(-num_marks // _STEP) * _STEP]
        marks = vector.numpy()
        marks[num_marks:] = 0
        negotiation.mark(marks[:num_marks], leaving)
        self._comm.allreduce(vector, MIN)
        all_know, all_leave = bool(marks[0]), bool(marks[1])
        agreed = negotiation.apply_marks(marks[:num_marks])
        if all_know:
            return Round(agreed, all_leave)
        requests = self._exchange_requests(negotiation.take_unsent())
        return Round(agreed + negotiation.apply_requests(requests), all_leave, requests)

    def _exchange_requests(self, mine: list[Request]) -> list[list[Request]]:
        """Collective: what each rank tells. What is short goes in one block of fixed size, what is longer in a second gather."""
        comm, blocks = self._comm, self._blocks
        requests = encode([request.as_plain() for request in mine])
        own = self._block.numpy()
        own[:_LENGTH] = np.frombuffer(len(requests).to_bytes(_LENGTH, "little"), np.uint8)
        begin = requests[: _BLOCK - _LENGTH]
        own[_LENGTH : _LENGTH + len(begin)] = np.frombuffer(begin, np.uint8)
        comm.allgather(blocks, self._block)
        parts = [block.tobytes() for block in blocks.view(comm.size, _BLOCK).numpy()]
        counts = [int.from_bytes(part[:_LENGTH], "little") for part in parts]
        if max(counts) > _BLOCK - _LENGTH:
            everything = torch.empty(sum(counts), dtype=torch.uint8, device="cpu")
            comm.allgather(everything, torch.frombuffer(bytearray(requests), dtype=torch.uint8), counts)
            payloads = [part.numpy().tobytes() for part in everything.split_with_sizes(counts)]
        else:
            payloads = [part[_LENGTH : _LENGTH + count] for part, count in zip(parts, counts, strict=True)]
        # Ranks mostly tell the same: to read that once and not a thousand times is what the first step takes on many ranks.
        read = {payload: [Request.from_plain(plain) for plain in decode(payload)] for payload in set(payloads)}
        return [read[payload] for payload in payloads]
