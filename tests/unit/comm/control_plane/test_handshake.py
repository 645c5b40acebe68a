"""Only who knows the token is believed, and nothing overheard can be used again."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from unisono.comm.control_plane.handshake import MAGIC, NONCE_BYTES, PROOF_BYTES, Challenge, HandshakeFailed
from unisono.comm.control_plane.job_pass import Pass
from unisono.comm.control_plane.plain import encode
from unisono.comm.control_plane.seals import SEAL_BYTES, seal, unseal
from unisono.errors import UsageError

PORT = 20000
HELLO = {"rank": 1}


def second_message(token: str, first: bytes, reply: bytes, port: int = PORT, label: bytes = b"member") -> bytes:
    """What a member sends, written out here independently of the code under test."""
    nonces = first[len(MAGIC) :] + reply[len(MAGIC) : len(MAGIC) + NONCE_BYTES]
    content = encode(HELLO)
    text = label + b"\n" + port.to_bytes(4, "little") + nonces + content
    return hmac.new(token.encode(), text, hashlib.sha256).digest() + content


def test_a_member_is_believed() -> None:
    challenge = Challenge(Pass("token"), PORT)
    first = MAGIC + b"n" * NONCE_BYTES
    before = challenge.answered
    reply = challenge.answer(first)
    assert (before, challenge.answered) == (False, True)
    assert challenge.verify(second_message("token", first, reply)) == HELLO


def test_what_was_overheard_cannot_be_played_again() -> None:
    first = MAGIC + b"n" * NONCE_BYTES
    overheard = second_message("token", first, Challenge(Pass("token"), PORT).answer(first))
    again = Challenge(Pass("token"), PORT)
    again.answer(first)
    with pytest.raises(HandshakeFailed):
        again.verify(overheard)


def test_wrong_token_port_or_content() -> None:
    first = MAGIC + b"n" * NONCE_BYTES
    challenge = Challenge(Pass("token"), PORT)
    reply = challenge.answer(first)
    good = second_message("token", first, reply)
    hubs_own_proof = reply[-2 * PROOF_BYTES : -PROOF_BYTES] + encode(HELLO)
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
        Challenge(Pass("token"), PORT).answer(first)


def test_only_one_proof_is_given_to_a_visitor() -> None:
    challenge = Challenge(Pass("token"), PORT)
    challenge.answer(MAGIC + b"n" * NONCE_BYTES)
    with pytest.raises(HandshakeFailed):
        challenge.answer(MAGIC + b"m" * NONCE_BYTES)


def greeted(own: Pass, proved: str, label: bytes, is_here: bool) -> Challenge | None:
    """The hub's side after a member has proved that it knows `proved`; None where the hub refused it."""
    challenge, first = Challenge(own, PORT, is_here), MAGIC + b"n" * NONCE_BYTES
    reply = challenge.answer(first)
    try:
        assert challenge.verify(second_message(proved, first, reply, label=label)) == HELLO
    except HandshakeFailed:
        return None
    return challenge


@pytest.mark.parametrize("is_here", [True, False])
def test_the_public_name_does_not_replace_the_secret(is_here: bool) -> None:
    own = Pass("secret", "name")
    for key, label in (("name", b"member"), ("name", b"member by name"), ("", b"member"), ("", b"member by name")):
        assert greeted(own, key, label, is_here) is None
        assert greeted(Pass("secret"), key, label, is_here) is None
    assert greeted(own, "secret", b"member", is_here) is not None


def test_where_other_hosts_cannot_know_the_secret_they_need_the_name_only() -> None:
    own = Pass("secret", "name", "homes differ")
    assert greeted(own, "name", b"member by name", is_here=True) is None, "this host has the same file"
    by_name, by_secret = greeted(own, "name", b"member by name", is_here=False), greeted(own, "secret", b"member", is_here=False)
    assert by_name is not None and by_name.is_by_name
    assert by_secret is not None and not by_secret.is_by_name
    assert greeted(own, "another", b"member by name", is_here=False) is None
    assert greeted(Pass("", "name", "no home"), "name", b"member by name", is_here=True) is not None


def test_objects_are_unpickled_only_if_this_job_has_sealed_them() -> None:
    own = Pass("secret", "name")
    assert unseal(own, seal(own, b"pickle")) == b"pickle"
    for forged in (b"pickle", bytes(SEAL_BYTES) + b"pickle", seal(Pass("name", "name"), b"pickle"), seal(own, b"pickle")[:-1], b""):
        with pytest.raises(UsageError, match="were received, but not unpickled: they do not carry the seal of this job"):
            unseal(own, forged)
    without = Pass("", "name", "there is no home directory")
    with pytest.raises(UsageError, match=r"cannot be sent: .* no common secret: there is no home directory; export UNISONO_TOKEN"):
        seal(without, b"pickle")
    with pytest.raises(UsageError, match="no common secret: there is no home directory"):
        unseal(without, seal(own, b"pickle"))
