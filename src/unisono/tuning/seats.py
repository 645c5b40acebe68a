"""The worker processes of one node, seen from the supervisor that has them as children. A supervisor is light: it loads no
framework (only one that also coordinates does, to search with a Gaussian process), so it is there at once and nothing that a trial
does can harm it."""

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
from unisono.cluster.memory_kills import num_memory_kills
from unisono.cluster.mortality import before_exec
from unisono.cluster.resolve import environment
from unisono.comm.control_plane.channel import Channel
from unisono.errors import TrainingFailed, UsageError
from unisono.tuning.letters import Letter, channel_of, post, read

PROGRAM = "import sys; sys.path[:0] = {paths!r}; from unisono.tuning.nursery import main; main({descriptor})"
KILLED = -int(signal.SIGKILL)
MOST_FAILED_LOADS = 5
"""One after the other, of what was loaded before."""
MOST_FAILED_STARTS = 5
"""One after the other, of the worker of a rank."""

Heard = tuple[int, Letter]
"""The rank of a worker, and what it says: its own letters, or {"is": "gone", "status": ...} when it has ended."""


@dataclass
class _Seat:
    rank: int
    cpus: Sequence[int] | None
    channel: Channel | None = None
    pid: int | None = None
    own: subprocess.Popen[bytes] | None = None
    """Where workers cannot be forked: its own process."""
    nursery: Channel | None = None
    gpus: Sequence[str] = ()
    is_ready: bool = False
    is_killed: bool = False
    """By us."""
    num_failed_starts: int = 0


