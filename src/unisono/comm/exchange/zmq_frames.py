"""The message format over ZeroMQ: a header followed by the tail, and the bytes of the vector in parts.

    [ header | tail, float64 ]  [ vector ... ]  [ ... ]

ZeroMQ delivers a message wholly or not at all. As a vector is cut, one end encrypts a part while the other decrypts the one before,
and both stay in their caches: 20 MB take half the time that they take in one piece.

`unpack` raises Malformed for a message whose header does not match its contents exactly.
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
from unisono.comm.exchange.base import Numbers
from unisono.errors import UsageError

_HEADER = struct.Struct("<4sBBxxIq8sQqQ")
_MAGIC = b"UNX1"
MAX_TAIL = 8000
PART_BYTES = 256 * 1024
HEAD_BYTES = _HEADER.size + 8 * MAX_TAIL
"""The longest first part of a message."""
NO_NUMBER = -1
"""The number of a caller that has not joined yet."""
NO_INCARNATION = bytes(8)
"""The incarnation in messages of a caller that knows no server yet."""


class Malformed(Exception):
    """Raised for a message that no server or worker of this version sends."""


class MessageType(IntEnum):
    HELLO = 1
    """Asks to join. Sent again with the same `turn` it gets the same number."""
    WELCOME = 2
    """Gives the caller its number; tail: seconds between two beats, most bytes of a part of a message."""
    CALL = 3
    REPLY = 4
    PING = 5
    """Asks whether the server is up and has received the call of this turn."""
    PONG = 6
    """Answer to PING: `kind` is 1 if that call has arrived, else 0, and it must be sent again."""
    BEAT = 7
    """Heartbeat."""
    GOODBYE = 8
    UNKNOWN_WORKER = 9
    """The server does not know this worker: the answer to a call or ping that has no effect."""


class Message(NamedTuple):
    message_type: MessageType
    incarnation: bytes
    """Incarnation of the server that gave the number."""
    number: int
    turn: int
    """Number of the call of this caller; a question and its answers have the same."""
    kind: int
    tail: Numbers
    dtype: torch.dtype | None
    """Type of the vector, if there is one."""
    numel: int
    body: Sequence[memoryview]


def pack(
    message_type: MessageType,
    incarnation: bytes,
    number: int,
    turn: int = 0,
    kind: int = 0,
    tail: Sequence[float] | Numbers = (),
    vector: Tensor | None = None,
) -> bytes:
    """Pure: returns the first part of a message; `split_bytes(vector)` are the others."""
    numbers = np.asarray(tail, "<f8")
    if numbers.size > MAX_TAIL:
        raise UsageError(f"a tail of {numbers.size} numbers is too long, one message holds {MAX_TAIL}; send them as a vector")
    code = 0 if vector is None else DTYPES.index(vector.dtype) + 1
    numel = 0 if vector is None else vector.numel()
    return _HEADER.pack(_MAGIC, message_type, code, numbers.size, number, incarnation, turn, kind, numel) + numbers.tobytes()


def unpack(parts: Sequence[memoryview]) -> Message:
    """Pure: returns the message in these parts, whose memory it shares but for the tail; raises Malformed."""
    head, *body = parts
    if head.nbytes < _HEADER.size:
        raise Malformed(f"a header of {head.nbytes} instead of {_HEADER.size} bytes")
    magic, message_type, code, num_tail, number, incarnation, turn, kind, numel = _HEADER.unpack_from(head)
    if magic != _MAGIC or message_type not in frozenset(MessageType) or code > len(DTYPES):
        raise Malformed("its header is not of this version")
    if head.nbytes != _HEADER.size + 8 * num_tail:
        raise Malformed(f"{head.nbytes - _HEADER.size} bytes of tail instead of {8 * num_tail}")
    dtype = DTYPES[code - 1] if code else None
    num_bytes = sum(part.nbytes for part in body)
    if num_bytes != (numel * dtype.itemsize if dtype else 0) or (dtype is None and (body or numel)):
        raise Malformed(f"{num_bytes} bytes of vector for {numel} elements of {dtype}")
    tail = np.frombuffer(head, "<f8", num_tail, _HEADER.size).copy()
    return Message(MessageType(message_type), incarnation, number, turn, kind, tail, dtype, numel, body)


def flat(vector: Tensor) -> Tensor:
    """Pure: returns the vector in the form in which it is sent; raises UsageError if it cannot be sent."""
    return flat_views(vector, torch.device("cpu"), "zmq")[0]


def split_bytes(vector: Tensor) -> list[memoryview]:
    """Pure: returns the bytes of a flat vector in parts, not copied."""
    whole = vector.view(torch.uint8).numpy()
    return [whole[start : start + PART_BYTES].data for start in range(0, whole.size, PART_BYTES)]


def copy_vector(message: Message, place: Tensor | None) -> Tensor | None:
    """Local: copies the vector of the message into `place` if it fits there, else into new memory. It is copied, since the memory
    that ZeroMQ
            returns is aligned by chance, and sums over a vector may depend on that."""
    if message.dtype is None:
        return None
    if place is None or place.dtype != message.dtype or place.numel() != message.numel:
        place = torch.empty(message.numel, dtype=message.dtype)
    whole, start = place.view(torch.uint8).numpy(), 0
    for part in message.body:
        whole[start : start + part.nbytes] = np.frombuffer(part, np.uint8)
        start += part.nbytes
    return place
