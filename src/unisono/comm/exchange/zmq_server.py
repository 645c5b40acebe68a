"""The exchange over ZeroMQ, for workers that may join, leave and die: the server's end (a worker's: zmq_caller.py).

Peers without the keys of the run are refused (zmq_gate.py, zmq_keys.py). A worker that sends nothing for `silence_s` counts as dead
and is removed. If it is alive after all, its calls have no effect and it is notified; it may join again, as a new worker. A broken
connection costs nothing: a waiting worker repeats its request, and a lost call or reply is sent again. Nothing is applied twice, as
every call carries its number (`turn`).
"""

from __future__ import annotations

import math
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unisono.comm.exchange.base import Numbers, Request, Server
from unisono.comm.exchange.zmq_frames import (
    HEAD_BYTES,
    PART_BYTES,
    Malformed,
    Message,
    MessageType,
    copy_vector,
    flat,
    pack,
    split_bytes,
    unpack,
)
from unisono.comm.exchange.zmq_gate import Authenticator, Refusals
from unisono.comm.exchange.zmq_keys import ConnectionInfo, Keys, ServerKeyFile, read_connection_file, write_connection_file
from unisono.comm.exchange.zmq_listen import listen, new_pair
from unisono.errors import CommError

if TYPE_CHECKING:
    import zmq

HEARTBEATS_PER_SILENCE = 10
"""Number of heartbeats of a worker in the time after which it would count as dead."""
MAX_HEARTBEAT_S = 1.0
QUEUE_MESSAGES = 16
"""Messages that may wait in each direction for each peer: one call or answer, and some small ones."""
HANDSHAKE_S = 10.0
"""A peer that has not shown a key by then is refused."""
ENCRYPTION_BYTES = 64
"""Upper limit of the bytes that encryption adds to each part of a message."""
CLOSE_WAIT_S = 2.0
"""Time in which the last replies must be sent; a longer wait would be for dead workers."""
KEEPALIVE_S = 60
"""After this long without data the system probes the other machine and drops the connection if it does not answer."""
MAX_MESSAGES_AT_ONCE = 1000
"""Messages that are read before the next call is returned."""


@dataclass
class _WorkerRecord:
    """The server's record of one worker."""

    hello: int
    """The turn of its first question; when that arrives again, the answer was lost."""
    route: bytes
    """The connection of its last message."""
    last_heard: float
    turn: int = 0
    """The turn of its last call."""
    answered: int = 0
    """The turn of the last answer."""
    answer: Sequence[bytes | zmq.Frame] = ()
    answer_route: bytes | None = None
    """The connection to which the answer was sent; None if it could not be sent."""
    receive_buffer: Tensor | None = None
    reply_buffer: Tensor | None = None
    reply_tracker: zmq.MessageTracker | None = field(default=None, repr=False)


