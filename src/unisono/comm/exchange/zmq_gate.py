"""Authentication of the server's peers: only holders of the run's client key are admitted; others are refused, counted and logged.

ZeroMQ asks the authenticator about every peer that has proved which key it holds (ZAP), before any of its messages is read. Peers
that do not get so far (no key, another server's key, no ZeroMQ at all) are refused by ZeroMQ itself, which reports an event.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import zmq

ZAP = "inproc://zeromq.zap.01"
_EVENTS = "inproc://events"
_EVENT = struct.Struct("=Hi")
_MOST_REASONS = 100
"""Refusals are counted for each peer and reason up to this number, then together, so that no flood of them fills the memory."""


class Refusals:
    """Counts refused peers by peer and reason. Each is logged the first, the tenth, the hundredth time, and so on."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._counts: dict[str, int] = {}
        self._next: dict[str, int] = {}

    def note(self, who: str, why: str) -> None:
        """Counts a refusal and prints it the first time, the tenth, the hundredth and so on."""
        what = f"refused {who}: {why}"
        if what not in self._counts and len(self._counts) >= _MOST_REASONS:
            what = "refused further peers"
        count = self._counts[what] = self._counts.get(what, 0) + 1
        if count == self._next.setdefault(what, 1):
            self._next[what] *= 10
            self._say(what if count == 1 else f"{what} ({count} times so far)")


class Authenticator:
    """Authenticates the peers of one ROUTER socket (a ZAP handler); made before the socket is bound."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], router: zmq.Socket[bytes], client_public: str, refusals: Refusals
    ) -> None:
        import zmq
        from zmq.utils import z85

        self._router = router
        self._client_key = z85.decode(client_public)
        self._refusals = refusals
        self._pass = secrets.token_hex(16)
        self.requests = context.socket(zmq.REP)
        """Readable when a peer asks to be admitted."""
        self.requests.bind(ZAP)
        router.zap_domain = b"unisono"
        router.zap_enforce_domain = True  # without this, ZeroMQ admits everybody where no handler runs
        router.monitor(_EVENTS, zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
        self.events = context.socket(zmq.PAIR)
        """Readable when ZeroMQ has turned away a peer."""
        self.events.rcvhwm = 0  # with a limit, ZeroMQ's own thread would wait for us here
        self.events.connect(_EVENTS)

    def answer(self) -> None:
        """Local: admits or refuses the next peer."""
        import zmq

        asked = self.requests.recv_multipart(zmq.NOBLOCK)
        version, request, _domain, address, _identity, mechanism, *credentials = asked
        known = mechanism == b"CURVE" and credentials == [self._client_key]
        if not known:
            self._refusals.note(f"a peer at {address.decode(errors='replace')}", "its key is not that of this run")
        status, text, user = (b"200", b"OK", self._pass.encode()) if known else (b"400", b"not a key of this run", b"")
        self.requests.send_multipart([version, request, status, text, user, b""])

    def read_event(self) -> None:
        """Local: notes a peer that ZeroMQ has refused."""
        import zmq

        event, value = _EVENT.unpack(self.events.recv_multipart(zmq.NOBLOCK)[0])
        reason = _refusal_reasons().get(value, "it broke the protocol")
        if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
            reason = "it left before it had shown a key"
        self._refusals.note("a peer", reason)

    def is_authenticated(self, part: zmq.Frame) -> bool:
        """Local: whether the sender of this part of a message was admitted here."""
        import zmq

        try:
            return part.get("User-Id") == self._pass
        except zmq.ZMQError:
            return False

    def close(self, linger_s: float) -> None:
        """Local: closes this and the ROUTER socket, which must not stay open alone. It may still send for `linger_s`."""
        self._router.monitor(None, 0)
        self._router.close(int(linger_s * 1000))
        self.events.close(0)
        self.requests.close(0)


def _refusal_reasons() -> Mapping[int, str]:
    """Returns ZeroMQ's number of a failed handshake -> the reason for messages."""
    import zmq

    return {
        zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH: "it has no key",
        zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC: "it does not know the server's key",
    }
