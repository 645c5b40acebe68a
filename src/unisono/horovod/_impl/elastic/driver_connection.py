"""A worker's connection to the driver: the worker asks for its rank in the next generation, and learns of hosts that come and
go."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

from unisono.comm.control_plane.channel import AUTHENTICATED_LIMIT_BYTES, Channel, set_tcp_options
from unisono.comm.control_plane.handshake import HandshakeFailed, authenticate
from unisono.comm.control_plane.job_pass import Pass
from unisono.comm.control_plane.plain import decode, encode
from unisono.errors import CommError, UsageError
from unisono.horovod._impl.elastic.worker_environment import DriverAddress, RankAssignment, assignment_from_plain, driver_address

CONNECT_S = 30.0
"""How long the driver may take to answer. It is running, as it has started us."""
END_S = 5.0
"""Between the end of the driver and that of this worker, for the program's handler of SIGTERM."""

Listener = Callable[[float, int], None]


class GenerationCancelled(CommError):
    """The generation that this worker was about to join was cancelled; another will follow."""


class DriverConnection:
    """The connection to the driver of an elastic job. It exists in every process; without a driver its reports go nowhere. Any
    thread may call its methods."""

    def __init__(self) -> None:
        self._driver: DriverAddress | None = None
        self._asked = False
        self._channel: Channel | None = None
        self._changed = threading.Condition()
        """Guards all below."""
        self._listeners: list[Listener] = []
        self._assignment: RankAssignment | None = None
        self._void = -1
        """The latest generation that was cancelled."""
        self._dismissed: str | None = None
        self._committed_in = -1

    @property
    def has_driver(self) -> bool:
        """Local: whether a driver of an elastic job started this process."""
        if not self._asked:
            self._driver, self._asked = driver_address(), True
        return self._driver is not None

    @property
    def assignment(self) -> RankAssignment | None:
        """The ranks of this worker in its present generation; None where it has none. Local."""
        return self._assignment

    @property
    def is_dismissed(self) -> bool:
        """Whether the job continues, or ends, without this worker. Local."""
        return self._dismissed is not None

    def wait_for_assignment(self) -> RankAssignment:
        """Asks for a rank in a new generation and waits for it. Ends the process quietly if the driver has none for this worker any
        more. Blocking."""
        channel = self._connected_channel()
        with self._changed:
            self._assignment = None
            channel.send(encode(("ready",)))
            self._changed.wait_for(lambda: self._dismissed is not None or self._assignment is not None)
            assignment = self.assignment
        if assignment is None:
            raise SystemExit(0)
        return assignment

    def check_generation(self) -> None:
        """Raises `GenerationCancelled` if our generation was cancelled. Local."""
        assignment = self._assignment
        if assignment is not None and self._void >= assignment.generation:
            raise GenerationCancelled(f"the driver cancelled generation {assignment.generation}")

    def report_joined(self) -> None:
        """Reports that the communicators of our generation are connected. Local, not blocking."""
        self._send_report("joined")

    def report_synced(self) -> None:
        """Reports that this worker now holds the state of the job. Local, not blocking."""
        self._send_report("synced")

    def report_commit(self) -> None:
        """Reports a commit; only the first of a generation is sent. Local, not blocking."""
        assignment = self._assignment
        if assignment is not None and assignment.generation != self._committed_in:
            self._committed_in = assignment.generation
            self._send_report("committed")

    def report_finished(self) -> None:
        """Reports that the training has ended. Local, not blocking."""
        self._send_report("finished")

    def report_failed(self, reason: str) -> None:
        """Reports why this worker is about to ask for a new rank. Local, not blocking."""
        self._send_report("failed", reason)

    @contextmanager
    def listening(self, listener: Listener) -> Iterator[None]:
        """While the context is open, a thread calls `listener(timestamp, change)` whenever hosts come or go. Local."""
        with self._changed:
            self._listeners.append(listener)
        try:
            yield
        finally:
            with self._changed:
                self._listeners.remove(listener)

    # ---- the connection ----------------------------------------------------------------------------------------------

    def _connected_channel(self) -> Channel:
        """Returns the channel to the driver, connected at the first call with a thread that listens to it."""
        if self._channel is None:
            assert self._driver is not None
            self._channel = _connect(self._driver)
            threading.Thread(target=self._listen_to_driver, args=(self._channel,), name="unisono-elastic", daemon=True).start()
        return self._channel

    def _send_report(self, what: str, *more: Any) -> None:
        """Sends the driver a message on the present generation; nothing without a driver or an assignment."""
        assignment = self._assignment
        if self._channel is not None and assignment is not None:
            self._channel.send(encode((what, assignment.generation, *more)))

    def _listen_to_driver(self, channel: Channel) -> None:
        """The listening thread: handles the driver's messages. When the driver is lost it ends this process, unless the worker was
        dismissed."""
        poller = select.poll()
        poller.register(channel.sock, select.POLLIN)
        try:
            while not channel.ended and not channel.is_silent():
                poller.poll(1000)
                channel.flush()
                for message in channel.receive():
                    self._handle(decode(message))
            reason = "is gone"
        except OSError as error:
            reason = f"is gone ({error})"
        except Exception as error:  # noqa: BLE001 - the main thread may wait for a message that this thread would never pass on
            reason = f"sent a message that cannot be read ({type(error).__name__}: {error})"
        if self._dismissed is None:
            print(f"unisono: the driver of this elastic job {reason}, so this worker ends too", file=sys.stderr, flush=True)
            # The main thread may be anywhere, also in a call that no exception reaches.
            os.kill(os.getpid(), signal.SIGTERM)
            sleep(END_S)
            os._exit(1)

    def _handle(self, message: Any) -> None:
        """Takes in a message of the driver: ranks, a cancelled generation, a change of hosts or a dismissal; `CommError` for
        others."""
        with self._changed:
            match message:
                case ("seat", dict(plain)):
                    self._assignment = assignment_from_plain(plain)
                case ("void", int(generation)):
                    self._void = max(self._void, generation)
                case ("hosts", float(timestamp), int(change)):
                    for listener in self._listeners:
                        listener(timestamp, change)
                case ("leave", str(reason)):
                    self._dismissed = reason
                case _:
                    raise CommError(
                        "unknown message from the driver; check that the driver and the workers run the same version of unisono"
                    )
            self._changed.notify_all()


def _connect(driver: DriverAddress) -> Channel:
    """Returns a channel to the driver after both sides have proved that they belong to one job. Blocking."""
    where = f"the driver of this elastic job at {driver.address}, port {driver.port}"
    deadline = monotonic() + CONNECT_S
    try:
        sock = socket.create_connection((driver.address, driver.port), CONNECT_S)
        try:
            set_tcp_options(sock)
            channel = Channel(sock, AUTHENTICATED_LIMIT_BYTES)
            answer = authenticate(channel, Pass(driver.secret), True, driver.port, {"worker": driver.worker}, deadline, deadline)
        except BaseException:
            sock.close()
            raise
    except (OSError, EOFError, HandshakeFailed) as error:
        raise UsageError(f"{where} cannot be reached: {error}; check that unisono horovodrun still runs there") from error
    if answer != ("welcome",):
        raise UsageError(f"{where} does not know worker {driver.worker}; start workers with unisono horovodrun only")
    return channel
