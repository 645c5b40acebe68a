"""All worker processes of a job as its coordinator sees them: those of its own node, and those of other supervisors, who have come
to it over the network and pass letters on."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from unisono.cluster.rendezvous import ports
from unisono.cluster.stop_request import StopRequest
from unisono.cluster.topology import Topology
from unisono.comm.control_plane.channel import MEMBER_LIMIT_BYTES, Channel, tune
from unisono.comm.control_plane.handshake import Challenge, Stranger
from unisono.comm.control_plane.meeting import find, is_loopback, listen, plain_address
from unisono.comm.control_plane.plain import encode
from unisono.errors import CommError, TrainingFailed, UsageError, join_ranks
from unisono.tuning.letters import FOREVER_S, Letter, post, read
from unisono.tuning.seats import Heard, Seats

GUEST_WAIT_S = 10.0
LATE_S = 60.0
"""After which it is said who has not come."""
LOST = "lost"
"""What is heard of a rank whose supervisor is gone."""


@dataclass
class _Supervisor:
    channel: Channel
    challenge: Challenge | None
    """None once it has shown that it belongs to the job."""
    peer: str
    deadline: float
    ranks: dict[int, Mapping[str, Any]] = field(default_factory=dict)


class Workers:
    """The crew of a coordinator. Local; nothing blocks. What comes is seen by `selector`."""

    def __init__(
        self,
        seats: Seats,
        own: Mapping[int, Mapping[str, Any]],
        selector: selectors.BaseSelector,
        at: Topology,
        address: str,
    ) -> None:
        """`own` has the ranks of this process and their places."""
        self._seats, self._own, self._selector = seats, own, selector
        self._at, self._address = at, address
        self._supervisors: dict[int, _Supervisor] = {}
        """By rank."""
        self._all: list[_Supervisor] = []
        self._listener: socket.socket | None = None
        self._missing: set[int] = set()
        """Ranks that have not come so far."""
        self._look_at: float | None = None
        """When to look for them."""
        self._refused: list[tuple[_Supervisor, str]] = []
        """Who could not load the task, and why."""
        self._reasons: set[str] = set()
        """Of those who were let tell them."""

    def listen(self) -> None:
        """Let other supervisors come."""
        assert self._at.address is not None
        self._listener = listen(self._at.address, ports(self._at.port, self._at.token), 128)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._missing = {rank for rank in range(1, self._at.world_size) if rank not in self._own}
        self._look_at = monotonic() + LATE_S

    def start(self, rank: int) -> None:
        if rank in self._own:
            self._seats.start(rank)
        else:
            self._pass_on(rank, {"do": "start"})

    def send(self, rank: int, letter: Letter) -> None:
        if rank in self._own:
            self._seats.send(rank, letter)
        else:
            self._pass_on(rank, {"do": "send", "letter": letter})

    def signal(self, rank: int, signum: int) -> None:
        if rank in self._own:
            self._seats.signal(rank, signum)
        else:
            self._pass_on(rank, {"do": "signal", "signum": int(signum)})

    def place_of(self, rank: int) -> Mapping[str, Any]:
        if rank in self._own:
            return {**self._own[rank], "address": self._address}
        supervisor = self._supervisors.get(rank)
        return (
            {"node": "", "address": "", "gpus": (), "our_gpus": (), "threads": None}
            if supervisor is None
            else supervisor.ranks[rank]
        )

    def flush(self) -> None:
        """Local: send what sockets did not take at once; drop visitors who do not say who they are; answer those who could not
        load the task."""
        now = monotonic()
        for one in tuple(self._all):
            if one.channel.unsent:
                one.channel.flush()
            if one.challenge is not None and now > one.deadline:
                self._drop(one)
        while self._refused and self._seats.is_loaded:  # else we have the same trouble, and tell it ourselves
            supervisor, reason = self._refused.pop()
            post(supervisor.channel, {"do": "end", "code": 1} if reason in self._reasons else {"do": "tell"})
            self._reasons.add(reason)

    def who_is_late(self) -> str:
        """Local: once, a minute after the others could come: who of them has not; empty where there is nothing to say."""
        if self._look_at is None or monotonic() < self._look_at:
            return ""
        self._look_at = None
        if not self._missing:
            return ""
        assert self._listener is not None
        has, its = ("has", "its block waits") if len(self._missing) == 1 else ("have", "their blocks wait")
        port = self._listener.getsockname()[1]
        return (
            f"{join_ranks(self._missing)} {has} not come yet, so {its}; look at what is printed there, and whether "
            f"{self._at.address}, port {port}, can be reached from there"
        )

    def close(self, code: int = 0) -> None:
        """Local, blocking for moments: all workers end, and the supervisors with them, by this exit code."""
        for one in tuple(self._all):
            post(one.channel, {"do": "end", "code": code})
            one.channel.finish()
            self._drop(one)
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
        self._seats.close()

    def _pass_on(self, rank: int, letter: Letter) -> None:
        supervisor = self._supervisors.get(rank)
        if supervisor is not None:
            post(supervisor.channel, {"rank": rank, **letter})

    def _accept(self) -> Iterator[Heard]:
        assert self._listener is not None
        try:
            sock, peer = self._listener.accept()
        except OSError:
            return
        tune(sock)
        port = self._listener.getsockname()[1]
        visitor = _Supervisor(
            Channel(sock), Challenge(self._at.token, port), plain_address(str(peer[0])), monotonic() + GUEST_WAIT_S
        )
        self._all.append(visitor)
        self._selector.register(sock, selectors.EVENT_READ, lambda: self._from(visitor))
        yield from ()

    def _from(self, supervisor: _Supervisor) -> Iterator[Heard]:
        try:
            messages = supervisor.channel.receive()
            for message in messages:
                if supervisor.challenge is not None:
                    self._greet(supervisor, message)
                else:
                    letter = read(message)
                    if letter["is"] == "refused":
                        self._refused.append((supervisor, letter["reason"]))
                    else:
                        yield letter.pop("rank"), letter
        except (OSError, Stranger, CommError):
            supervisor.channel.ended = True
        if supervisor.channel.ended:
            self._drop(supervisor)
            for rank in supervisor.ranks:
                yield rank, {"is": LOST}

    def _greet(self, supervisor: _Supervisor, message: bytes) -> None:
        assert supervisor.challenge is not None
        if not supervisor.challenge.answered:
            supervisor.channel.send(supervisor.challenge.answer(message))
            return
        hello = supervisor.challenge.verify(message)
        supervisor.challenge = None
        supervisor.channel.limit_bytes = MEMBER_LIMIT_BYTES
        rank = hello["rank"]
        if rank in self._supervisors or rank in self._own:
            supervisor.channel.send(encode(("refused", f"rank {rank} is here already; were two jobs started as one?")))
            return
        address = self._address if is_loopback(supervisor.peer) else supervisor.peer
        supervisor.ranks[rank] = {**hello["place"], "address": address}
        self._supervisors[rank] = supervisor
        self._missing.discard(rank)
        supervisor.channel.send(encode(("joined",)))

    def _drop(self, supervisor: _Supervisor) -> None:
        if supervisor in self._all:
            self._all.remove(supervisor)
            self._selector.unregister(supervisor.channel.sock)
            supervisor.channel.close()
        for rank in supervisor.ranks:
            self._supervisors.pop(rank, None)


def supervise(
    seats: Seats, rank: int, place: Mapping[str, Any], at: Topology, selector: selectors.BaseSelector, wait_s: float
) -> int:
    """Local, blocking: supervise one rank until the coordinator says that all is over, or is gone; gives the exit code."""
    assert at.address is not None
    hello = {"rank": rank, "place": {**place, "gpus": list(place["gpus"]), "our_gpus": list(place["our_gpus"])}}
    channel = find(rank, at.address, ports(at.port, at.token), at.token, hello, monotonic() + wait_s, wait_s, at.job)
    over: list[int] = []

    def from_coordinator() -> Iterator[Heard]:
        try:
            letters = [read(message) for message in channel.receive()]
        except OSError:
            letters, channel.ended = [], True
        for letter in letters:
            if letter["do"] == "start":
                seats.start(letter["rank"])
            elif letter["do"] == "send":
                seats.send(letter["rank"], letter["letter"])
            elif letter["do"] == "signal":
                seats.signal(letter["rank"], letter["signum"])
            else:
                over.append(letter["code"])
        if channel.ended and not over:
            over.append(1)
        yield from ()

    with StopRequest():  # those signals come to all ranks, and the coordinator decides
        try:
            selector.register(channel.sock, selectors.EVENT_READ, from_coordinator)
            seats.begin()
            is_started = False
            while not over:
                for _, letter in ranks_heard(selector, 1.0):
                    if (
                        letter["is"] == "loaded" and not is_started
                    ):  # later ones are started when the coordinator has heard of an end
                        seats.start(rank)
                        is_started = True
                    elif letter["is"] != "loaded":
                        post(channel, {"rank": rank, **letter})
                channel.flush()
        except (UsageError, TrainingFailed) as error:
            code = _code_if_told(channel, rank, str(error))
            if code is not None:
                return code
            raise TrainingFailed(f"rank {rank} on {socket.gethostname()}: {error}") from error
        finally:
            seats.close()
            channel.close()
    return over[0]


def _code_if_told(channel: Channel, rank: int, reason: str) -> int | None:
    """Local, blocking until the coordinator knows the task itself: with which code to end without a word, as what is wrong is said
    by it or by another; None where we must say it."""
    post(channel, {"rank": rank, "is": "refused", "reason": reason})
    try:
        while (letter := read(channel.receive_one(monotonic() + FOREVER_S)))["do"] not in ("tell", "end"):
            continue  # it does not know yet
    except (EOFError, OSError):
        return None
    return int(letter["code"]) if letter["do"] == "end" else None


Hears = Callable[[], Iterator[Heard]]
"""What is registered with the selector for each socket."""


def ranks_heard(selector: selectors.BaseSelector, wait_s: float) -> Iterator[Heard]:
    """Local, blocking for at most so long: all that has come."""
    found: Sequence[Any] = selector.select(wait_s)
    for key, _ in found:
        now = selector.get_map().get(key.fd)
        if now is key:  # it may have gone with an earlier one
            yield from now.data()
