"""What travels over ZeroMQ is read exactly or not at all."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from unisono.comm.calls import DTYPES
from unisono.comm.exchange.zmq_frames import (
    MAX_TAIL,
    PART_BYTES,
    Malformed,
    MessageType,
    copy_vector,
    flat,
    pack,
    split_bytes,
    unpack,
)
from unisono.errors import UsageError

HERE = b"12345678"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_message_comes_out_as_it_went_in(dtype: torch.dtype) -> None:
    vector = torch.arange(-3, 100).to(dtype)
    tail = np.array([0.1, -np.inf, 1e300, 5e-324])
    head = pack(MessageType.CALL, HERE, 2**62, 2**63 + 5, -(2**63), tail, vector)
    message = unpack([memoryview(head), *split_bytes(vector)])
    assert (message.message_type, message.incarnation, message.number) == (MessageType.CALL, HERE, 2**62)
    assert (message.turn, message.kind) == (2**63 + 5, -(2**63))
    assert message.tail.tolist() == tail.tolist()
    landed = copy_vector(message, None)
    assert landed is not None
    assert landed.dtype == dtype
    assert torch.equal(landed, vector)
    again = copy_vector(message, landed)
    assert again is not None
    assert again.data_ptr() == landed.data_ptr()


def test_a_long_vector_travels_in_parts() -> None:
    vector = torch.arange(3 * PART_BYTES // 8 + 1)
    parts = split_bytes(vector)
    assert [part.nbytes for part in parts] == [PART_BYTES] * 3 + [8]
    landed = copy_vector(unpack([memoryview(pack(MessageType.CALL, HERE, 1, vector=vector)), *parts]), None)
    assert landed is not None
    assert torch.equal(landed, vector)


def test_without_vector_and_with_an_empty_one() -> None:
    assert copy_vector(unpack([memoryview(pack(MessageType.PING, HERE, 1))]), torch.ones(3)) is None
    empty = torch.empty(0, dtype=torch.bfloat16)
    landed = copy_vector(unpack([memoryview(pack(MessageType.CALL, HERE, 1, vector=empty)), *split_bytes(empty)]), torch.ones(3))
    assert landed is not None
    assert landed.dtype == torch.bfloat16
    assert landed.numel() == 0


def test_what_cannot_travel_is_refused_before_it_does() -> None:
    with pytest.raises(UsageError, match="not contiguous"):
        flat(torch.zeros(4, 4).t()[1:])
    with pytest.raises(UsageError, match="complex64"):
        flat(torch.zeros(4, dtype=torch.complex64))
    with pytest.raises(UsageError, match=f"tail of {MAX_TAIL + 1} numbers"):
        pack(MessageType.CALL, HERE, 1, tail=np.zeros(MAX_TAIL + 1))
    pack(MessageType.CALL, HERE, 1, tail=np.zeros(MAX_TAIL))


GOOD = pack(MessageType.CALL, HERE, 3, 4, 5, [1.0, 2.0], torch.zeros(6))
BAD = {
    "empty": [b""],
    "short": [GOOD[:30], bytes(24)],
    "other magic": [b"X" + GOOD[1:], bytes(24)],
    "no such word": [GOOD[:4] + b"\xc8" + GOOD[5:], bytes(24)],
    "no such type": [GOOD[:5] + b"\xc8" + GOOD[6:], bytes(24)],
    "tail cut off": [GOOD[:-8], bytes(24)],
    "tail too long": [GOOD + bytes(8), bytes(24)],
    "vector missing": [GOOD],
    "vector cut off": [GOOD, bytes(23)],
    "vector too long": [GOOD, bytes(28)],
    "vector not announced": [pack(MessageType.CALL, HERE, 3), bytes(24)],
    "empty vector not announced": [pack(MessageType.CALL, HERE, 3), b""],
    "parts too long together": [GOOD, bytes(24), bytes(24)],
}


@pytest.mark.parametrize("parts", BAD.values(), ids=BAD.keys())
def test_what_is_no_message_is_refused(parts: list[bytes]) -> None:
    unpack([memoryview(GOOD), memoryview(bytes(24))])
    with pytest.raises(Malformed):
        unpack([memoryview(part) for part in parts])


def test_no_bytes_raise_anything_else() -> None:
    draw = random.Random(1)
    for _ in range(3000):
        head = bytearray(GOOD)
        for _ in range(draw.randrange(1, 4)):
            head[draw.randrange(len(head))] = draw.randrange(256)
        try:
            unpack([memoryview(head), memoryview(bytes(24))])
        except Malformed:
            continue
