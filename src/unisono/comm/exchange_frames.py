"""What travels over ZeroMQ: a header with the tail behind it, and the vector as it lies in memory, in parts.

    [ header | tail, float64 ]  [ vector ... ]  [ ... ]

ZeroMQ hands out a message wholly or not at all. As a vector is cut, one end encrypts a part while the other decrypts the one
before, and both stay in their caches: 20 MB take half the time that they take in one piece.

A message that does not say of itself exactly what it is made of is no message: `unpack` raises Malformed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from unisono.comm.arguments import flat_views
from unisono.comm.calls import DTYPES
from unisono.comm.exchange import Numbers
from unisono.errors import UsageError

_HEADER = struct.Struct("<4sBBxxIq8sQqQ")
_MAGIC = b"UNX1"
MOST_TAIL = 8000
PART_BYTES = 256 * 1024
HEAD_BYTES = _HEADER.size + 8 * MOST_TAIL
"""The longest first part of a message."""
NO_ONE = -1
"""The number of a caller that has none yet."""
NOWHERE = bytes(8)
"""The incarnation that a caller names which knows none yet."""


class Malformed(Exception):
    """Bytes that none of us sends."""


class Word(IntEnum):
    HELLO = 1
    """May I join? Asked again under the same `turn` it gives the same number."""
    WELCOME = 2
    """You have this number; tail: seconds between two beats, most bytes of a part of a message."""
    CALL = 3
    REPLY = 4
    PING = 5
    """Have you my call of this turn, and are you there?"""
    PONG = 6
    """`kind` is 1 if that call has come, else 0, and it must be sent again."""
    BEAT = 7
    """I live."""
    GOODBYE = 8
    STRANGER = 9
    """I do not know you: the answer to a call or ping that has no effect."""


class Message(NamedTuple):
    word: Word
    incarnation: bytes
    """Of the server that gave the number."""
    number: int
    turn: int
    """Which call of this caller; a question and its answers have the same."""
    kind: int
    tail: Numbers
    dtype: torch.dtype | None
    """Of the vector, if there is one."""
    numel: int
    body: Sequence[memoryview]


def pack(
    word: Word,
    incarnation: bytes,
    number: int,
    turn: int = 0,
    kind: int = 0,
    tail: Sequence[float] | Numbers = (),
    vector: Tensor | None = None,
) -> bytes:
    """Pure: the first part of a message; `parts_of(vector)` are the others."""
    numbers = np.asarray(tail, "<f8")
    if numbers.size > MOST_TAIL:
        raise UsageError(f"a tail of {numbers.size} numbers, but one message takes up to {MOST_TAIL}; send them as a vector")
    code = 0 if vector is None else DTYPES.index(vector.dtype) + 1
    numel = 0 if vector is None else vector.numel()
    return _HEADER.pack(_MAGIC, word, code, numbers.size, number, incarnation, turn, kind, numel) + numbers.tobytes()


def unpack(parts: Sequence[memoryview]) -> Message:
    """Pure: the message in these parts, whose memory it shares but for the tail; raises Malformed."""
    head, *body = parts
    if head.nbytes < _HEADER.size:
        raise Malformed(f"a header of {head.nbytes} instead of {_HEADER.size} bytes")
    magic, word, code, num_tail, number, incarnation, turn, kind, numel = _HEADER.unpack_from(head)
    if magic != _MAGIC or word not in frozenset(Word) or code > len(DTYPES):
        raise Malformed("no header of this version")
    if head.nbytes != _HEADER.size + 8 * num_tail:
        raise Malformed(f"{head.nbytes - _HEADER.size} bytes of tail instead of {8 * num_tail}")
    dtype = DTYPES[code - 1] if code else None
    num_bytes = sum(part.nbytes for part in body)
    if num_bytes != (numel * dtype.itemsize if dtype else 0) or (dtype is None and (body or numel)):
        raise Malformed(f"{num_bytes} bytes of vector for {numel} elements of {dtype}")
    tail = np.frombuffer(head, "<f8", num_tail, _HEADER.size).copy()
    return Message(Word(word), incarnation, number, turn, kind, tail, dtype, numel, body)


def flat(vector: Tensor) -> Tensor:
    """Pure: the vector as it can travel; raises UsageError if it cannot."""
    return flat_views(vector, torch.device("cpu"), "zmq")[0]


def parts_of(vector: Tensor) -> list[memoryview]:
    """Pure: the bytes of a flat vector, not copied."""
    whole = vector.view(torch.uint8).numpy()
    return [whole[start : start + PART_BYTES].data for start in range(0, whole.size, PART_BYTES)]


def land(message: Message, place: Tensor | None) -> Tensor | None:
    """Local: the vector of the message, in `place` if it fits there, else in memory of its own. It is copied, since what ZeroMQ
    hands out is aligned by chance, and sums over a vector may depend on that."""
    if message.dtype is None:
        return None
    if place is None or place.dtype != message.dtype or place.numel() != message.numel:
        place = torch.empty(message.numel, dtype=message.dtype)
    whole, start = place.view(torch.uint8).numpy(), 0
    for part in message.body:
        whole[start : start + part.nbytes] = np.frombuffer(part, np.uint8)
        start += part.nbytes
    return place