class ZmqServer(Server):
    """The server's end of the exchange over ZeroMQ. One thread, besides ZeroMQ's own. Call `open` first."""

    def __init__(
        self,
        path: Path,
        *,
        max_vector_bytes: int,
        host: str = "127.0.0.1",
        port: int = 0,
        first_number: int = 0,
        silence_s: float = 10.0,
        say: Callable[[str], object],
    ) -> None:
        """`path` is the connection file (zmq_keys.py). `host` is an address of this machine that workers reach; port 0 is the
        last one used, or any. Numbers of workers begin with `first_number`; a restarted server passes the
        `next_number` of its last state."""
        self.next_number = first_number
        self.silence_s = silence_s
        self._path = path
        self._max_vector_bytes = max_vector_bytes
        self._host = host
        self._port = port
        self._say = say
        self._refusals = Refusals(say)
        self._heartbeat_s = min(MAX_HEARTBEAT_S, silence_s / HEARTBEATS_PER_SILENCE)
        self._incarnation = secrets.token_bytes(8)
        self._workers: dict[int, _WorkerRecord] = {}
        self._calls: deque[tuple[int, Message]] = deque()
        self._lost: list[int] = []
        self._left: list[int] = []
        self._has_departures = False
        self._polled_at = 0.0
        self._checked_at = 0.0
        self._key_file: ServerKeyFile | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None

    def open(self) -> str:
        """Local: starts to listen, with the keys of the run or new ones, and writes the connection file. Returns host:port."""
        self._key_file = ServerKeyFile(self._path, new_pair)
        try:
            return self._listen(self._key_file.keys)
        except BaseException:
            self.close()
            raise

    def receive(self, timeout_s: float | None = None) -> Request | None:
        """As in the interface; also None as soon as a worker was lost or has left, so that the server can handle it."""
        deadline = None if timeout_s is None else monotonic() + timeout_s
        while True:
            is_all = self._read_messages()
            now = monotonic()
            if is_all:
                self._remove_silent(now)
            while self._calls:
                number, message = self._calls.popleft()
                worker = self._workers.get(number)
                if worker is not None:  # else it has no effect any more
                    vector = copy_vector(message, worker.receive_buffer)
                    worker.receive_buffer = worker.receive_buffer if vector is None else vector
                    return Request(number, message.kind, message.tail, vector)
            left_s = self._heartbeat_s if deadline is None else min(self._heartbeat_s, deadline - now)
            if self._has_departures or left_s <= 0:
                self._has_departures = False
                return None
            self._poller.poll(math.ceil(left_s * 1000))

    def buffer(self, caller: int, numel: int, dtype: torch.dtype) -> Tensor:
        """As in the interface. The reply is sent from this memory, so every reply needs a new call of `buffer`."""
        worker = self._workers.get(caller)
        if worker is None:
            return torch.empty(numel, dtype=dtype)
        is_free = worker.reply_tracker is None or worker.reply_tracker.done
        if worker.reply_buffer is None or not is_free or worker.reply_buffer.numel() != numel or worker.reply_buffer.dtype != dtype:
            worker.reply_buffer, worker.reply_tracker = torch.empty(numel, dtype=dtype), None
        return worker.reply_buffer

    def reply(self, caller: int, kind: int, vector: Tensor | None = None, tail: Sequence[float] | Numbers = ()) -> None:
        """As in the interface. Without effect if the caller is lost: it may die at any moment, before or after."""
        worker = self._workers.get(caller)
        if worker is None:
            return
        if worker.answered == worker.turn:
            raise CommError(f"worker {caller} is not waiting for a reply; reply once to each call")
        content = None if vector is None else flat(vector)
        head = pack(MessageType.REPLY, self._incarnation, caller, worker.turn, kind, tail, content)
        worker.answer = (head,) if content is None else (head, *_frames(worker, content))
        worker.answered = worker.turn
        self._send_answer(worker)

    def newly_lost(self) -> Sequence[int]:
        """As in the interface: workers that fell silent. Workers that closed their end are in `newly_left`."""
        lost, self._lost = self._lost, []
        return lost

    def newly_left(self) -> Sequence[int]:
        """Local: returns the callers that have closed their end since the last call of this method."""
        left, self._left = self._left, []
        return left

    def callers(self) -> Sequence[int]:
        """Local: returns the callers that have joined and are not lost."""
        return tuple(self._workers)

    def close(self) -> None:
        """As in the interface. Waits a moment for the last replies to be sent."""
        if self._context is not None:
            self._authenticator.close(CLOSE_WAIT_S)
            self._context.term()
            self._context = None
        if self._key_file is not None:
            self._key_file.close()
            self._key_file = None

    # ---- listening -------------------------------------------------------------------------------------------------------

    def _listen(self, keys: Keys) -> str:
        """Opens the encrypted socket, writes the connection file if it has changed, and returns host:port."""
        import zmq

        there = read_connection_file(self._path) if self._path.exists() else None
        self._context = zmq.Context(io_threads=2)  # so that two vectors at a time can be encrypted
        router = self._context.socket(zmq.ROUTER)
        self._authenticator = Authenticator(self._context, router, keys.client_public, self._refusals)
        self._router = router
        router.router_mandatory = True
        router.rcvhwm = router.sndhwm = QUEUE_MESSAGES
        router.maxmsgsize = max(PART_BYTES, HEAD_BYTES) + ENCRYPTION_BYTES
        router.handshake_ivl = int(HANDSHAKE_S * 1000)
        router.tcp_keepalive, router.tcp_keepalive_idle = 1, KEEPALIVE_S
        router.curve_server = True
        router.curve_publickey = keys.server_public.encode()
        router.curve_secretkey = keys.server_secret.encode()
        self._poller = zmq.Poller()
        for one in (router, self._authenticator.requests, self._authenticator.events):
            self._poller.register(one, zmq.POLLIN)
        address = listen(router, self._host, self._port, there and there.address, self._say)
        connection = ConnectionInfo(address, keys.server_public, keys.client_public, keys.client_secret)
        if connection != there:
            write_connection_file(self._path, connection)
        self._polled_at = self._checked_at = monotonic()
        return address

    # ---- what comes in ---------------------------------------------------------------------------------------------------

    def _read_messages(self) -> bool:
        """Reads the messages that have arrived; False if more are left than are read at once."""
        import zmq

        for ready, _ in self._poller.poll(0):
            for _ in range(MAX_MESSAGES_AT_ONCE):
                try:
                    if ready is self._authenticator.requests:
                        self._authenticator.answer()
                    elif ready is self._authenticator.events:
                        self._authenticator.read_event()
                    else:
                        self._on_message(self._router.recv_multipart(zmq.NOBLOCK, copy=False))
                except zmq.Again:
                    break
            else:
                return False
        return True

    def _on_message(self, frames: Sequence[zmq.Frame]) -> None:
        """Handles a message from the socket; a malformed or unauthenticated one is noted as refused."""
        route, *parts = frames
        try:
            if not parts or not self._authenticator.is_authenticated(parts[0]):
                raise Malformed("its sender is not authenticated")
            message = unpack([part.buffer for part in parts])
            if sum(part.nbytes for part in message.body) > self._max_vector_bytes:
                raise Malformed(f"a vector of more than {self._max_vector_bytes} bytes")
            self._dispatch(message, route.bytes)
        except Malformed as error:
            who = str(frames[-1].get("Peer-Address"))
            self._refusals.note(f"a message from {who}", str(error))

    def _dispatch(self, message: Message, route: bytes) -> None:
        """Handles a message by its type: queues a call, welcomes a worker, answers a ping, removes a worker that leaves."""
        message_type, number, turn = message.message_type, message.number, message.turn
        if message_type is MessageType.HELLO:
            self._welcome(turn, route)
            return
        worker = self._workers.get(number) if message.incarnation == self._incarnation else None
        if worker is None:
            if message_type in (MessageType.CALL, MessageType.PING):
                self._send(route, pack(MessageType.UNKNOWN_WORKER, message.incarnation, number, turn))
            return
        worker.last_heard = monotonic()
        if message_type is MessageType.CALL:
            if turn <= worker.turn:
                return  # it was sent again as the first did not seem to come
            if worker.answered != worker.turn:
                raise Malformed("a call before the last one was answered")
            worker.turn, worker.route, worker.answer = turn, route, ()
            self._calls.append((number, message))
        elif message_type is MessageType.PING:
            worker.route = route
            if worker.answer and turn == worker.answered and worker.answer_route != route:
                self._send_answer(worker)
            else:
                self._send(route, pack(MessageType.PONG, self._incarnation, number, turn, int(turn <= worker.turn)))
        elif message_type is MessageType.GOODBYE:
            self._remove(number, self._left)
        elif message_type is not MessageType.BEAT:
            raise Malformed(f"{message_type.name}, which only a server sends")

    def _welcome(self, hello: int, route: bytes) -> None:
        """Answers the hello of a worker with its number; a new worker is added."""
        number = next((number for number, worker in self._workers.items() if worker.hello == hello), None)
        if number is None:
            number = self.next_number
            self.next_number += 1
            self._workers[number] = _WorkerRecord(hello, route, monotonic())
        limits = (self._heartbeat_s, self._max_vector_bytes)
        self._send(route, pack(MessageType.WELCOME, self._incarnation, number, hello, tail=limits))

    def _remove_silent(self, now: float) -> None:
        """Removes the workers that were silent for too long. Time in which the server did not poll (it was busy or suspended)
        counts little, as messages of that time may not have been read yet."""
        absence = now - self._polled_at - 2 * self._heartbeat_s
        self._polled_at = now
        if absence > 0:
            for worker in self._workers.values():
                worker.last_heard = min(now, worker.last_heard + absence)
        if now >= self._checked_at + self._heartbeat_s:
            self._checked_at = now
            for number in [number for number, worker in self._workers.items() if now - worker.last_heard > self.silence_s]:
                self._remove(number, self._lost)

    def _remove(self, number: int, among: list[int]) -> None:
        """Removes a worker and appends its number to `among`, the lost or the left ones."""
        del self._workers[number]
        among.append(number)
        self._has_departures = True

    # ---- what goes out ---------------------------------------------------------------------------------------------------

    def _send_answer(self, worker: _WorkerRecord) -> None:
        """Sends the answer of a worker again or for the first time, and notes whether it was sent."""
        worker.answer_route = worker.route if self._send(worker.route, *worker.answer) else None

    def _send(self, route: bytes, *parts: bytes | zmq.Frame) -> bool:
        """Sends a message; returns whether it was sent. If not, the peer is lost or does not read; if it is alive it will ask
        again."""
        import zmq

        try:
            self._router.send_multipart([route, *parts], zmq.NOBLOCK, copy=False)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            return False
        return True


def _frames(worker: _WorkerRecord, content: Tensor) -> Sequence[zmq.Frame]:
    """Returns the frames of the vector, copied unless it is in the worker's reply buffer."""
    import zmq

    in_reply_buffer = worker.reply_buffer is not None and content.data_ptr() == worker.reply_buffer.data_ptr()
    if not in_reply_buffer or content.nbytes < zmq.COPY_THRESHOLD:
        return [zmq.Frame(part, copy=True) for part in split_bytes(content)]
    frames = [zmq.Frame(part, copy=False, track=True) for part in split_bytes(content)]
    worker.reply_tracker = zmq.MessageTracker(*(frame.tracker for frame in frames))
    return frames
