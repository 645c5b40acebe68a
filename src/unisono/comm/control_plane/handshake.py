"""Both sides prove that they know the job's secret before either trusts the other; the secret itself is never sent.

    member -> hub   MAGIC, nonce of the member
    hub -> member   MAGIC, nonce of the hub, HMAC(secret; "hub", port, both nonces), HMAC(name; "hub by name", port, both nonces)
    member -> hub   HMAC(secret; "member", port, both nonces, hello), hello

The nonces are random, so nothing recorded can be played again. The labels differ, so that neither side's proof can be thrown
back at it, and the port is part of them, so that nobody who took an earlier port of the sequence can pass a proof on.

The name of a job is public. It tells jobs apart, and replaces the secret (with the label "member by name") only where another host
cannot have the secret (`Pass`).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from time import monotonic
from typing import Any

from unisono.comm.control_plane.channel import UNAUTHENTICATED_LIMIT_BYTES, Channel
from unisono.comm.control_plane.job_pass import Pass
from unisono.comm.control_plane.plain import decode, encode
from unisono.errors import CommError, UsageError

MAGIC = b"unisono control 2\n"
NONCE_BYTES = 32
PROOF_BYTES = hashlib.sha256().digest_size
PROOF_WAIT_S = 3.0
"""Time in which a server must prove itself before the next port is tried."""


STRANGER = "has the name of this job but not its secret: it belongs to another user, or to a host with another home directory"


class HandshakeFailed(Exception):
    """Raised where the other side does not belong to this job, or uses another protocol."""


def authenticate(
    channel: Channel, own: Pass, is_here: bool, port: int, hello: Mapping[str, Any], deadline: float, answer_by: float
) -> Any:
    """Blocking, for a member: does the handshake, sends `hello` with the seconds left to the deadline, and returns the answer.

    Raises `HandshakeFailed`, `TimeoutError`, `EOFError` or `OSError` when there is no hub of this job at the other end.
    """
    ours = secrets.token_bytes(NONCE_BYTES)
    channel.send(MAGIC + ours)
    try:
        reply = channel.receive_one(min(deadline, monotonic() + PROOF_WAIT_S))
    except CommError as error:
        raise HandshakeFailed("does not speak unisono's protocol") from error
    if len(reply) != len(MAGIC) + NONCE_BYTES + 2 * PROOF_BYTES or not reply.startswith(MAGIC):
        raise HandshakeFailed("does not speak unisono's protocol")
    parts = reply[len(MAGIC) :]
    theirs, by_secret, by_name = parts[:NONCE_BYTES], parts[NONCE_BYTES:-PROOF_BYTES], parts[-PROOF_BYTES:]
    content = encode({**hello, "left_s": deadline - monotonic()})
    if _is_proof(by_secret, own.secret, b"hub", port, ours, theirs):
        proof = _proof(own.secret, b"member", port, ours, theirs, content)
    elif not _is_proof(by_name, own.name, b"hub by name", port, ours, theirs):
        raise HandshakeFailed("belongs to another job")
    elif own.demands_secret(is_here):
        raise HandshakeFailed(STRANGER)
    else:
        proof = _proof(own.name, b"member by name", port, ours, theirs, content)
    channel.send(proof + content)
    # From here on the hub may count this rank as present, so it must not walk away early: rank 0 may only be busy.
    return decode(channel.receive_one(answer_by))


class Challenge:
    """The hub's side of one handshake."""

    def __init__(self, own: Pass, port: int, is_here: bool = True) -> None:
        """`is_here`: the other side runs on this machine."""
        self._own = own
        self._port = port
        self._is_here = is_here
        self._theirs = b""
        self._ours = secrets.token_bytes(NONCE_BYTES)
        self.is_by_name = False
        """Whether the member has proved only that it knows the public name of the job."""

    def answer(self, message: bytes) -> bytes:
        """Returns the reply to a member's first message; raises `HandshakeFailed` if it is not one."""
        if self._theirs or len(message) != len(MAGIC) + NONCE_BYTES or not message.startswith(MAGIC):
            raise HandshakeFailed("does not speak unisono's protocol")
        self._theirs = message[len(MAGIC) :]
        proofs = (
            _proof(key, label, self._port, self._theirs, self._ours) if key else secrets.token_bytes(PROOF_BYTES)
            for key, label in ((self._own.secret, b"hub"), (self._own.name, b"hub by name"))
        )
        return MAGIC + self._ours + b"".join(proofs)

    @property
    def answered(self) -> bool:
        """Whether the first message of the member was answered, so that its second one comes next."""
        return bool(self._theirs)

    def verify(self, message: bytes) -> Any:
        """Returns the hello in a member's second message; raises `HandshakeFailed` if the proof is wrong."""
        proof, content = message[:PROOF_BYTES], message[PROOF_BYTES:]
        place = (self._port, self._theirs, self._ours, content)
        is_known = _is_proof(proof, self._own.secret, b"member", *place)
        if not is_known and _is_proof(proof, self._own.name, b"member by name", *place):
            if self._own.demands_secret(self._is_here):
                raise HandshakeFailed(STRANGER)
            self.is_by_name = True
        elif not is_known:
            raise HandshakeFailed("belongs to another job")
        return decode(content)


def check_hello(hello: Mapping[str, Any]) -> None:
    """Refuses, before anything is sent, a hello that is longer than the hub accepts from an unauthenticated peer."""
    length = len(encode(hello))
    if length > UNAUTHENTICATED_LIMIT_BYTES // 2:
        raise UsageError(
            f"info has {length} bytes, but at most {UNAUTHENTICATED_LIMIT_BYTES // 2} are allowed at connect; send it by exchange"
        )


def _is_proof(proof: bytes, key: str, label: bytes, port: int, member_nonce: bytes, hub_nonce: bytes, content: bytes = b"") -> bool:
    """Whether the other side has proved that it knows `key`; an empty one is known to everybody and proves nothing."""
    return bool(key) and hmac.compare_digest(proof, _proof(key, label, port, member_nonce, hub_nonce, content))


def _proof(key: str, label: bytes, port: int, member_nonce: bytes, hub_nonce: bytes, content: bytes = b"") -> bytes:
    """Returns the HMAC with which one side proves to the other that it knows `key`, the secret or the name of the job."""
    # Every part but the last has a fixed length or its own end, so no two sets of parts give the same text.
    text = label + b"\n" + port.to_bytes(4, "little") + member_nonce + hub_nonce + content
    return hmac.digest(key.encode(), text, "sha256")
