"""The rounds in which the ranks of a set negotiate, over small collectives of the communicator."""

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
"""Bytes of the block that each rank sends at once, and of the length at its beginning."""
_STEP = 64
"""The vector grows in such steps, so that its all-reduce is seldom a new one to the engine."""


@dataclass(frozen=True)
class Round:
    """The result of one round, the same on all ranks."""

    agreed: list[Agreement]
    all_leave: bool
    requests: Sequence[Sequence[Request]] = ()
    """The full requests of each rank, by rank of the set; empty if no rank had any to send."""


class Negotiator:
    """Negotiates over a communicator, in one thread."""

    def __init__(self, comm: Communicator, capacity: int) -> None:
        self._comm = comm
        self._marks = comm.empty(HEAD + capacity + _STEP, torch.uint8)
        self._block = comm.empty(_BLOCK, torch.uint8)
        self._blocks = comm.empty(comm.size * _BLOCK, torch.uint8)

    def round(self, negotiation: Negotiation, leaving: bool) -> Round:
        """Runs one round: a short all-reduce, and one or two gathers if a rank has new requests. Collective over the set,
        blocking."""
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
        """Gathers the requests of all ranks: short ones in one block of fixed size, longer ones in a second gather. Collective."""
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
        # Ranks mostly send the same: decoding it once and not a thousand times makes the first step fast on many ranks.
        read = {payload: [Request.from_plain(plain) for plain in decode(payload)] for payload in set(payloads)}
        return [read[payload] for payload in payloads]
