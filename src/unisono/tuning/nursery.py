"""Where worker processes of a node come from: a process that has loaded the frameworks, the task and its data, and forks. So a
worker is there in milliseconds, and all workers of a machine share what was loaded.

Frameworks that run threads of their own from the start (TensorFlow, JAX) and a GPU in use do not survive a fork; then the process
says so and ends, and every worker is a process of its own that becomes one by {"do": "become"}.

    in   {"do": "start" or "become", "rank": 3, "cpus": [0, 1]} with the worker's end of a socket
    out  {"is": "loaded", "forks": true, "about": {...}} or {"is": "refused", "reason": ...}; {"is": "gone", "rank": 3, "status": 9}
"""

from __future__ import annotations

import gc
import json
import os
import selectors
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Mapping, Sequence
from time import sleep
from typing import Any

from unisono.cluster.gpus import driver_in_use
from unisono.cluster.mortality import PR_SET_PDEATHSIG, prctl
from unisono.comm.control_plane.channel import Channel
from unisono.errors import UsageError
from unisono.tuning.letters import channel_of, post, read
from unisono.tuning.worker import Work, live

NO_FORK = ("tensorflow", "jax")
READ_BYTES = 64 * 1024
MOST_DESCRIPTORS = 64
FORK_PAUSE_S = 1.0


