"""All worker processes of a job as its coordinator sees them: those of its own node, and those of other supervisors, which connect
over the network and forward messages."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from unisono.cluster.rendezvous import ports
from unisono.cluster.topology import Topology
from unisono.comm.control_plane.channel import AUTHENTICATED_LIMIT_BYTES, Channel
from unisono.comm.control_plane.guests import Guests
from unisono.comm.control_plane.handshake import Challenge, HandshakeFailed
from unisono.comm.control_plane.job_pass import Pass
from unisono.comm.control_plane.meeting import connect_to_hub, is_loopback, listen, on_one_machine
from unisono.comm.control_plane.plain import encode
from unisono.errors import CommError, TrainingFailed, UsageError, join_ranks
from unisono.stopping.stop_request import StopRequest
from unisono.tuning.workers.messages import FOREVER_S, Message, parse_message, send_message
from unisono.tuning.workers.worker_slots import WorkerMessage, WorkerSlots

LATE_S = 60.0
"""Ranks that have not connected by then are reported."""
LOST = "lost"
"""The kind of message that stands for a rank whose supervisor is gone."""


@dataclass(eq=False)
class _Supervisor:
    channel: Channel
    challenge: Challenge | None
    """None once it has shown that it belongs to the job."""
    peer: str
    ranks: dict[int, Mapping[str, Any]] = field(default_factory=dict)


class AllWorkers:
    """All workers of a job, for its coordinator. Local; no method but `close` blocks. Messages arrive through `selector`."""

    def __init__(
        self,
        slots: WorkerSlots,
        local_places: Mapping[int, Mapping[str, Any]],
        selector: selectors.BaseSelector,
        at: Topology,
        address: str,
    ) -> None:
        """`local_places` has the ranks of this process and their places."""
        self._slots, self._local_places, self._selector = slots, local_places, selector
        self._at, self._address = at, address
        self._supervisors: dict[int, _Supervisor] = {}
        """By rank."""
        self._connections: list[_Supervisor] = []
        self._guests: Guests[_Supervisor] | None = None
        """Connections that have not shown that they belong to the job."""
        self._port = 0
        self._missing: set[int] = set()
        """Ranks that have not connected so far."""
        self._report_late_at: float | None = None
        """When to report them."""
        self._refused: list[tuple[_Supervisor, str]] = []
        """Supervisors that could not load the task, and why."""
        self._reported_reasons: set[str] = set()
        """The reasons that a supervisor was asked to report itself."""

    def listen(self) -> None:
        """Starts to accept the connections of other supervisors."""
        assert self._at.address is not None
        listener = listen(self._at.address, ports(self._at.port, self._at.token), 128)
        self._port = listener.getsockname()[1]
        self._guests = Guests(listener, self._selector, self._accept, self._at.world_size, self._drop)
        self._missing = {rank for rank in range(1, self._at.world_size) if rank not in self._local_places}
        self._report_late_at = monotonic() + LATE_S

    def start(self, rank: int) -> None:
        """Starts a worker for a rank, here or by its supervisor. Not blocking."""
        if rank in self._local_places:
            self._slots.start(rank)
        else:
            self._forward(rank, {"do": "start"})

    def send(self, rank: int, message: Message) -> None:
        """Sends a message to the worker of a rank, here or by its supervisor. Not blocking."""
        if rank in self._local_places:
            self._slots.send(rank, message)
        else:
            self._forward(rank, {"do": "send", "letter": message})

    def signal(self, rank: int, signum: int) -> None:
        """Sends a signal to the worker of a rank, here or by its supervisor. Not blocking."""
        if rank in self._local_places:
            self._slots.signal(rank, signum)
        else:
            self._forward(rank, {"do": "signal", "signum": int(signum)})

    def place_of(self, rank: int) -> Mapping[str, Any]:
        """Returns node, address, GPUs and threads of a rank; empty values for one that has not connected. Pure."""
        if rank in self._local_places:
            return {**self._local_places[rank], "address": self._address}
        supervisor = self._supervisors.get(rank)
        return (
            {"node": "", "address": "", "gpus": (), "our_gpus": (), "threads": None}
            if supervisor is None
            else supervisor.ranks[rank]
        )

    def flush(self) -> None:
        """Sends what sockets did not take at once; drops connections without a handshake; answers supervisors that could not load
        the task. Local."""
        if self._guests is not None:
            self._guests.check()
        for one in self._connections:
            if one.channel.has_unsent:
                one.channel.flush()
        while self._refused and self._slots.is_loaded:  # else we have the same trouble, and report it ourselves
            supervisor, reason = self._refused.pop()
            send_message(supervisor.channel, {"do": "end", "code": 1} if reason in self._reported_reasons else {"do": "tell"})
            self._reported_reasons.add(reason)

    def late_ranks_text(self) -> str:
        """Returns, once, a minute after `listen`, a text that names the ranks that have not connected; else an empty text.
        Local."""
        if self._report_late_at is None or monotonic() < self._report_late_at:
            return ""
        self._report_late_at = None
        if not self._missing:
            return ""
        has, its = ("has", "its block waits") if len(self._missing) == 1 else ("have", "their blocks wait")
        return (
            f"{join_ranks(self._missing)} {has} not connected yet, so {its}; check what is printed there, and whether "
            f"{self._at.address}, port {self._port}, can be reached from there"
        )

    def close(self, code: int = 0) -> None:
        """Ends all workers, and the supervisors with this exit code. Local, blocking for moments."""
        for one in tuple(self._connections):
            send_message(one.channel, {"do": "end", "code": code})
            one.channel.end_sending()
            self._drop(one)
        if self._guests is not None:
            self._guests.close()
        self._slots.close()

    def _forward(self, rank: int, message: Message) -> None:
        """Sends a command on a rank to its supervisor, if that is still connected."""
        supervisor = self._supervisors.get(rank)
        if supervisor is not None:
            send_message(supervisor.channel, {"rank": rank, **message})

    def _accept(self) -> Iterator[WorkerMessage]:
        """Accepts a connection, which must then prove that it knows the token; yields no messages."""
        assert self._guests is not None
        visit = self._guests.accept()
        if visit is not None:
            challenge = Challenge(_pass_of(self._at), self._port, on_one_machine(visit.here, visit.there))
            visitor = _Supervisor(Channel(visit.sock), challenge, visit.there)
            self._guests.add(visitor)
            self._connections.append(visitor)
            self._selector.register(visit.sock, selectors.EVENT_READ, lambda: self._on_supervisor(visitor))
        yield from ()

    def _on_supervisor(self, supervisor: _Supervisor) -> Iterator[WorkerMessage]:
        """Yields the messages of a supervisor's ranks; `LOST` for each rank once its connection has ended."""
        try:
            for data in supervisor.channel.receive():
                if supervisor.challenge is not None:
                    self._handshake(supervisor, data)
                else:
                    message = parse_message(data)
                    if message["is"] == "refused":
                        self._refused.append((supervisor, message["reason"]))
                    else:
                        yield message.pop("rank"), message
        except (OSError, HandshakeFailed, CommError):
            supervisor.channel.ended = True
        if supervisor.channel.ended:
            self._drop(supervisor)
            for rank in supervisor.ranks:
                yield rank, {"is": LOST}

    def _handshake(self, supervisor: _Supervisor, message: bytes) -> None:
        """Handles a message of a connection that has not proved that it belongs to the job; admits its rank at the end."""
        assert supervisor.challenge is not None
        if not supervisor.challenge.answered:
            supervisor.channel.send(supervisor.challenge.answer(message))
            return
        hello = supervisor.challenge.verify(message)
        supervisor.challenge = None
        if self._guests is not None:
            self._guests.remove(supervisor)
        supervisor.channel.limit_bytes = AUTHENTICATED_LIMIT_BYTES
        rank = hello["rank"]
        if rank in self._supervisors or rank in self._local_places:
            supervisor.channel.send(encode(("refused", f"rank {rank} is connected already; were two jobs started as one?")))
            return
        address = self._address if is_loopback(supervisor.peer) else supervisor.peer
        supervisor.ranks[rank] = {**hello["place"], "address": address}
        self._supervisors[rank] = supervisor
        self._missing.discard(rank)
        supervisor.channel.send(encode(("joined",)))

    def _drop(self, supervisor: _Supervisor) -> None:
        """Closes the connection of a supervisor and forgets it."""
        if supervisor in self._connections:
            self._connections.remove(supervisor)
            if self._guests is not None:
                self._guests.remove(supervisor)
            self._selector.unregister(supervisor.channel.sock)
            supervisor.channel.close()
        for rank in supervisor.ranks:
            self._supervisors.pop(rank, None)


