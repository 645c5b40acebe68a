"""The worker processes of one node, seen from the supervisor that is their parent. A supervisor is light: it loads no framework
(only one that also coordinates does, to search with a Gaussian process), so it starts at once and nothing that a trial does can
harm it."""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unisono.cluster.gpus import environment_of_worker
from unisono.cluster.machine.memory_kills import num_memory_kills
from unisono.cluster.resolve import environment
from unisono.comm.control_plane.channel import Channel
from unisono.errors import TrainingFailed, UsageError
from unisono.launch.orphans import preexec_of_rank
from unisono.launch.rank_env import HASH_SEED
from unisono.tuning.workers.messages import Message, channel_of, parse_message, send_message

PROGRAM = "import sys; sys.path[:0] = {paths!r}; from unisono.tuning.workers.fork_server import main; main({descriptor})"
KILLED = -int(signal.SIGKILL)
MAX_FAILED_LOADS = 5
"""Failed loads in a row, of a task that could be loaded before."""
MAX_FAILED_STARTS = 5
"""Failed starts in a row of the worker of a rank."""

WorkerMessage = tuple[int, Message]
"""The rank of a worker, and a message: one of its own, or {"is": "gone", "status": ...} when it has ended."""


@dataclass
class _Slot:
    rank: int
    cpus: Sequence[int] | None
    channel: Channel | None = None
    pid: int | None = None
    process: subprocess.Popen[bytes] | None = None
    """Where workers cannot be forked: its own process."""
    loader: Channel | None = None
    gpus: Sequence[str] = ()
    is_ready: bool = False
    is_killed: bool = False
    """Whether this process has killed it."""
    num_failed_starts: int = 0


