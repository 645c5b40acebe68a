"""The exchange over ZeroMQ: a worker's end. What the two ends promise each other stands in exchange_zmq.py."""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from torch import Tensor

from unisono.comm.exchange import Caller, Estranged, Numbers, Reply
from unisono.comm.exchange_frames import NO_ONE, NOWHERE, Message, Word, flat, land, pack, parts_of, unpack
from unisono.comm.exchange_keys import Door, read_door
from unisono.comm.exchange_zmq import KEEPALIVE_S, QUEUE
from unisono.errors import CommError, UsageError

if TYPE_CHECKING:
    import zmq

FIRST_BEAT_S = 0.25
"""Between two questions, until the server says how often it wants to hear from us."""
UNEASY_S = 10.0
"""After so long without any answer it is said that the server is waited for; to send a long vector may take seconds."""
GOODBYE_S = 0.5
"""How long the last word may take to get off."""


class ZmqCaller(Caller):
    """One thread, and another that tells the server every moment that this worker lives. `join` before all else."""

    def __init__(self, path: Path, *, say: Callable[[str], object]) -> None:
        """`path` is the door (exchange_keys.py) of the run."""
        import zmq

        self.number = NO_ONE
        self._path = path
        self._say = say
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._door: Door | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._beats: _Beats | None = None
        self._beat_s = FIRST_BEAT_S
        self._max_vector_bytes = 0
        self._incarnation = NOWHERE
        self._turn = 0
        self._asked = self._heard = 0.0
        self._is_uneasy = False
        self._call: Sequence[bytes | memoryview] | None = None
        self._landing: Tensor | None = None

    def join(self, timeout_s: float | None = None) -> int:
        """Local, blocking: become a worker of the run, also again after Estranged, under a number that nobody had before. Waits
        for the server, and for its door to be written; TimeoutError after `timeout_s`."""
        self._end_beats()
        self.number, self._incarnation, self._call = NO_ONE, NOWHERE, None
        hello = secrets.randbits(64)
        question = pack(Word.HELLO, NOWHERE, NO_ONE, hello)
        self._ask(question)
        welcome = self._answer(question, hello, timeout_s)
        self._beat_s, max_vector_bytes = welcome.tail.tolist()
        self.number, self._incarnation = welcome.number, welcome.incarnation
        self._max_vector_bytes = int(max_vector_bytes)
        assert self._door is not None
        self._beats = _Beats(self._context, self._door, pack(Word.BEAT, self._incarnation, self.number), self._beat_s)
        self._beats.start()
        return self.number

    def post(self, kind: int, vector: Tensor | None = None, tail: Sequence[float] | Numbers = ()) -> None:
        if self.number == NO_ONE:
            raise CommError("a call before the worker has joined; call join first")
        if self._call is not None:
            raise CommError("a call before the last one was answered; take its reply first")
        content = None if vector is None else flat(vector)
        if content is not None and content.nbytes > self._max_vector_bytes:
            raise UsageError(
                f"a vector of {content.nbytes} bytes, but the server takes up to {self._max_vector_bytes}; "
                "it must be the model for which the server was started"
            )
        self._turn += 1
        head = pack(Word.CALL, self._incarnation, self.number, self._turn, kind, tail, content)
        self._call = (head,) if content is None else (head, *parts_of(content))
        self._ask(*self._call)

    def take(self, timeout_s: float | None = None) -> Reply:
        if self._call is None:
            raise CommError("no call was begun; post one first")
        message = self._answer(pack(Word.PING, self._incarnation, self.number, self._turn), self._turn, timeout_s)
        self._call = None
        if message.word is Word.STRANGER:
            raise Estranged(f"the server at {self._where()} does not know worker {self.number} (any more)")
        vector = land(message, self._landing)
        self._landing = self._landing if vector is None else vector
        return Reply(message.kind, message.tail, vector)

    def close(self) -> None:
        if self._context.closed:
            return
        self._end_beats()
        if self._socket is not None:
            if self.number != NO_ONE:
                self._send(pack(Word.GOODBYE, self._incarnation, self.number))
            self._socket.close(int(GOODBYE_S * 1000))
        self._context.term()

    def _answer(self, question: bytes, turn: int, timeout_s: float | None) -> Message:
        """Blocking: the answer of this turn. The question is asked again with every beat, as call or answer may get lost."""
        deadline = monotonic() + timeout_s if timeout_s is not None else math.inf
        while True:
            message = self._next(min(self._asked + self._beat_s, deadline))
            now = monotonic()
            if message is not None and message.turn == turn:
                self._heard = now
                if message.word is not Word.PONG:
                    return message
                if message.kind == 0 and self._call is not None:
                    self._send(*self._call)
            if now >= self._asked + self._beat_s:
                self._send(question)
                self._asked = now
                self._doubt(now - self._heard)
            if now >= deadline:
                raise TimeoutError(f"the server at {self._where()} has not answered within {timeout_s:g} s")

    def _ask(self, *parts: bytes | memoryview) -> None:
        self._asked = self._heard = monotonic()
        self._is_uneasy = False
        self._send(*parts)

    def _doubt(self, silence_s: float) -> None:
        """The server may be elsewhere by now, or gone."""
        if silence_s >= 2 * self._beat_s:
            self._look_at_door()
        if silence_s >= UNEASY_S and not self._is_uneasy:
            self._is_uneasy = True
            self._say(f"waiting for the server at {self._where()}, which has not answered for {silence_s:.0f} s")

    def _next(self, until: float) -> Message | None:
        """Blocking: the next message that came before then."""
        import zmq

        wait_s = max(0.0, until - monotonic())
        if self._socket is None:
            time.sleep(wait_s)
        elif self._socket.poll(math.ceil(wait_s * 1000)):
            return unpack([part.buffer for part in self._socket.recv_multipart(zmq.NOBLOCK, copy=False)])
        return None

    def _send(self, *parts: bytes | memoryview) -> None:
        """Not blocking. What does not get off is sent again when the server is there again."""
        import zmq

        if self._socket is None:
            self._look_at_door()
        if self._socket is not None:
            try:
                self._socket.send_multipart(parts, zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return

    def _look_at_door(self) -> None:
        """Connect to where the server is, or is now."""
        try:
            door = read_door(self._path)
        except FileNotFoundError:
            return
        if door != self._door:
            if self._socket is not None:
                self._socket.close(0)
            self._door, self._socket = door, connected(self._context, door)

    def _where(self) -> str:
        return f"{self._door.address if self._door else 'an address not known yet'} ({self._path})"

    def _end_beats(self) -> None:
        if self._beats is not None:
            self._beats.end()
            self._beats = None


class _Beats(threading.Thread):
    """Says "I live" while the worker computes, on a connection of its own so that no large vector is in the way."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], door: Door, beat: bytes, beat_s: float) -> None:
        super().__init__(name="unisono-beats", daemon=True)
        self._context, self._door, self._beat, self._beat_s = context, door, beat, beat_s
        self._is_over = threading.Event()

    def run(self) -> None:
        import zmq

        with connected(self._context, self._door) as socket:
            while not self._is_over.wait(self._beat_s):
                if socket.poll(0, zmq.POLLOUT):
                    socket.send(self._beat, zmq.NOBLOCK)

    def end(self) -> None:
        """Blocking, for a moment."""
        self._is_over.set()
        self.join()


def connected(context: zmq.Context[zmq.Socket[bytes]], door: Door) -> zmq.Socket[bytes]:
    """Local, not blocking: a socket that finds the server as soon as it is there, and shows it the key."""
    import zmq

    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.tcp_keepalive, socket.tcp_keepalive_idle = 1, KEEPALIVE_S
    socket.rcvhwm = socket.sndhwm = QUEUE
    socket.curve_serverkey = door.server_public.encode()
    socket.curve_publickey = door.client_public.encode()
    socket.curve_secretkey = door.client_secret.encode()
    socket.connect(f"tcp://{door.address}")
    return socket
