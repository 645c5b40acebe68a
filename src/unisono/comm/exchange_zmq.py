"""The exchange over ZeroMQ, for workers that may join, leave and die: the server's end (a worker's: exchange_zmq_caller.py).

Peers without the keys of the run do not come in (exchange_gate.py, exchange_keys.py). A worker that is not heard for `silence_s`
counts as dead and is forgotten. If it lives after all, its calls have no effect and it is told so; it may join again, as another.
A connection that breaks costs nothing: a worker that waits asks again and again, and what was lost on the way, call or answer, is
sent again. Nothing is applied twice, as every call carries its turn.
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

from unisono.comm.exchange import Numbers, Request, Server
from unisono.comm.exchange_frames import HEAD_BYTES, PART_BYTES, Malformed, Message, Word, flat, land, pack, parts_of, unpack
from unisono.comm.exchange_gate import Gate, Refusals
from unisono.comm.exchange_keys import Door, KeyRing, Keys, read_door, write_door
from unisono.comm.exchange_listen import listen, new_pair
from unisono.errors import CommError

if TYPE_CHECKING:
    import zmq

BEATS_PER_SILENCE = 10
"""A worker is heard at least this often in the time after which it would count as dead."""
LONGEST_BEAT_S = 1.0
QUEUE = 16
"""Messages that may wait in each direction for each peer: one call or answer, and some small ones."""
HANDSHAKE_S = 10.0
"""Who has not shown a key by then is turned away."""
SEAL_BYTES = 64
"""More than what encryption adds to each part of a message."""
PARTING_S = 2.0
"""How long the last replies may take to get off; more would be waiting for the dead."""
KEEPALIVE_S = 60
"""After so long without a word the system looks whether the other machine is there, and drops the connection if not."""
MOST_AT_ONCE = 1000
"""Messages that are taken in before the next call is handed out."""


@dataclass
class _Member:
    """A worker, as long as it is known."""

    hello: int
    """The turn of its first question; when that comes again, the answer was lost."""
    route: bytes
    """The connection on which it was heard last."""
    heard: float
    turn: int = 0
    """Of the last call that came."""
    answered: int = 0
    """The turn of the last answer."""
    answer: Sequence[bytes | zmq.Frame] = ()
    answer_route: bytes | None = None
    """Where the answer was sent to; None if it could not be."""
    landing: Tensor | None = None
    room: Tensor | None = None
    room_tracker: zmq.MessageTracker | None = field(default=None, repr=False)


class ZmqServer(Server):
    """One thread, but for ZeroMQ's own. `open` before all else."""

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
        """`path` is the door (exchange_keys.py). `host` is an address of this machine that workers reach; port 0 is the one of
        the last time, or any. Numbers of workers begin with `first_number`; a server that begins again passes the
        `next_number` of its last state."""
        self.next_number = first_number
        self.silence_s = silence_s
        self._path = path
        self._max_vector_bytes = max_vector_bytes
        self._host = host
        self._port = port
        self._say = say
        self._refusals = Refusals(say)
        self._beat_s = min(LONGEST_BEAT_S, silence_s / BEATS_PER_SILENCE)
        self._incarnation = secrets.token_bytes(8)
        self._members: dict[int, _Member] = {}
        self._calls: deque[tuple[int, Message]] = deque()
        self._lost: list[int] = []
        self._left: list[int] = []
        self._somebody_went = False
        self._looked = 0.0
        self._judged = 0.0
        self._ring: KeyRing | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None

    def open(self) -> str:
        """Local: begin to listen, with the keys of the run or new ones, and write the door. Returns host:port."""
        self._ring = KeyRing(self._path, new_pair)
        try:
            return self._listen(self._ring.keys)
        except BaseException:
            self.close()
            raise

    def receive(self, timeout_s: float | None = None) -> Request | None:
        """As in the interface; also None as soon as somebody was lost or has left, so that the server may see to it."""
        deadline = None if timeout_s is None else monotonic() + timeout_s
        while True:
            is_all = self._take_in()
            now = monotonic()
            if is_all:
                self._judge(now)
            while self._calls:
                number, message = self._calls.popleft()
                member = self._members.get(number)
                if member is not None:  # else it has no effect any more
                    vector = land(message, member.landing)
                    member.landing = member.landing if vector is None else vector
                    return Request(number, message.kind, message.tail, vector)
            left_s = self._beat_s if deadline is None else min(self._beat_s, deadline - now)
            if self._somebody_went or left_s <= 0:
                self._somebody_went = False
                return None
            self._poller.poll(math.ceil(left_s * 1000))

    def room(self, caller: int, numel: int, dtype: torch.dtype) -> Tensor:
        """As in the interface: sent from where it lies. So the reply gives it away, and the next one asks for room anew."""
        member = self._members.get(caller)
        if member is None:
            return torch.empty(numel, dtype=dtype)
        is_free = member.room_tracker is None or member.room_tracker.done
        if member.room is None or not is_free or member.room.numel() != numel or member.room.dtype != dtype:
            member.room, member.room_tracker = torch.empty(numel, dtype=dtype), None
        return member.room

    def reply(self, caller: int, kind: int, vector: Tensor | None = None, tail: Sequence[float] | Numbers = ()) -> None:
        """As in the interface. Without effect if the caller is gone: it may die at any moment, before or after."""
        member = self._members.get(caller)
        if member is None:
            return
        if member.answered == member.turn:
            raise CommError(f"worker {caller} waits for no reply; reply once to each call")
        content = None if vector is None else flat(vector)
        head = pack(Word.REPLY, self._incarnation, caller, member.turn, kind, tail, content)
        member.answer = (head,) if content is None else (head, *_frames(member, content))
        member.answered = member.turn
        self._send_answer(member)

    def lost(self) -> Sequence[int]:
        """As in the interface: those that fell silent. Who said goodbye is among `left`."""
        lost, self._lost = self._lost, []
        return lost

    def left(self) -> Sequence[int]:
        """Local: callers that have closed their end in good order since this was last asked."""
        left, self._left = self._left, []
        return left

    def callers(self) -> Sequence[int]:
        """Local: those that have joined and are not gone."""
        return tuple(self._members)

    def close(self) -> None:
        """As in the interface. Waits a moment for replies to get off."""
        if self._context is not None:
            self._gate.close(PARTING_S)
            self._context.term()
            self._context = None
        if self._ring is not None:
            self._ring.close()
            self._ring = None

    # ---- listening -------------------------------------------------------------------------------------------------------

    def _listen(self, keys: Keys) -> str:
        import zmq

        there = read_door(self._path) if self._path.exists() else None
        self._context = zmq.Context(io_threads=2)  # so that two vectors at a time can be encrypted
        router = self._context.socket(zmq.ROUTER)
        self._gate = Gate(self._context, router, keys.client_public, self._refusals)
        self._router = router
        router.router_mandatory = True
        router.rcvhwm = router.sndhwm = QUEUE
        router.maxmsgsize = max(PART_BYTES, HEAD_BYTES) + SEAL_BYTES
        router.handshake_ivl = int(HANDSHAKE_S * 1000)
        router.tcp_keepalive, router.tcp_keepalive_idle = 1, KEEPALIVE_S
        router.curve_server = True
        router.curve_publickey = keys.server_public.encode()
        router.curve_secretkey = keys.server_secret.encode()
        self._poller = zmq.Poller()
        for one in (router, self._gate.doorbell, self._gate.events):
            self._poller.register(one, zmq.POLLIN)
        address = listen(router, self._host, self._port, there and there.address, self._say)
        door = Door(address, keys.server_public, keys.client_public, keys.client_secret)
        if door != there:
            write_door(self._path, door)
        self._looked = self._judged = monotonic()
        return address

    # ---- what comes in ---------------------------------------------------------------------------------------------------

    def _take_in(self) -> bool:
        """All that is there; False if there was too much for one time."""
        import zmq

        for ready, _ in self._poller.poll(0):
            for _ in range(MOST_AT_ONCE):
                try:
                    if ready is self._gate.doorbell:
                        self._gate.answer()
                    elif ready is self._gate.events:
                        self._gate.read_event()
                    else:
                        self._hear(self._router.recv_multipart(zmq.NOBLOCK, copy=False))
                except zmq.Again:
                    break
            else:
                return False
        return True

    def _hear(self, frames: Sequence[zmq.Frame]) -> None:
        route, *parts = frames
        try:
            if not parts or not self._gate.has_let_in(parts[0]):
                raise Malformed("it did not come through the gate")
            message = unpack([part.buffer for part in parts])
            if sum(part.nbytes for part in message.body) > self._max_vector_bytes:
                raise Malformed(f"a vector of more than {self._max_vector_bytes} bytes")
            self._act_on(message, route.bytes)
        except Malformed as error:
            who = str(frames[-1].get("Peer-Address"))
            self._refusals.note(f"a message from {who}", str(error))

    def _act_on(self, message: Message, route: bytes) -> None:
        word, number, turn = message.word, message.number, message.turn
        if word is Word.HELLO:
            self._welcome(turn, route)
            return
        member = self._members.get(number) if message.incarnation == self._incarnation else None
        if member is None:
            if word in (Word.CALL, Word.PING):
                self._send(route, pack(Word.STRANGER, message.incarnation, number, turn))
            return
        member.heard = monotonic()
        if word is Word.CALL:
            if turn <= member.turn:
                return  # it was sent again as the first did not seem to come
            if member.answered != member.turn:
                raise Malformed("a call before the last one was answered")
            member.turn, member.route, member.answer = turn, route, ()
            self._calls.append((number, message))
        elif word is Word.PING:
            member.route = route
            if member.answer and turn == member.answered and member.answer_route != route:
                self._send_answer(member)
            else:
                self._send(route, pack(Word.PONG, self._incarnation, number, turn, int(turn <= member.turn)))
        elif word is Word.GOODBYE:
            self._forget(number, self._left)
        elif word is not Word.BEAT:
            raise Malformed(f"{word.name}, which only a server says")

    def _welcome(self, hello: int, route: bytes) -> None:
        number = next((number for number, member in self._members.items() if member.hello == hello), None)
        if number is None:
            number = self.next_number
            self.next_number += 1
            self._members[number] = _Member(hello, route, monotonic())
        limits = (self._beat_s, self._max_vector_bytes)
        self._send(route, pack(Word.WELCOME, self._incarnation, number, hello, tail=limits))

    def _judge(self, now: float) -> None:
        """Forget those that were silent for too long. Time in which we did not look, as the server was busy or was stopped
        itself, counts little: what came meanwhile may not be here yet."""
        absence = now - self._looked - 2 * self._beat_s
        self._looked = now
        if absence > 0:
            for member in self._members.values():
                member.heard = min(now, member.heard + absence)
        if now >= self._judged + self._beat_s:
            self._judged = now
            for number in [number for number, member in self._members.items() if now - member.heard > self.silence_s]:
                self._forget(number, self._lost)

    def _forget(self, number: int, among: list[int]) -> None:
        del self._members[number]
        among.append(number)
        self._somebody_went = True

    # ---- what goes out ---------------------------------------------------------------------------------------------------

    def _send_answer(self, member: _Member) -> None:
        member.answer_route = member.route if self._send(member.route, *member.answer) else None

    def _send(self, route: bytes, *parts: bytes | zmq.Frame) -> bool:
        """Whether it went off. If not the peer is gone, or does not read; if it lives it will ask again."""
        import zmq

        try:
            self._router.send_multipart([route, *parts], zmq.NOBLOCK, copy=False)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            return False
        return True


def _frames(member: _Member, content: Tensor) -> Sequence[zmq.Frame]:
    """The vector, copied unless it lies in the room that was given for it."""
    import zmq

    is_room = member.room is not None and content.data_ptr() == member.room.data_ptr()
    if not is_room or content.nbytes < zmq.COPY_THRESHOLD:
        return [zmq.Frame(part, copy=True) for part in parts_of(content)]
    frames = [zmq.Frame(part, copy=False, track=True) for part in parts_of(content)]
    member.room_tracker = zmq.MessageTracker(*(frame.tracker for frame in frames))
    return frames
