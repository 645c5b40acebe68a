"""The exchange over ZeroMQ: a worker's end. The protocol is described in zmq_server.py."""

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

from unisono.comm.exchange.base import Caller, Numbers, Reply, UnknownWorker
from unisono.comm.exchange.zmq_frames import (
    NO_INCARNATION,
    NO_NUMBER,
    Message,
    MessageType,
    copy_vector,
    flat,
    pack,
    split_bytes,
    unpack,
)
from unisono.comm.exchange.zmq_keys import ConnectionInfo, read_connection_file
from unisono.comm.exchange.zmq_server import KEEPALIVE_S, QUEUE_MESSAGES
from unisono.errors import CommError, UsageError

if TYPE_CHECKING:
    import zmq

FIRST_HEARTBEAT_S = 0.25
"""Time between two requests until the server has said how often a worker must send a heartbeat."""
NO_ANSWER_WARNING_S = 10.0
"""After this long without an answer a message says that the worker waits for the server; a long vector may take seconds to send."""
GOODBYE_S = 0.5
"""Time in which the last message must be sent."""


class ZmqCaller(Caller):
    """A worker's end of the exchange over ZeroMQ: one thread, and another that sends heartbeats. Call `join` first."""

    def __init__(self, path: Path, *, say: Callable[[str], object]) -> None:
        """`path` is the connection file (zmq_keys.py) of the run."""
        import zmq

        self.number = NO_NUMBER
        self._path = path
        self._say = say
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._connection: ConnectionInfo | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._heartbeats: _Heartbeats | None = None
        self._heartbeat_s = FIRST_HEARTBEAT_S
        self._max_vector_bytes = 0
        self._incarnation = NO_INCARNATION
        self._turn = 0
        self._asked = self._heard = 0.0
        self._has_warned = False
        self._call: Sequence[bytes | memoryview] | None = None
        self._receive_buffer: Tensor | None = None

    def join(self, timeout_s: float | None = None) -> int:
        """Local, blocking: joins the run as a worker, also again after UnknownWorker, under a new number. Waits for the server,
        and for its connection file to be written; TimeoutError after `timeout_s`."""
        self._end_heartbeats()
        self.number, self._incarnation, self._call = NO_NUMBER, NO_INCARNATION, None
        hello = secrets.randbits(64)
        question = pack(MessageType.HELLO, NO_INCARNATION, NO_NUMBER, hello)
        self._send_question(question)
        welcome = self._await_answer(question, hello, timeout_s)
        self._heartbeat_s, max_vector_bytes = welcome.tail.tolist()
        self.number, self._incarnation = welcome.number, welcome.incarnation
        self._max_vector_bytes = int(max_vector_bytes)
        assert self._connection is not None
        self._heartbeats = _Heartbeats(
            self._context, self._connection, pack(MessageType.BEAT, self._incarnation, self.number), self._heartbeat_s
        )
        self._heartbeats.start()
        return self.number

    def post(self, kind: int, vector: Tensor | None = None, tail: Sequence[float] | Numbers = ()) -> None:
        if self.number == NO_NUMBER:
            raise CommError("this worker has not joined yet; call join first")
        if self._call is not None:
            raise CommError("a worker makes one call at a time; wait for the last reply first (wait_reply)")
        content = None if vector is None else flat(vector)
        if content is not None and content.nbytes > self._max_vector_bytes:
            raise UsageError(
                f"a vector has {content.nbytes} bytes, but the server accepts at most {self._max_vector_bytes}; "
                "use the model with which the server was started"
            )
        self._turn += 1
        head = pack(MessageType.CALL, self._incarnation, self.number, self._turn, kind, tail, content)
        self._call = (head,) if content is None else (head, *split_bytes(content))
        self._send_question(*self._call)

    def wait_reply(self, timeout_s: float | None = None) -> Reply:
        if self._call is None:
            raise CommError("there is no call to wait for; post a call first")
        message = self._await_answer(pack(MessageType.PING, self._incarnation, self.number, self._turn), self._turn, timeout_s)
        self._call = None
        if message.message_type is MessageType.UNKNOWN_WORKER:
            raise UnknownWorker(f"the server at {self._where()} does not know worker {self.number}, or has removed it")
        vector = copy_vector(message, self._receive_buffer)
        self._receive_buffer = self._receive_buffer if vector is None else vector
        return Reply(message.kind, message.tail, vector)

    def close(self) -> None:
        if self._context.closed:
            return
        self._end_heartbeats()
        if self._socket is not None:
            if self.number != NO_NUMBER:
                self._send(pack(MessageType.GOODBYE, self._incarnation, self.number))
            self._socket.close(int(GOODBYE_S * 1000))
        self._context.term()

    def _await_answer(self, question: bytes, turn: int, timeout_s: float | None) -> Message:
        """Blocking: returns the answer of this turn. The question is sent again with every beat, as call or answer may get lost."""
        deadline = monotonic() + timeout_s if timeout_s is not None else math.inf
        while True:
            message = self._next(min(self._asked + self._heartbeat_s, deadline))
            now = monotonic()
            if message is not None and message.turn == turn:
                self._heard = now
                if message.message_type is not MessageType.PONG:
                    return message
                if message.kind == 0 and self._call is not None:
                    self._send(*self._call)
            if now >= self._asked + self._heartbeat_s:
                self._send(question)
                self._asked = now
                self._check_silence(now - self._heard)
            if now >= deadline:
                raise TimeoutError(f"the server at {self._where()} has not answered within {timeout_s:g} s")

    def _send_question(self, *parts: bytes | memoryview) -> None:
        """Not blocking: sends a question and begins to measure the silence of the server."""
        self._asked = self._heard = monotonic()
        self._has_warned = False
        self._send(*parts)

    def _check_silence(self, silence_s: float) -> None:
        """After a silence: connects to the server at a new address if it has one, and warns once."""
        if silence_s >= 2 * self._heartbeat_s:
            self._follow_connection_file()
        if silence_s >= NO_ANSWER_WARNING_S and not self._has_warned:
            self._has_warned = True
            self._say(f"waiting for the server at {self._where()}, which has not answered for {silence_s:.0f} s")

    def _next(self, until: float) -> Message | None:
        """Blocking: returns the next message, or None if there was none before `until`."""
        import zmq

        wait_s = max(0.0, until - monotonic())
        if self._socket is None:
            time.sleep(wait_s)
        elif self._socket.poll(math.ceil(wait_s * 1000)):
            return unpack([part.buffer for part in self._socket.recv_multipart(zmq.NOBLOCK, copy=False)])
        return None

    def _send(self, *parts: bytes | memoryview) -> None:
        """Not blocking: sends a message. One that cannot be sent is sent again when the server is back."""
        import zmq

        if self._socket is None:
            self._follow_connection_file()
        if self._socket is not None:
            try:
                self._socket.send_multipart(parts, zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return

    def _follow_connection_file(self) -> None:
        """Connects to the address in the connection file if it has changed."""
        try:
            connection = read_connection_file(self._path)
        except FileNotFoundError:
            return
        if connection != self._connection:
            if self._socket is not None:
                self._socket.close(0)
            self._connection, self._socket = connection, connect_socket(self._context, connection)

    def _where(self) -> str:
        """Returns the address of the server and the path of its connection file, for messages."""
        return f"{self._connection.address if self._connection else 'an address not known yet'} ({self._path})"

    def _end_heartbeats(self) -> None:
        """Ends the thread of the heartbeats, if there is one."""
        if self._heartbeats is not None:
            self._heartbeats.end()
            self._heartbeats = None


class _Heartbeats(threading.Thread):
    """Sends heartbeats while the worker computes, on a separate connection that no large vector blocks."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], connection: ConnectionInfo, beat: bytes, beat_s: float) -> None:
        super().__init__(name="unisono-beats", daemon=True)
        self._context, self._connection, self._beat, self._heartbeat_s = context, connection, beat, beat_s
        self._is_over = threading.Event()

    def run(self) -> None:
        """Body of the thread: sends a heartbeat to the server at regular intervals until `end`."""
        import zmq

        with connect_socket(self._context, self._connection) as socket:
            while not self._is_over.wait(self._heartbeat_s):
                if socket.poll(0, zmq.POLLOUT):
                    socket.send(self._beat, zmq.NOBLOCK)

    def end(self) -> None:
        """Ends the heartbeats; blocking for a short time."""
        self._is_over.set()
        self.join()


def connect_socket(context: zmq.Context[zmq.Socket[bytes]], connection: ConnectionInfo) -> zmq.Socket[bytes]:
    """Local, not blocking: returns a socket with the worker's key, which connects to the server as soon as it is up."""
    import zmq

    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.tcp_keepalive, socket.tcp_keepalive_idle = 1, KEEPALIVE_S
    socket.rcvhwm = socket.sndhwm = QUEUE_MESSAGES
    socket.curve_serverkey = connection.server_public.encode()
    socket.curve_publickey = connection.client_public.encode()
    socket.curve_secretkey = connection.client_secret.encode()
    socket.connect(f"tcp://{connection.address}")
    return socket
