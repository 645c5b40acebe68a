"""The control plane of ranks that are processes: every rank holds one connection to a hub in rank 0's process.

The hub notifies all ranks of lost ones. It ends with rank 0: from then on no rank learns anything new about the others, and an
exchange between ranks that stayed raises `PeerLost` with rank 0.
"""

from __future__ import annotations

import itertools
import os
import select
import socket
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any

from unisono.comm.control_plane.channel import AUTHENTICATED_LIMIT_BYTES, Channel
from unisono.comm.control_plane.control import Control, CurrentCall, Loss, Report
from unisono.comm.control_plane.handshake import check_hello
from unisono.comm.control_plane.hub import LEAVE_WAIT_S, TICK_S, Hub
from unisono.comm.control_plane.hub_connection import DIED, VANISHED, reason_of
from unisono.comm.control_plane.job_pass import Pass
from unisono.comm.control_plane.meeting import HUB_GRACE_S, connect_to_hub, is_loopback, listen, plain_address
from unisono.comm.control_plane.plain import decode, encode
from unisono.comm.control_plane.welcome import await_welcome
from unisono.errors import CollectiveTimeout, CommError, MismatchedCall, PeerLost, UsageError, join_ranks

ANSWER_WAIT_S = 2.0
"""Time in which the hub must pass a message on."""


