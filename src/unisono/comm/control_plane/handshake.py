"""Both sides prove that they know the job's token before either trusts the other; the token itself is never sent.

    member -> hub   MAGIC, nonce of the member
    hub -> member   MAGIC, nonce of the hub, HMAC("hub", port, both nonces)
    member -> hub   HMAC("member", port, both nonces, hello), hello

The nonces are random, so nothing recorded can be played again. The two labels differ, so that neither side's proof can be thrown
back at it, and the port is part of them, so that nobody who took an earlier port of the sequence can pass a proof on.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from time import monotonic
from typing import Any

from unisono.comm.control_plane.channel import UNAUTHENTICATED_LIMIT_BYTES, Channel
from unisono.comm.control_plane.plain import decode, encode
from unisono.errors import CommError, UsageError

MAGIC = b"unisono control 1\n"
NONCE_BYTES = 32
PROOF_BYTES = hashlib.sha256().digest_size
PROOF_WAIT_S = 3.0
"""Time in which a server must prove itself before the next port is tried."""


class HandshakeFailed(Exception):
    """Raised where the other side does not belong to this job, or uses another protocol."""


def authenticate(channel: Channel, token: str, port: int, hello: Mapping[str, Any], deadline: float, answer_by: float) -> Any:
    """Blocking, for a member: does the handshake, sends `hello` with the seconds left to the deadline, and returns the answer.

    Raises `HandshakeFailed`, `TimeoutError`, `EOFError` or `OSError` when there is no hub of this job at the other end.
    """
    ours = secrets.token_bytes(NONCE_BYTES)
    channel.send(MAGIC + ours)
    try:
        reply = channel.receive_one(min(deadline, monotonic() + PROOF_WAIT_S))
    except CommError as error:
        raise HandshakeFailed("does not speak unisono's protocol") from error
    if len(reply) != len(MAGIC) + NONCE_BYTES + PROOF_BYTES or not reply.startswith(MAGIC):
        raise HandshakeFailed("does not speak unisono's protocol")
    theirs, proof = reply[len(MAGIC) : -PROOF_BYTES], reply[-PROOF_BYTES:]
    if not hmac.compare_digest(proof, _proof(token, b"hub", port, ours, theirs)):
        raise HandshakeFailed("belongs to another job")
    content = encode({**hello, "left_s": deadline - monotonic()})
    channel.send(_proof(token, b"member", port, ours, theirs, content) + content)
    # From here on the hub may count this rank as present, so it must not walk away early: rank 0 may only be busy.
    return decode(channel.receive_one(answer_by))


class Challenge:
    """The hub's side of one handshake."""

    def __init__(self, token: str, port: int) -> None:
        self._token = token
        self._port = port
        self._theirs = b""
        self._ours = secrets.token_bytes(NONCE_BYTES)

    def answer(self, message: bytes) -> bytes:
        """Returns the reply to a member's first message; raises `HandshakeFailed` if it is not one."""
        if self._theirs or len(message) != len(MAGIC) + NONCE_BYTES or not message.startswith(MAGIC):
            raise HandshakeFailed("does not speak unisono's protocol")
        self._theirs = message[len(MAGIC) :]
        return MAGIC + self._ours + _proof(self._token, b"hub", self._port, self._theirs, self._ours)

    @property
    def answered(self) -> bool:
        """Whether the first message of the member was answered, so that its second one comes next."""
        return bool(self._theirs)

    def verify(self, message: bytes) -> Any:
        """Returns the hello in a member's second message; raises `HandshakeFailed` if the proof is wrong."""
        proof, content = message[:PROOF_BYTES], message[PROOF_BYTES:]
        if not hmac.compare_digest(proof, _proof(self._token, b"member", self._port, self._theirs, self._ours, content)):
            raise HandshakeFailed("belongs to another job")
        return decode(content)


def check_hello(hello: Mapping[str, Any]) -> None:
    """Refuses, before anything is sent, a hello that is longer than the hub accepts from an unauthenticated peer."""
    length = len(encode(hello))
    if length > UNAUTHENTICATED_LIMIT_BYTES // 2:
        raise UsageError(
            f"info has {length} bytes, but at most {UNAUTHENTICATED_LIMIT_BYTES // 2} are allowed at connect; send it by exchange"
        )


def _proof(token: str, label: bytes, port: int, member_nonce: bytes, hub_nonce: bytes, content: bytes = b"") -> bytes:
    """Returns the HMAC with which one side proves to the other that it knows the token of the job."""
    # Every part but the last has a fixed length or its own end, so no two sets of parts give the same text.
    text = label + b"\n" + port.to_bytes(4, "little") + member_nonce + hub_nonce + content
    return hmac.digest(token.encode(), text, "sha256")