def refuse_strangers(at: Topology) -> None:
    """Refuses a job whose processes have no common secret: its messages name what workers load and run, e.g. the file of an
    algorithm. Pure."""
    if at.no_secret or not at.secret:
        raise UsageError(
            "a search by several processes needs a secret that all of them share, as its messages say what they run, and another "
            f"user could send some: {at.no_secret or 'the launcher gave none'}; export UNISONO_TOKEN, the same random text of 32 "
            "characters for all of them"
        )


def _pass_of(at: Topology) -> Pass:
    """Returns what the processes of this job prove to each other."""
    return Pass(at.secret, at.token)


def supervise(
    slots: WorkerSlots, rank: int, place: Mapping[str, Any], at: Topology, selector: selectors.BaseSelector, wait_s: float
) -> int:
    """Supervises the worker of one rank until the coordinator ends the job or is gone; returns the exit code. Local, blocking."""
    assert at.address is not None
    hello = {"rank": rank, "place": {**place, "gpus": list(place["gpus"]), "our_gpus": list(place["our_gpus"])}}
    channel = connect_to_hub(rank, at.address, ports(at.port, at.token), _pass_of(at), hello, monotonic() + wait_s, wait_s, at.job)
    exit_codes: list[int] = []

    def on_coordinator() -> Iterator[WorkerMessage]:
        try:
            messages = [parse_message(data) for data in channel.receive()]
        except OSError:
            messages, channel.ended = [], True
        for message in messages:
            if message["do"] == "start":
                slots.start(message["rank"])
            elif message["do"] == "send":
                slots.send(message["rank"], message["letter"])
            elif message["do"] == "signal":
                slots.signal(message["rank"], message["signum"])
            else:
                exit_codes.append(message["code"])
        if channel.ended and not exit_codes:
            exit_codes.append(1)
        yield from ()

    with StopRequest():  # those signals come to all ranks, and the coordinator decides
        try:
            selector.register(channel.sock, selectors.EVENT_READ, on_coordinator)
            slots.start_fork_server()
            is_started = False
            while not exit_codes:
                for _, message in receive_messages(selector, 1.0):
                    if (
                        message["is"] == "loaded" and not is_started
                    ):  # later ones are started when the coordinator has learned of an end
                        slots.start(rank)
                        is_started = True
                    elif message["is"] != "loaded":
                        send_message(channel, {"rank": rank, **message})
                channel.flush()
        except (UsageError, TrainingFailed) as error:
            code = _code_if_reported_elsewhere(channel, rank, str(error))
            if code is not None:
                return code
            raise TrainingFailed(f"rank {rank} on {socket.gethostname()}: {error}") from error
        finally:
            slots.close()
            channel.close()
    return exit_codes[0]


def _code_if_reported_elsewhere(channel: Channel, rank: int, reason: str) -> int | None:
    """Asks the coordinator whether an error is reported elsewhere, by itself or by another supervisor: then the exit code with
    which to end silently, else None. Local, blocking until the coordinator has loaded the task itself."""
    send_message(channel, {"rank": rank, "is": "refused", "reason": reason})
    try:
        while (message := parse_message(channel.receive_one(monotonic() + FOREVER_S)))["do"] not in ("tell", "end"):
            continue  # it does not know yet
    except (EOFError, OSError):
        return None
    return int(message["code"]) if message["do"] == "end" else None


MessageSource = Callable[[], Iterator[WorkerMessage]]
"""What is registered with the selector for each socket: a function that yields the messages that have arrived there."""


def receive_messages(selector: selectors.BaseSelector, wait_s: float) -> Iterator[WorkerMessage]:
    """Yields all messages that have arrived, and waits for at most `wait_s` for the first. Local, blocking."""
    found: Sequence[Any] = selector.select(wait_s)
    for key, _ in found:
        now = selector.get_map().get(key.fd)
        if now is key:  # it may have gone with an earlier one
            yield from now.data()