class WorkerSlots:
    """The workers of this node, one for each rank. Local; only `start_fork_server` and `close` block. To be used from the main
    thread, as the kernel ends the children with the thread that started them."""

    def __init__(
        self,
        work_spec: Mapping[str, Any],
        cpus: Mapping[int, Sequence[int] | None],
        selector: selectors.BaseSelector,
        gpus: Mapping[int, Sequence[str]] | None = None,
        describes_task: bool = True,
    ) -> None:
        """`work_spec` describes the work; `cpus` has the ranks and the CPUs of each, `gpus` their GPUs. Messages arrive through
        `selector`. With `describes_task` the task is tried out, and `about` describes it."""
        self._work_spec, self._describes_task = work_spec, describes_task
        self._slots = {rank: _Slot(rank, mine, gpus=(gpus or {}).get(rank, ())) for rank, mine in cpus.items()}
        self._selector = selector
        self._fork_server: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._sock: socket.socket | None = None
        self._can_fork = True
        self._memory_kills = num_memory_kills()
        self.about: dict[str, Any] = {}
        self.is_loaded = self._was_loaded = False
        self._num_failed_loads = 0

    def start_fork_server(self) -> None:
        """Starts the fork server; `is_loaded` is true once it has loaded the task. Local."""
        self._fork_server, self._sock, self._channel = self._start_loader()
        self._watch(self._channel, lambda: self._on_fork_server())

    def start(self, rank: int) -> None:
        """Starts a new worker for a rank whose last one is gone. Local."""
        slot = self._slots[rank]
        mine, theirs = socket.socketpair()
        with theirs:
            slot.channel, slot.pid = channel_of(mine), None
            slot.is_ready = slot.is_killed = False
            command = {
                "do": "start" if self._can_fork else "become",
                "rank": rank,
                "cpus": None if slot.cpus is None else list(slot.cpus),
            }
            if not self._can_fork:
                slot.process, sock, slot.loader = self._start_loader(slot)
                slot.pid = slot.process.pid
            else:
                assert self._sock is not None
                sock = self._sock
            _send_with_descriptor(sock, command, theirs.fileno())
        self._watch(slot.channel, lambda: self._on_worker(slot))

    def send(self, rank: int, message: Message) -> None:
        """Sends a message to a worker; it is lost where the worker is gone. Local."""
        channel = self._slots[rank].channel
        if channel is not None:
            send_message(channel, message)

    def signal(self, rank: int, signum: int) -> None:
        """Sends a signal to a worker, if it is alive. Local."""
        slot = self._slots[rank]
        slot.is_killed = slot.is_killed or signum == signal.SIGKILL
        if slot.pid is not None:
            for send in (os.killpg, os.kill) if signum == signal.SIGKILL else (os.kill,):  # with what it started
                try:
                    send(slot.pid, signum)
                except ProcessLookupError:
                    continue
        elif signum == signal.SIGKILL and slot.channel is not None:  # it is being forked; it ends when it finds its channel closed
            self._drop(slot)

    def close(self) -> None:
        """Ends all workers and the fork server. Local, blocking for moments."""
        for slot in self._slots.values():
            self.signal(slot.rank, signal.SIGKILL)
            self._drop(slot)
            if slot.process is not None:
                slot.process.kill()
                slot.process.wait()
            if slot.loader is not None:
                slot.loader.close()
        if self._channel is not None:
            self._unwatch(self._channel)
            self._channel.close()
        if self._fork_server is not None:
            self._fork_server.kill()
            self._fork_server.wait()

    # ---- incoming --------------------------------------------------------------------------------------------------

    def _on_fork_server(self) -> Iterator[WorkerMessage]:
        """Handles what the fork server reports, and yields what concerns the coordinator; raises if the task cannot be loaded."""
        assert self._channel is not None and self._fork_server is not None
        for data in _receive_available(self._channel):
            message = parse_message(data)
            if message["is"] == "refused":
                raise UsageError(message["reason"]) if "trace" not in message else TrainingFailed(message["trace"].rstrip())
            if message["is"] == "loaded":
                self._can_fork, self.about, self._was_loaded = message["forks"], message["about"], True
                self._num_failed_loads = 0
                if self._can_fork:
                    self.is_loaded = True
                    yield -1, message
            elif message["is"] == "born":
                self._slots[message["rank"]].pid = message["pid"]
            elif message["is"] == "gone":
                slot = self._slots[message["rank"]]
                yield from self._remaining_messages(slot)
                self._count_failed_start(slot, message["status"])
                yield slot.rank, {**message, "no_memory": self._was_memory_kill(message["status"])}
        if self._channel.ended:
            self._unwatch(self._channel)
            self._channel.close()
            if not self._can_fork:  # it has described the task, and has ended so that the workers can have the GPU
                self._fork_server.wait()
                self.is_loaded = True
                yield -1, {"is": "loaded", "forks": False, "about": self.about}
                return
            self._num_failed_loads += not self.is_loaded
            if not self._was_loaded or self._num_failed_loads > MAX_FAILED_LOADS:
                raise TrainingFailed(
                    f"the process that loads the task ended ({_exit_text(self._fork_server.wait())}); the reason is in "
                    "its output above"
                )
            self._fork_server.wait()
            self.start_fork_server()  # its workers died with it
            self.is_loaded = False
            for slot in self._slots.values():
                if slot.channel is not None and slot.process is None:
                    yield from self._remaining_messages(slot)
                    self._count_failed_start(slot, KILLED)
                    yield slot.rank, {"is": "gone", "status": KILLED}

    def _on_worker(self, slot: _Slot) -> Iterator[WorkerMessage]:
        """Yields the messages of a worker, and its end if it was not forked."""
        channel = slot.channel
        if channel is None:
            return
        yield from self._messages(slot, channel)
        if channel.ended:
            self._unwatch(channel)
            channel.close()
            if slot.process is not None:  # the fork server reports how forked workers ended
                status, why = slot.process.wait(), ""
                if slot.loader is not None:
                    why = _refusal(slot.loader)
                    slot.loader.close()
                slot.channel = slot.pid = slot.process = slot.loader = None
                self._count_failed_start(slot, status, why)
                yield slot.rank, {"is": "gone", "status": status, "no_memory": self._was_memory_kill(status)}

    def _remaining_messages(self, slot: _Slot) -> Iterator[WorkerMessage]:
        """The messages that a worker sent before it ended, which may arrive after the news of its end."""
        if slot.channel is not None:
            yield from self._messages(slot, slot.channel)
        self._drop(slot)

    def _messages(self, slot: _Slot, channel: Channel) -> Iterator[WorkerMessage]:
        """Yields the messages that have arrived from a worker."""
        for data in _receive_available(channel):
            message = parse_message(data)
            if message["is"] == "ready":
                slot.is_ready, slot.num_failed_starts = True, 0
            yield slot.rank, message

    def _count_failed_start(self, slot: _Slot, status: int, why: str = "") -> None:
        """Counts failed starts and raises `TrainingFailed` after several: a worker that never becomes ready would be started for
        ever."""
        if slot.is_ready or slot.is_killed:
            return
        slot.num_failed_starts += 1
        if slot.num_failed_starts >= MAX_FAILED_STARTS:
            raise TrainingFailed(
                f"the process of rank {slot.rank} on {socket.gethostname()} ended {slot.num_failed_starts} times before it was "
                f"ready, the last time by {_exit_text(status)}{f': {why}' if why else '; its output is above'}. Check the free "
                "memory, and the limit of processes (ulimit -u)"
            )

    def _was_memory_kill(self, status: int) -> bool:
        """Whether the system has killed a process of ours for lack of memory since the last call."""
        before, self._memory_kills = self._memory_kills, num_memory_kills()
        return status == KILLED and self._memory_kills > before

    def _drop(self, slot: _Slot) -> None:
        """Closes the connection of a worker and forgets its process."""
        if slot.channel is not None:
            self._unwatch(slot.channel)
            slot.channel.close()
        slot.channel = slot.pid = None

    # ---- processes -------------------------------------------------------------------------------------------------

    def _start_loader(self, slot: _Slot | None = None) -> tuple[subprocess.Popen[bytes], socket.socket, Channel]:
        """Starts a process that loads the task, as one worker (`slot`) or as the fork server."""
        mine, theirs = socket.socketpair()
        with theirs:
            program = PROGRAM.format(paths=[path for path in sys.path if path], descriptor=theirs.fileno())
            process = subprocess.Popen(
                (sys.executable, "-c", program),
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a task prints while it is loaded must not mix with what we say
                env=environment_of_worker({**HASH_SEED, **environment()}, () if slot is None else slot.gpus),
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                preexec_fn=preexec_of_rank(()),
            )
        channel = channel_of(mine)
        send_message(channel, {**self._work_spec, "tells": self._describes_task and slot is None, "becomes": slot is not None})
        return process, mine, channel

    def _watch(self, channel: Channel, on_readable: Callable[[], Iterator[WorkerMessage]]) -> None:
        """Calls `on_readable` whenever messages arrive on a channel."""
        self._selector.register(channel.sock, selectors.EVENT_READ, on_readable)

    def _unwatch(self, channel: Channel) -> None:
        """Stops watching a channel."""
        if channel.sock.fileno() >= 0 and channel.sock in self._selector.get_map():
            self._selector.unregister(channel.sock)


def _send_with_descriptor(sock: socket.socket, message: Message, descriptor: int) -> None:
    """Sends a short message together with a file descriptor. Local, blocking for moments, as the fork server does little but
    read."""
    sock.setblocking(True)
    try:
        socket.send_fds(sock, [json.dumps(message).encode() + b"\n"], [descriptor])
    except OSError:
        return  # it died, which is noticed elsewhere
    finally:
        sock.setblocking(False)


def _receive_available(channel: Channel) -> list[bytes]:
    """Returns the messages that have arrived on a channel, which it marks as ended if it is broken."""
    try:
        return channel.receive()
    except OSError:
        channel.ended = True
        return []


def _refusal(loader: Channel) -> str:
    """Why a process has not become a worker, where it could report that."""
    messages = [parse_message(data) for data in _receive_available(loader)]
    return next((message["reason"] for message in messages if message["is"] == "refused"), "")


def _exit_text(code: int) -> str:
    """Returns how a process ended: 'exit code 1' or 'signal 9'."""
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