class TcpControl(Control):
    """One rank's end of the connection to the hub (which rank 0 also owns). Made by `connect`."""

    local_address: str
    """Numeric address of the interface through which the other ranks reach this one; loopback if all are on this host."""
    peers_info: list[dict[Any, Any]]
    """The `info` that each rank gave to `connect`, by rank."""

    def __init__(
        self,
        rank: int,
        size: int,
        own_pass: Pass,
        local_address: str,
        peers_info: list[dict[Any, Any]],
        link: Channel | None,
        hub: Hub | None,
    ) -> None:
        super().__init__(rank, size, own_pass)
        self.local_address = local_address
        self.peers_info = peers_info
        self._link = link
        self._hub = hub
        self.known_by_name = tuple(sorted(hub.known_by_name)) if hub is not None else ()
        """On rank 0: the ranks that joined without a proof of the secret."""
        self._changed = threading.Condition()
        """Guards all below; announced whenever an answer came or the connection ended."""
        self._waiting: dict[str, list[Any]] = {}
        self._reports: dict[int, dict[int, Report | None]] = {}
        self._numbers = itertools.count()
        self._over: str | None = None
        """Reason why this rank's own connection is closed; None while it is open."""
        self._hub_gone = False
        self._leave_by = float("inf")
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._ear.setblocking(False)
        self._thread: threading.Thread | None = None

    @classmethod
    def connect(
        cls,
        rank: int,
        size: int,
        address: str,
        ports: Sequence[int],
        token: str,
        timeout_s: float,
        info: Mapping[Any, Any] | None = None,
        job: str = "",
        attend: Callable[[], None] | None = None,
        name: str = "",
        no_secret: str = "",
    ) -> TcpControl:
        """Collective over all ranks of the job, blocking until all are connected. `info` is small plain data for the others, `job`
        a name for messages. `attend` is called several times a second; what it raises ends the wait, for the others too.

        Rank 0 listens at `address` on the first free of `ports`; the others connect to it there and trust only a server that knows
        `token`, the job's secret. `name` is the job's public name; `no_secret` says why other hosts cannot know the secret, so that
        the name has to do for them. Raises `UsageError` if ranks contradict each other, `CollectiveTimeout` with those who did not
        come and `PeerLost` if one came and went.
        """
        _check_arguments(rank, size, ports, token or name, timeout_s)
        own = Pass(token, name, no_secret)
        deadline = monotonic() + timeout_s
        who = f"process {os.getpid()} on {socket.gethostname()}"
        hello = {"rank": int(rank), "size": int(size), "left_s": float(timeout_s), "who": who, "info": dict(info or {})}
        check_hello(hello)
        if size == 1:
            alone = decode(encode([hello["info"]]))
            return cls(rank, size, own, "127.0.0.1", alone, None, None)._started()
        hub, link = None, None
        try:
            if rank == 0:
                hub = Hub(listen(address, ports, backlog=size + 64), address, size, own, job)
                link = Channel(hub.start(), AUTHENTICATED_LIMIT_BYTES)
                link.send(encode(hello))
            else:
                link = connect_to_hub(rank, address, ports, own, hello, deadline, timeout_s, job, attend)
            infos, reached_at = await_welcome(rank, link, deadline + HUB_GRACE_S, timeout_s, attend)
            mine = plain_address(link.sock.getsockname()[0]) if rank else reached_at
            # Ranks beside rank 0 reach it over loopback, but other hosts do not reach them there.
            local_address = reached_at if is_loopback(mine) or is_loopback(reached_at) else mine
            return cls(rank, size, own, local_address, infos, link, hub)._started()
        except BaseException:
            if link is not None:
                link.close()
            if hub is not None:
                hub.join()
            raise

    # ---- what communicators call -----------------------------------------------------------------------------------

    def exchange(self, key: str, members: Sequence[int], obj: Any, timeout_s: float) -> list[Any]:
        where = f"exchange {key!r} on rank {self.rank}"
        together = tuple(int(member) for member in members)
        if self.rank not in together or len(set(together)) != len(together) or not all(0 <= m < self.size for m in together):
            raise UsageError(
                f"{where}: members must be distinct ranks of 0..{self.size - 1} and include {self.rank}; received {together}"
            )
        content = encode(obj)
        if len(together) == 1:
            return [decode(content)]
        with self._changed:
            self._check_open(where)
            if key in self._waiting:
                raise UsageError(f"{where} is already in progress in another thread; use each key only once")
            answers = self._waiting[key] = []
        try:
            self._post(("put", key, together, content))
            if not self._wait_until(lambda: bool(answers), timeout_s):
                self._post(("late", key))
                self._wait_until(lambda: bool(answers), ANSWER_WAIT_S)
        finally:
            with self._changed:
                del self._waiting[key]
        match answers[0] if answers else None:
            case ("all", list(objects)):
                return [decode(one) for one in objects]
            case ("void", list(gone)):
                raise PeerLost(gone, f"{where} cannot finish: {self._reasons_of(gone)}")
            case ("clash", str(text)):
                raise MismatchedCall(text)
            case ("late", list(missing)):
                raise CollectiveTimeout(missing, f"{where}: {join_ranks(missing)} did not arrive within {timeout_s:g} s")
        self._check_open(where)
        raise CollectiveTimeout([0], f"{where}: rank 0, which forwards the objects, did not answer within {timeout_s:g} s")

    def reports(self, members: Sequence[int], timeout_s: float) -> dict[int, Report]:
        others = [int(member) for member in members if member != self.rank]
        gone_before = set(self.lost)
        with self._changed:
            number = next(self._numbers)
            answers = self._reports[number] = {}
        if others and self._over is None and not self._hub_gone:
            self._post(("ask", number, others))
            self._wait_until(lambda: all(m in answers or (m in self.lost and m not in gone_before) for m in others), timeout_s)
        with self._changed:
            del self._reports[number]
        found = {member: report for member, report in answers.items() if report is not None}
        return {**found, self.rank: self.own_report()} if self.rank in members else found

    def give_up(self, reason: str, causes: Sequence[int] = ()) -> None:
        self._post(("give_up", reason, [int(cause) for cause in causes]))
        if self._hub is not None and self._over is None:
            self._hub.wait_announced(ANSWER_WAIT_S)  # rank 0 often dies right after, and the hub with it; it needs a moment

    def close(self) -> None:
        """Local: leaves the job cleanly. Idempotent. Blocks for a limited time, until the others have read what was sent."""
        with self._changed:
            first, self._over = self._over is None, self._over or "it was closed"
            thread = self._thread
            self._changed.notify_all()
        if first and self._link is not None:
            self._post(("bye", self.done()))
            self._link.end_sending()
            self._leave_by = monotonic() + LEAVE_WAIT_S
            self._wake_listener()
        if thread is not None:
            thread.join()
        if self._hub is not None:
            self._hub.join()
        self._bell.close()
        self._ear.close()

    # ---- the thread that listens -----------------------------------------------------------------------------------

    def _started(self) -> TcpControl:
        """Starts the listening thread and returns this object."""
        # A forked child (a data loader's worker) would keep the connection open after our death, and could speak in our name.
        os.register_at_fork(after_in_child=partial(_abandon_in_child, weakref.ref(self)))
        if self._link is not None:
            self._thread = threading.Thread(target=self._listen, args=(self._link,), name="unisono-control", daemon=True)
            self._thread.start()
        return self

    def _listen(self, link: Channel) -> None:
        """Body of the listening thread: handles messages of the hub until the connection ends, and then marks the hub as gone."""
        reason = DIED
        try:
            poller = select.poll()
            poller.register(self._ear, select.POLLIN)
            while not link.ended and (left_s := self._leave_by - monotonic()) > 0:
                for message in link.receive():
                    self._handle(decode(message))
                if link.is_silent():
                    reason = VANISHED
                    return
                poller.register(link.sock, select.POLLIN | (select.POLLOUT if link.has_unsent else 0))
                if not link.ended:
                    poller.poll(min(left_s, TICK_S) * 1000)
                with suppress(BlockingIOError):
                    self._ear.recv(64)
                link.flush()
        except OSError as error:
            reason = reason_of(error)
        except CommError as error:
            reason = f"sent an invalid message ({error}); check that all ranks run the same version of unisono"
        except BaseException:
            reason = "can no longer be reached: the listening thread of this rank failed (see its traceback)"
            raise
        finally:
            link.close()
            with self._changed:
                if self._over is None:
                    self.lost.setdefault(0, Loss(reason))
                self._hub_gone = True
                self._changed.notify_all()

    def _handle(self, message: Any) -> None:
        """Handles one message of the hub; raises `CommError` for an unknown one."""
        match message:
            case ("lost", int(rank), str(reason), list(causes), dict(done)):
                with self._changed:
                    self.lost.setdefault(rank, Loss(reason, tuple(causes), done))
                    self._changed.notify_all()
            case ("all" | "void" | "clash" | "late" as kind, str(key), content):
                with self._changed:
                    if key in self._waiting:  # otherwise its time was up, and nobody waits for it any more
                        self._waiting[key].append((kind, content))
                        self._changed.notify_all()
            case ("ask", int(number), int(asker)):
                report = self.own_report()
                doing = {name: (entry.seq, entry.call) for name, entry in report.current_calls.items()}
                self._post(("report", number, asker, (doing, report.stack)))
            case ("report", int(number), int(rank), answer):
                with self._changed:
                    if number in self._reports:
                        self._reports[number][rank] = _parse_report(answer)
                        self._changed.notify_all()
            case _:
                raise CommError("unknown form")

    # ---- small parts -----------------------------------------------------------------------------------------------

    def _post(self, message: tuple[Any, ...]) -> None:
        """Not blocking: sends a message; what the socket does not accept now is left to the listening thread."""
        if self._link is not None:
            self._link.send(encode(message))
            if self._link.has_unsent:
                self._wake_listener()

    def _wake_listener(self) -> None:
        """Wakes the listening thread, so that it checks what is to be sent."""
        with suppress(OSError):  # full: the thread will wake up anyhow; closed: there is no thread
            self._bell.send(b"!")

    def _wait_until(self, done: Callable[[], bool], timeout_s: float) -> bool:
        """Blocking until `done` holds or the connection is over; returns False if the time is over first."""
        with self._changed:
            return self._changed.wait_for(
                lambda: done() or self._hub_gone or self._over is not None, min(timeout_s, threading.TIMEOUT_MAX)
            )

    def _check_open(self, where: str) -> None:
        """Raises `CommError` if this rank has left or given up, `PeerLost` if the hub is gone; `where` names the call."""
        if self._over is not None:
            raise CommError(f"{where}: the control connection of this rank cannot be used any more: {self._over}")
        if self._hub_gone:
            raise PeerLost([0], f"{where} cannot finish: {self._reasons_of([0])}")

    def _reasons_of(self, ranks: Sequence[int]) -> str:
        """Returns why these ranks were lost, as one text."""
        return "; ".join(f"rank {rank} {self.lost[rank].reason}" for rank in ranks)

    def _abandon(self) -> None:
        """In a forked child: closes this copy of the parent's connection. No lock is taken, as its holder may not exist here."""
        self._over = "this process was forked from a rank, and only the parent process can communicate"
        self._changed = threading.Condition()
        self._thread = None
        if self._link is not None:
            self._link.abandon()
        if self._hub is not None:
            self._hub.abandon()
            self._hub = None
        self._bell.close()
        self._ear.close()


def _abandon_in_child(held: weakref.ref[TcpControl]) -> None:
    """Handler of a fork: abandons the connection in the child, if the object still exists."""
    control = held()
    if control is not None:
        control._abandon()


def _parse_report(answer: Any) -> Report | None:
    """Returns the report in the answer of a rank; None where it gave none."""
    if answer is None:
        return None
    doing, stack = answer
    return Report({name: CurrentCall(seq, call) for name, (seq, call) in doing.items()}, stack)


def _check_arguments(rank: int, size: int, ports: Sequence[int], token: str, timeout_s: float) -> None:
    """Raises `UsageError` for a rank, ports, a token or a time limit that cannot be used."""
    if not 0 <= rank < size:
        raise UsageError(f"rank {rank} does not lie in 0..{size - 1}; check the launcher's variables")
    if not ports or not all(0 < port < 65536 for port in ports):
        raise UsageError(f"ports must be numbers in 1..65535, at least one; received {list(ports)}")
    if not token:
        raise UsageError("the job's token is empty, so any process could join the job; give every job its own token")
    if not timeout_s > 0:
        raise UsageError(f"timeout_s must be positive; received {timeout_s}")
