"""The hub: one thread in rank 0's process that every rank is connected to. It passes messages on and reports lost ranks.

It never blocks: sockets do not block, messages to a slow member wait in that member's queue, and a connection that has not
proved the job's secret gets little memory and little time (`guests.py`).
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterable, Mapping, Sequence
from time import monotonic
from typing import Any

from unisono.comm.control_plane.channel import AUTHENTICATED_LIMIT_BYTES, Channel
from unisono.comm.control_plane.control import LEFT
from unisono.comm.control_plane.guests import Guests
from unisono.comm.control_plane.handshake import Challenge, HandshakeFailed
from unisono.comm.control_plane.hub_connection import DIED, VANISHED, Connection, reason_of
from unisono.comm.control_plane.job_pass import Pass
from unisono.comm.control_plane.meeting import is_loopback, named_job, on_one_machine
from unisono.comm.control_plane.plain import decode, encode
from unisono.comm.control_plane.rounds import Delivery, Rounds
from unisono.errors import CommError, join_ranks

NOTHING: Mapping[str, int] = {}

LEAVE_WAIT_S = 5.0
"""Time that a leaving rank waits for the others to read what was sent to them."""
REFUSE_WAIT_S = 3.0
"""Time that the hub of a job whose members contradict each other stays to notify members that come later."""
TICK_S = 1.0
"""Interval of the checks for time limits and silent hosts."""


class Hub:
    """The hub. Local to rank 0, which calls `start` and then uses the socket that it returns, as every other rank does."""

    def __init__(self, listener: socket.socket, address: str, size: int, own: Pass, job: str = "") -> None:
        self._port: int = listener.getsockname()[1]
        self._address = address
        self._size = size
        self._pass = own
        self._job = named_job(job)
        self._selector = selectors.DefaultSelector()
        self._guests: Guests[Connection] = Guests(listener, self._selector, None, size, self._drop)
        self._members: dict[int, Connection] = {}
        self.known_by_name: set[int] = set()
        """Ranks that joined without a proof of the secret."""
        self._lost: set[int] = set()
        self._rounds = Rounds()
        self._problems: list[str] = []
        self._refusal = ""
        """Why there can be no job of these members."""
        self._complete = False
        self._gather_by = float("inf")
        self._leave_by: float | None = None
        self._check_again_at = 0.0
        self._rank_0_lost = threading.Event()
        self._thread = threading.Thread(target=self._run, name="unisono-hub", daemon=True)

    def start(self) -> socket.socket:
        """Starts the hub and returns rank 0's own connection; the hub runs until that connection leaves or is closed."""
        inner, outer = socket.socketpair()
        self._watch_guest(Connection(Channel(inner, AUTHENTICATED_LIMIT_BYTES), None), float("inf"))
        self._thread.start()
        return outer

    def wait_announced(self, timeout_s: float) -> None:
        """Blocking until all ranks were notified that rank 0 is lost; afterwards this process may end at any moment."""
        self._rank_0_lost.wait(timeout_s)

    def join(self) -> None:
        """Waits for the end of the hub's thread: blocking, for a bounded time once rank 0 has left."""
        self._thread.join()

    def abandon(self) -> None:
        """In a forked child, where the thread does not exist: closes the copies of its sockets; those of the parent stay open."""
        self._guests.abandon()
        self._selector.close()
        for connection in (*self._guests.all, *self._members.values()):
            connection.channel.abandon()

    # ---- the loop --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Body of the hub's thread: serves connections until the job is over, then closes all sockets."""
        try:
            while not self._is_over():
                for key, events in self._selector.select(self._wait_s()):
                    if key.data is None:
                        self._accept()
                    elif not key.data.gone:  # it may have been dropped a moment ago
                        self._serve(key.data, events)
                self._check_timeouts()
        finally:
            self._guests.close()
            for member in self._members.values():
                member.channel.close()
            self._selector.close()

    def _is_over(self) -> bool:
        """Whether the hub's thread has nothing left to do, or its time to leave is over."""
        if self._leave_by is None and self._refusal:
            return False
        return not (self._guests.all or self._members) or (self._leave_by is not None and monotonic() >= self._leave_by)

    def _wait_s(self) -> float:
        """Returns the seconds until the next time limit is to be checked."""
        return min(self._guests.wait_s(), max(0.0, min(self._check_again_at, self._gather_by) - monotonic()))

    def _check_timeouts(self) -> None:
        """Drops connections whose time is over and members whose hosts do not answer."""
        now = monotonic()
        self._guests.check()
        if now >= self._gather_by:
            if not self._refusal:
                missing = [rank for rank in range(self._size) if rank not in self._members]
                self._send(self._members, ("missing", missing, self._who_is_missing(missing)))
            self._end()
        if now < self._check_again_at:
            return
        self._check_again_at = now + TICK_S
        for member in tuple(self._members.values()):
            if member.channel.is_silent():
                self._drop(member, VANISHED)

    def _accept(self) -> None:
        """Accepts a new connection and starts its handshake."""
        visit = self._guests.accept()
        if visit is not None:
            challenge = Challenge(self._pass, self._port, on_one_machine(visit.here, visit.there))
            self._watch_guest(Connection(Channel(visit.sock), challenge, visit.here, visit.there))

    def _watch_guest(self, connection: Connection, limit_s: float | None = None) -> None:
        """Adds a connection to the guests and watches its socket."""
        self._guests.add(connection, limit_s)
        self._selector.register(connection.channel.sock, selectors.EVENT_READ, connection)

    def _drop(self, connection: Connection, reason: str = DIED) -> None:
        """Closes a connection; if it was that of a rank, the rank is lost for `reason`, and with rank 0 the hub ends."""
        if connection.gone:
            return
        connection.gone = True
        self._selector.unregister(connection.channel.sock)
        connection.channel.close()
        self._guests.remove(connection)
        if connection.rank is not None:
            del self._members[connection.rank]
            self._lose(connection.rank, reason)
            if connection.rank == 0 and not self._refusal:
                self._end()

    def _end(self) -> None:
        """Ends the hub when rank 0 leaves: waits until all members have read what was sent and closed their end."""
        if self._leave_by is not None:
            return
        self._leave_by = monotonic() + LEAVE_WAIT_S
        self._gather_by = float("inf")
        self._guests.close()
        for member in self._members.values():
            member.channel.end_sending()
            self._watch(member)

    def _serve(self, connection: Connection, events: int) -> None:
        """Sends and receives on a connection that is ready, and handles its messages; drops it at its end or at an error."""
        if events & selectors.EVENT_WRITE:
            connection.channel.flush()
            self._watch(connection)
        if not events & selectors.EVENT_READ:
            return
        try:
            for message in connection.channel.receive():
                if connection.rank is None:
                    self._on_handshake(connection, message)
                elif self._leave_by is None:
                    self._handle(connection.rank, decode(message))
        except OSError as error:
            self._drop(connection, reason_of(error))
        except (HandshakeFailed, CommError) as error:
            self._drop(connection, f"sent an invalid message ({error}); check that all ranks run the same version of unisono")
        else:
            if connection.channel.ended:
                self._drop(connection)

    # ---- who belongs to the job ------------------------------------------------------------------------------------

    def _on_handshake(self, connection: Connection, message: bytes) -> None:
        """Handles a message of a peer that has not joined: answers the challenge, then admits or refuses the rank in its hello."""
        if connection.refused:
            return
        if connection.challenge is None:
            hello = decode(message)
        elif not connection.challenge.answered:
            connection.channel.send(connection.challenge.answer(message))
            return
        else:
            hello = connection.challenge.verify(message)
        match hello:
            case {"rank": int(rank), "size": int(size), "left_s": float(left_s), "who": str(who), "info": info}:
                connection.who, connection.info = who, info
                answer = self._admission(rank, size, who)
            case _:
                raise HandshakeFailed("invalid greeting")
        connection.refused = answer[0] != "joined"
        connection.channel.send(encode(answer))
        if not connection.refused:
            connection.rank = rank
            connection.channel.limit_bytes = AUTHENTICATED_LIMIT_BYTES
            self._guests.remove(connection)
            self._members[rank] = connection
            if connection.challenge is not None and connection.challenge.is_by_name:
                self.known_by_name.add(rank)
            self._gather_by = min(self._gather_by, monotonic() + left_s)
            if len(self._members) == self._size:
                self._welcome_all()

    def _admission(self, rank: int, size: int, who: str) -> tuple[str, ...]:
        """Returns the answer to a hello: joined, later, or refused with the reason."""
        if self._refusal:
            return "refused", self._refusal
        if size != self._size:
            return "refused", self._contradict(
                f"world size disagrees in {self._job}: rank {rank} ({who}) says {size}, rank 0 on {socket.gethostname()} says "
                f"{self._size}; start all ranks with the same number of processes, and give different jobs different names (--job)"
            )
        if not 0 <= rank < size:
            return "refused", f"rank {rank} does not lie in 0..{size - 1}; check the launcher's variables"
        if rank in self._members:
            text = f"two processes are rank {rank} of {self._job}: {self._members[rank].who} and {who}"
            self._problems.append(f"refused: {text}")
            return "refused", f"{text}; give every process its own rank, and every job its own name (--job)"
        if rank in self._lost or self._complete:
            return "later", f"rank 0 is still in a session that rank {rank} has left or lost"
        return ("joined",)

    def _contradict(self, text: str) -> str:
        """Refuses a job whose members contradict each other, and notifies waiting members at once; a complete job is not
        affected."""
        if not self._complete:
            self._refusal = text
            self._send(self._members, ("refused", text))
            self._gather_by = monotonic() + REFUSE_WAIT_S
        return text

    def _welcome_all(self) -> None:
        """Tells all ranks that the job is complete, with the infos of all of them."""
        self._complete = True
        self._gather_by = float("inf")
        infos = [self._members[rank].info for rank in range(self._size)]
        self._send(self._members, ("welcome", infos, self._reached_at()))

    def _reached_at(self) -> str:
        """Returns the address by which other hosts reach this one; loopback if there are none."""
        others = [self._members[rank] for rank in range(1, self._size)]
        for member in others:
            if member.here != member.there and not is_loopback(member.here):
                return member.here
        return next((member.here for member in others if is_loopback(member.here)), "127.0.0.1")

    def _who_is_missing(self, missing: Sequence[int]) -> str:
        """Returns the message that names the ranks that did not come in time, with the problems met."""
        found = [*self._problems, *([f"rank 0 {self._guests.problem}"] if self._guests.problem else [])]
        problems = f" ({'; '.join(found)})" if found else ""
        return (
            f"{join_ranks(missing)} of {self._size} did not connect to {self._address}, port {self._port}, in time for {self._job}"
            f"{problems}; see their output, and check that they reach this address and port (firewall, --rendezvous host:port)"
        )

    # ---- messages --------------------------------------------------------------------------------------------------

    def _handle(self, rank: int, message: Any) -> None:
        """Handles a message of a member; raises `CommError` for an unknown one."""
        match message:
            case ("put", str(key), tuple(members), bytes(obj)):
                self._deliver(self._rounds.put(key, members, rank, obj, self._lost))
            case ("late", str(key)):
                self._send([rank], ("late", key, self._rounds.missing(key)))
            case ("ask", int(number), list(members)):
                there = [asked for asked in members if asked in self._members]
                self._send(there, ("ask", number, rank))
                for absent in set(members) - set(there):
                    self._send([rank], ("report", number, absent, None))
            case ("report", int(number), int(asker), report):
                self._send([asker], ("report", number, rank, report))
            case ("give_up", str(reason), list(causes)):
                self._lose(rank, reason, causes)
            case ("bye", dict(done)):
                self._lose(rank, LEFT, done=done)
                if rank == 0:
                    self._end()
            case _:
                raise CommError("unknown form")

    def _lose(self, rank: int, reason: str, causes: Sequence[int] = (), done: Mapping[str, int] = NOTHING) -> None:
        """Notifies all other ranks of a lost rank; the first reported reason counts."""
        if rank in self._lost:
            return
        self._lost.add(rank)
        self._send([other for other in self._members if other != rank], ("lost", rank, reason, list(causes), dict(done)))
        if rank == 0:
            self._rank_0_lost.set()
        if self._complete:
            self._deliver(self._rounds.lose(rank, self._lost))
        elif not self._refusal:
            self._end()

    def _deliver(self, deliveries: Iterable[Delivery]) -> None:
        """Sends each message to its ranks."""
        for ranks, message in deliveries:
            self._send(ranks, message)

    def _send(self, ranks: Iterable[int], message: tuple[object, ...]) -> None:
        """Sends a message to those of the ranks that are members now."""
        content = encode(message)
        for rank in tuple(ranks):
            member = self._members.get(rank)
            if member is not None:
                member.channel.send(content)
                self._watch(member)

    def _watch(self, connection: Connection) -> None:
        """Watches for writability of the socket, but only while messages are queued."""
        if connection.writing != connection.channel.has_unsent:
            connection.writing = connection.channel.has_unsent
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.writing else 0)
            self._selector.modify(connection.channel.sock, events, connection)
