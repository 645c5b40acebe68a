"""Only who knows the token is believed, and nothing overheard can be used again."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from unisono.comm.control_plane.handshake import MAGIC, NONCE_BYTES, PROOF_BYTES, Challenge, HandshakeFailed
from unisono.comm.control_plane.plain import encode

PORT = 20000
HELLO = {"rank": 1}


def second_message(token: str, first: bytes, reply: bytes, port: int = PORT) -> bytes:
    """What a member sends, written out here independently of the code under test."""
    nonces = first[len(MAGIC) :] + reply[len(MAGIC) : len(MAGIC) + NONCE_BYTES]
    content = encode(HELLO)
    text = b"member\n" + port.to_bytes(4, "little") + nonces + content
    return hmac.new(token.encode(), text, hashlib.sha256).digest() + content


def test_a_member_is_believed() -> None:
    challenge = Challenge("token", PORT)
    first = MAGIC + b"n" * NONCE_BYTES
    before = challenge.answered
    reply = challenge.answer(first)
    assert (before, challenge.answered) == (False, True)
    assert challenge.verify(second_message("token", first, reply)) == HELLO


def test_what_was_overheard_cannot_be_played_again() -> None:
    first = MAGIC + b"n" * NONCE_BYTES
    overheard = second_message("token", first, Challenge("token", PORT).answer(first))
    again = Challenge("token", PORT)
    again.answer(first)
    with pytest.raises(HandshakeFailed):
        again.verify(overheard)


def test_wrong_token_port_or_content() -> None:
    first = MAGIC + b"n" * NONCE_BYTES
    challenge = Challenge("token", PORT)
    reply = challenge.answer(first)
    good = second_message("token", first, reply)
    hubs_own_proof = reply[-PROOF_BYTES:] + encode(HELLO)
    for bad in (
        second_message("tokem", first, reply),
        second_message("token", first, reply, PORT + 1),
        good + b"N",
        good[:-1],
        bytes([good[0] ^ 1]) + good[1:],
        hubs_own_proof,
        b"",
    ):
        with pytest.raises(HandshakeFailed):
            challenge.verify(bad)
    assert challenge.verify(good) == HELLO


@pytest.mark.parametrize("first", [b"", MAGIC, MAGIC + bytes(NONCE_BYTES - 1), MAGIC + bytes(NONCE_BYTES + 1), bytes(50)])
def test_a_greeting_that_is_none(first: bytes) -> None:
    with pytest.raises(HandshakeFailed):
        Challenge("token", PORT).answer(first)


def test_only_one_proof_is_given_to_a_visitor() -> None:
    challenge = Challenge("token", PORT)
    challenge.answer(MAGIC + b"n" * NONCE_BYTES)
    with pytest.raises(HandshakeFailed):
        challenge.answer(MAGIC + b"m" * NONCE_BYTES)