def main(descriptor: int) -> None:
    """Local, blocking: until the supervisor is gone."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(signum, signal.SIG_IGN)  # they may come to all processes of a job; the supervisor decides
    sock = socket.socket(fileno=descriptor)
    _die_with_parent()
    first = first_letter(sock)
    channel = channel_of(sock)
    try:
        work = make_work(first)
        work.load()
    except BaseException as error:  # noqa: BLE001 - the user's own code; the supervisor shows it
        post(channel, _refusal(error))
        sock.setblocking(True)
        channel.flush()
        return
    told = {"is": "loaded", "forks": _may_fork(), "about": {}}
    if first["tells"]:
        told |= _in_a_child(work) if told["forks"] else _asked(work)
    post(channel, told)
    sock.setblocking(True)
    channel.flush()
    if told["is"] == "loaded" and (told["forks"] or first["becomes"]):
        gc.collect()
        gc.freeze()  # what was loaded stays shared: no worker's collector goes through it, for milliseconds, in a trial
        Nursery(work, sock, channel).serve()
    # else nobody can come from here; what it has, memory of a GPU too, is for those who work


def first_letter(sock: socket.socket) -> dict[str, Any]:
    """Local, blocking: not a byte more, as the letters that follow come with descriptors, which `recv` would drop."""
    sock.setblocking(True)
    (length,) = struct.unpack("<Q", _exactly(sock, 8))
    return read(_exactly(sock, length))


def _exactly(sock: socket.socket, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes:
        if not (part := sock.recv(num_bytes - len(data))):
            raise EOFError("the supervisor is gone")
        data += part
    return data


def make_work(order: Mapping[str, Any]) -> Work:
    """Local, blocking: what the workers will do."""
    if order["kind"] == "task":
        import torch

        torch.set_num_threads(1)  # a pool of threads would not come through a fork
        torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)  # loads what otherwise every worker would, for two seconds
        from unisono.data.folded import Folding
        from unisono.tuning.training import TaskWork

        folding = Folding(**order["folding"])
        return TaskWork(order["file"], order["changes"], order["space_file"], folding, order["workers"])
    from unisono.tuning.objective import ObjectiveWork

    return ObjectiveWork.load_from(order["file"])


class Nursery:
    """The parent of the workers. One thread, so that it may fork."""

    def __init__(self, work: Work, sock: socket.socket, channel: Channel) -> None:
        self._work = work
        self._sock = sock
        self._channel = channel
        self._children: dict[int, int] = {}
        """Process -> rank."""
        self._heard = b""
        self._descriptors: list[int] = []

    def serve(self) -> None:
        """Local, blocking."""
        wake, woken = socket.socketpair()
        for one in (wake, woken):
            one.setblocking(False)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        with selectors.DefaultSelector() as selector:
            selector.register(self._sock, selectors.EVENT_READ)
            selector.register(woken, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is woken:
                        woken.recv(4096)
                        self._reap()
                    elif not self._hear((wake, woken, selector)):
                        self._end()
                        return

    def _hear(self, held: Sequence[Any]) -> bool:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._sock, READ_BYTES, MOST_DESCRIPTORS)
        except ConnectionResetError:  # the supervisor has left without reading all that we said
            return False
        self._descriptors += descriptors
        self._heard += data
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:  # each comes with one descriptor, in the same order
            letter = read(line)
            if letter["do"] == "become":
                become(self._work, self._descriptors.pop(0), letter["cpus"])
            else:
                self._fork(letter, self._descriptors.pop(0), held)
        return bool(data)

    def _fork(self, letter: Mapping[str, Any], descriptor: int, held: Sequence[Any]) -> None:
        try:
            process = os.fork()
        except OSError as error:  # those that are there can go on
            print(f"no process can be made for rank {letter['rank']}: {error.strerror}", file=sys.stderr, flush=True)
            os.close(descriptor)
            sleep(FORK_PAUSE_S)  # nothing tells when there is room for one
            post(self._channel, {"is": "gone", "rank": letter["rank"], "status": 1})
            return
        if process:
            os.close(descriptor)
            self._children[process] = letter["rank"]
            post(self._channel, {"is": "born", "rank": letter["rank"], "pid": process})
            return
        code = 1
        try:
            os.setpgid(0, 0)  # what a trial starts can be ended with it
            signal.set_wakeup_fd(-1)
            for one in (*held, self._sock):
                one.close()
            become(self._work, descriptor, letter["cpus"])
            code = 0
        except BaseException:  # noqa: BLE001 - nothing may go up into the parent's loop
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _reap(self) -> None:
        while self._children:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            if (rank := self._children.pop(process, None)) is not None:
                post(self._channel, {"is": "gone", "rank": rank, "status": os.waitstatus_to_exitcode(status)})

    def _end(self) -> None:
        for process in self._children:
            os.kill(process, signal.SIGKILL)


def become(work: Work, descriptor: int, cpus: Sequence[int] | None) -> None:
    """Local, blocking: be a worker, in this process."""
    _die_with_parent()
    for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's, which the supervisor gets too
    if cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)
    with socket.socket(fileno=descriptor) as sock:
        live(work, channel_of(sock))


def _refusal(error: BaseException) -> dict[str, Any]:
    if isinstance(error, UsageError):
        return {"is": "refused", "reason": str(error)}
    return {"is": "refused", "reason": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}


def _asked(work: Work) -> dict[str, Any]:
    try:
        return {"about": work.about()}
    except BaseException as error:  # noqa: BLE001 - as above
        return _refusal(error)


def _in_a_child(work: Work) -> dict[str, Any]:
    """What there is to know is found out by computing, which starts threads; this process must have none."""
    mine, theirs = socket.socketpair()
    process = os.fork()
    if not process:
        try:
            _die_with_parent()
            mine.close()
            theirs.sendall(json.dumps(_asked(work)).encode())
            theirs.close()
        finally:
            os._exit(0)
    theirs.close()
    with mine:
        text = b"".join(iter(lambda: mine.recv(READ_BYTES), b""))
    _, status = os.waitpid(process, 0)
    if not text:
        code = os.waitstatus_to_exitcode(status)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return {"is": "refused", "reason": f"the task could not be tried out: its process ended by {how}; does it fit into memory?"}
    return read(text)


def _may_fork() -> bool:
    torch = sys.modules.get("torch")
    uses_gpu = driver_in_use() or (torch is not None and torch.cuda.is_initialized())
    return not uses_gpu and not any(name in sys.modules for name in NO_FORK)


def _die_with_parent() -> None:
    call = prctl()
    if call is not None:
        call(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