class Seats:
    """One worker for each rank of this node. Local; nothing blocks but `open`. Start it from the main thread, as the kernel ends
    the children with the thread that started them."""

    def __init__(
        self,
        order: Mapping[str, Any],
        cpus: Mapping[int, Sequence[int] | None],
        selector: selectors.BaseSelector,
        gpus: Mapping[int, Sequence[str]] | None = None,
        tells: bool = True,
    ) -> None:
        """`order` says what the workers do, `cpus` has the ranks and on which CPUs each stays, `gpus` which GPUs are theirs. What
        comes is seen by `selector`. `tells`: the task is tried out, and there is something in `about`."""
        self._order, self._tells = order, tells
        self._seats = {rank: _Seat(rank, mine, gpus=(gpus or {}).get(rank, ())) for rank, mine in cpus.items()}
        self._selector = selector
        self._nursery: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._sock: socket.socket | None = None
        self._forks = True
        self._memory_kills = num_memory_kills()
        self.about: dict[str, Any] = {}
        self.is_loaded = self._was_loaded = False
        self._num_failed_loads = 0

    def begin(self) -> None:
        """Local: start to load; `heard` tells when that is done."""
        self._nursery, self._sock, self._channel = self._load()
        self._watch(self._channel, lambda: self._from_nursery())

    def start(self, rank: int) -> None:
        """Local: a new worker for a rank whose last one is gone."""
        seat = self._seats[rank]
        mine, theirs = socket.socketpair()
        with theirs:
            seat.channel, seat.pid = channel_of(mine), None
            seat.is_ready = seat.is_killed = False
            letter = {
                "do": "start" if self._forks else "become",
                "rank": rank,
                "cpus": None if seat.cpus is None else list(seat.cpus),
            }
            if not self._forks:
                seat.own, sock, seat.nursery = self._load(seat)
                seat.pid = seat.own.pid
            else:
                assert self._sock is not None
                sock = self._sock
            _send_with(sock, letter, theirs.fileno())
        self._watch(seat.channel, lambda: self._from_worker(seat))

    def send(self, rank: int, letter: Letter) -> None:
        """Local: to a worker; one that is gone does not get it."""
        channel = self._seats[rank].channel
        if channel is not None:
            post(channel, letter)

    def signal(self, rank: int, signum: int) -> None:
        """Local: to a worker, where it lives."""
        seat = self._seats[rank]
        seat.is_killed = seat.is_killed or signum == signal.SIGKILL
        if seat.pid is not None:
            for send in (os.killpg, os.kill) if signum == signal.SIGKILL else (os.kill,):  # with what it started
                try:
                    send(seat.pid, signum)
                except ProcessLookupError:
                    continue
        elif signum == signal.SIGKILL and seat.channel is not None:  # it is being born; it ends when it finds nobody here
            self._drop(seat)

    def close(self) -> None:
        """Local, blocking for moments: end all."""
        for seat in self._seats.values():
            self.signal(seat.rank, signal.SIGKILL)
            self._drop(seat)
            if seat.own is not None:
                seat.own.kill()
                seat.own.wait()
            if seat.nursery is not None:
                seat.nursery.close()
        if self._channel is not None:
            self._unwatch(self._channel)
            self._channel.close()
        if self._nursery is not None:
            self._nursery.kill()
            self._nursery.wait()

    # ---- what comes ------------------------------------------------------------------------------------------------

    def _from_nursery(self) -> Iterator[Heard]:
        assert self._channel is not None and self._nursery is not None
        for message in _received(self._channel):
            letter = read(message)
            if letter["is"] == "refused":
                raise UsageError(letter["reason"]) if "trace" not in letter else TrainingFailed(letter["trace"].rstrip())
            if letter["is"] == "loaded":
                self._forks, self.about, self._was_loaded = letter["forks"], letter["about"], True
                self._num_failed_loads = 0
                if self._forks:
                    self.is_loaded = True
                    yield -1, letter
            elif letter["is"] == "born":
                self._seats[letter["rank"]].pid = letter["pid"]
            elif letter["is"] == "gone":
                seat = self._seats[letter["rank"]]
                yield from self._last_words(seat)
                self._count_end(seat, letter["status"])
                yield seat.rank, {**letter, "no_memory": self._no_memory(letter["status"])}
        if self._channel.ended:
            self._unwatch(self._channel)
            self._channel.close()
            if not self._forks:  # it has said what there is to know, and keeps no GPU from the workers any more
                self._nursery.wait()
                self.is_loaded = True
                yield -1, {"is": "loaded", "forks": False, "about": self.about}
                return
            self._num_failed_loads += not self.is_loaded
            if not self._was_loaded or self._num_failed_loads > MOST_FAILED_LOADS:
                raise TrainingFailed(f"the process that loads the task ended ({_fate(self._nursery.wait())}); its words are above")
            self._nursery.wait()
            self.begin()  # its workers died with it
            self.is_loaded = False
            for seat in self._seats.values():
                if seat.channel is not None and seat.own is None:
                    yield from self._last_words(seat)
                    self._count_end(seat, KILLED)
                    yield seat.rank, {"is": "gone", "status": KILLED}

    def _from_worker(self, seat: _Seat) -> Iterator[Heard]:
        channel = seat.channel
        if channel is None:
            return
        yield from self._words(seat, channel)
        if channel.ended:
            self._unwatch(channel)
            channel.close()
            if seat.own is not None:  # of others the nursery tells how they ended
                status, why = seat.own.wait(), ""
                if seat.nursery is not None:
                    why = _refusal(seat.nursery)
                    seat.nursery.close()
                seat.channel = seat.pid = seat.own = seat.nursery = None
                self._count_end(seat, status, why)
                yield seat.rank, {"is": "gone", "status": status, "no_memory": self._no_memory(status)}

    def _last_words(self, seat: _Seat) -> Iterator[Heard]:
        """What a worker said before it ended, which may come later than the news of its end."""
        if seat.channel is not None:
            yield from self._words(seat, seat.channel)
        self._drop(seat)

    def _words(self, seat: _Seat, channel: Channel) -> Iterator[Heard]:
        for message in _received(channel):
            letter = read(message)
            if letter["is"] == "ready":
                seat.is_ready, seat.num_failed_starts = True, 0
            yield seat.rank, letter

    def _count_end(self, seat: _Seat, status: int, why: str = "") -> None:
        """A worker that never comes so far that it could work would be started for ever."""
        if seat.is_ready or seat.is_killed:
            return
        seat.num_failed_starts += 1
        if seat.num_failed_starts >= MOST_FAILED_STARTS:
            raise TrainingFailed(
                f"the process of rank {seat.rank} on {socket.gethostname()} ended {seat.num_failed_starts} times before it could "
                f"work, the last time by {_fate(status)}{f': {why}' if why else '; its words are above'}. Look whether there is "
                "memory for it, and room for more processes (ulimit -u)"
            )

    def _no_memory(self, status: int) -> bool:
        """Whether the system has ended processes of ours for want of memory since this was last asked."""
        before, self._memory_kills = self._memory_kills, num_memory_kills()
        return status == KILLED and self._memory_kills > before

    def _drop(self, seat: _Seat) -> None:
        if seat.channel is not None:
            self._unwatch(seat.channel)
            seat.channel.close()
        seat.channel = seat.pid = None

    # ---- processes -------------------------------------------------------------------------------------------------

    def _load(self, seat: _Seat | None = None) -> tuple[subprocess.Popen[bytes], socket.socket, Channel]:
        """A process that has loaded what is needed, for one worker or for all."""
        mine, theirs = socket.socketpair()
        with theirs:
            program = PROGRAM.format(paths=[path for path in sys.path if path], descriptor=theirs.fileno())
            process = subprocess.Popen(
                (sys.executable, "-c", program),
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a task prints while it is loaded must not mix with what we say
                env=environment_of_worker(environment(), () if seat is None else seat.gpus),
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                preexec_fn=before_exec(()),
            )
        channel = channel_of(mine)
        post(channel, {**self._order, "tells": self._tells and seat is None, "becomes": seat is not None})
        return process, mine, channel

    def _watch(self, channel: Channel, hear: Callable[[], Iterator[Heard]]) -> None:
        self._selector.register(channel.sock, selectors.EVENT_READ, hear)

    def _unwatch(self, channel: Channel) -> None:
        if channel.sock.fileno() >= 0 and channel.sock in self._selector.get_map():
            self._selector.unregister(channel.sock)


def _send_with(sock: socket.socket, letter: Letter, descriptor: int) -> None:
    """Local, blocking for moments: it is small, and the nursery does little but read."""
    sock.setblocking(True)
    try:
        socket.send_fds(sock, [json.dumps(letter).encode() + b"\n"], [descriptor])
    except OSError:
        return  # it died, which is heard
    finally:
        sock.setblocking(False)


def _received(channel: Channel) -> list[bytes]:
    try:
        return channel.receive()
    except OSError:
        channel.ended = True
        return []


def _refusal(nursery: Channel) -> str:
    """Why a process has not become a worker, where it could say so."""
    letters = [read(message) for message in _received(nursery)]
    return next((letter["reason"] for letter in letters if letter["is"] == "refused"), "")


def _fate(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
