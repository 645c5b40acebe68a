"""The fork server of a node: a process that has loaded the frameworks, the task and its data, and forks the workers. So a
worker starts in milliseconds, and all workers of a machine share what was loaded.

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
from unisono.comm.control_plane.channel import Channel
from unisono.errors import UsageError
from unisono.launch.lasting_import import import_to_stay
from unisono.launch.orphans import PR_SET_PDEATHSIG, prctl
from unisono.tuning.workers.messages import channel_of, parse_message, send_message
from unisono.tuning.workers.trial_worker import TrialRunner, serve_trials

NO_FORK = ("tensorflow", "jax")
READ_BYTES = 64 * 1024
MOST_DESCRIPTORS = 64
FORK_PAUSE_S = 1.0


def main(descriptor: int) -> None:
    """Runs the fork server, or becomes one worker, on the socket with this descriptor until the supervisor is gone. Local,
    blocking."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(signum, signal.SIG_IGN)  # they may come to all processes of a job; the supervisor decides
    sock = socket.socket(fileno=descriptor)
    _die_with_parent()
    command = receive_first_message(sock)
    channel = channel_of(sock)
    try:
        runner = make_runner(command)
        runner.load()
    except BaseException as error:  # noqa: BLE001 - the user's own code; the supervisor shows it
        send_message(channel, _refusal(error))
        sock.setblocking(True)
        channel.flush()
        return
    reply = {"is": "loaded", "forks": _may_fork(), "about": {}}
    if command["tells"]:
        reply |= _description_from_child(runner) if reply["forks"] else _description(runner)
    send_message(channel, reply)
    sock.setblocking(True)
    channel.flush()
    if reply["is"] == "loaded" and (reply["forks"] or command["becomes"]):
        gc.collect()
        gc.freeze()  # what was loaded stays shared: no worker's collector goes through it, for milliseconds, in a trial
        ForkServer(runner, sock, channel).serve()
    # else no worker can be forked here; this process ends, so that its memory, also of a GPU, is free for the workers


def receive_first_message(sock: socket.socket) -> dict[str, Any]:
    """Returns the first message of the supervisor, and reads not a byte more: the messages after it come with descriptors, which
    `recv` would drop. Local, blocking."""
    sock.setblocking(True)
    (length,) = struct.unpack("<Q", _receive_exactly(sock, 8))
    return parse_message(_receive_exactly(sock, length))


def _receive_exactly(sock: socket.socket, num_bytes: int) -> bytes:
    """Returns exactly so many bytes; raises `EOFError` if the other end is closed before."""
    data = b""
    while len(data) < num_bytes:
        if not (part := sock.recv(num_bytes - len(data))):
            raise EOFError("the supervisor is gone")
        data += part
    return data


def make_runner(work_spec: Mapping[str, Any]) -> TrialRunner:
    """Returns the runner of trials that a work specification describes. Local, blocking."""
    if work_spec["kind"] == "task":
        import_to_stay("torch")
        import torch

        torch.set_num_threads(1)  # a pool of threads would not come through a fork
        torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)  # loads what otherwise every worker would, for two seconds
        from unisono.data.fold_data import Folding
        from unisono.tuning.workers.trial_training import TaskTrialRunner

        folding = Folding(**work_spec["folding"])
        return TaskTrialRunner(work_spec["file"], work_spec["changes"], work_spec["space_file"], folding, work_spec["workers"])
    from unisono.tuning.workers.objective import ObjectiveTrialRunner

    return ObjectiveTrialRunner.load_from(work_spec["file"])


class ForkServer:
    """The parent of the workers. It has one thread, so that it may fork."""

    def __init__(self, runner: TrialRunner, sock: socket.socket, channel: Channel) -> None:
        self._runner = runner
        self._sock = sock
        self._channel = channel
        self._children: dict[int, int] = {}
        """Process -> rank."""
        self._unparsed = b""
        self._descriptors: list[int] = []

    def serve(self) -> None:
        """Forks workers as the supervisor commands, and reports their ends, until the supervisor is gone. Local, blocking."""
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
                    elif not self._receive_commands((wake, woken, selector)):
                        self._kill_workers()
                        return

    def _receive_commands(self, to_close: Sequence[Any]) -> bool:
        """Carries out the commands that have arrived; returns False when the supervisor is gone."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._sock, READ_BYTES, MOST_DESCRIPTORS)
        except ConnectionResetError:  # the supervisor has ended without reading all our messages
            return False
        self._descriptors += descriptors
        self._unparsed += data
        *lines, self._unparsed = self._unparsed.split(b"\n")
        for line in lines:  # each comes with one descriptor, in the same order
            command = parse_message(line)
            if command["do"] == "become":
                become_worker(self._runner, self._descriptors.pop(0), command["cpus"])
            else:
                self._fork(command, self._descriptors.pop(0), to_close)
        return bool(data)

    def _fork(self, command: Mapping[str, Any], descriptor: int, to_close: Sequence[Any]) -> None:
        """Forks a worker for a rank and reports it, or that it could not be made."""
        try:
            process = os.fork()
        except OSError as error:  # the running workers can continue
            print(f"the process of rank {command['rank']} cannot be started: {error.strerror}", file=sys.stderr, flush=True)
            os.close(descriptor)
            sleep(FORK_PAUSE_S)  # no event tells when a process can be made again
            send_message(self._channel, {"is": "gone", "rank": command["rank"], "status": 1})
            return
        if process:
            os.close(descriptor)
            self._children[process] = command["rank"]
            send_message(self._channel, {"is": "born", "rank": command["rank"], "pid": process})
            return
        code = 1
        try:
            os.setpgid(0, 0)  # what a trial starts can be ended with it
            signal.set_wakeup_fd(-1)
            for one in (*to_close, self._sock):
                one.close()
            become_worker(self._runner, descriptor, command["cpus"])
            code = 0
        except BaseException:  # noqa: BLE001 - nothing may go up into the parent's loop
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _reap(self) -> None:
        """Reports the workers that have ended."""
        while self._children:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            if (rank := self._children.pop(process, None)) is not None:
                send_message(self._channel, {"is": "gone", "rank": rank, "status": os.waitstatus_to_exitcode(status)})

    def _kill_workers(self) -> None:
        """Kills all workers."""
        for process in self._children:
            os.kill(process, signal.SIGKILL)


def become_worker(runner: TrialRunner, descriptor: int, cpus: Sequence[int] | None) -> None:
    """Turns this process into a worker, which serves trials until the supervisor is gone. Local, blocking."""
    _die_with_parent()
    for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's, which the supervisor gets too
    if cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)
    with socket.socket(fileno=descriptor) as sock:
        serve_trials(runner, channel_of(sock))


def _refusal(error: BaseException) -> dict[str, Any]:
    """Returns the message to the supervisor for an error; only errors that are no mistake of a user carry a trace."""
    if isinstance(error, UsageError):
        return {"is": "refused", "reason": str(error)}
    return {"is": "refused", "reason": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}


def _description(runner: TrialRunner) -> dict[str, Any]:
    """Returns the message with the description of the work, or the one that refuses it."""
    try:
        return {"about": runner.describe()}
    except BaseException as error:  # noqa: BLE001 - as above
        return _refusal(error)


def _description_from_child(runner: TrialRunner) -> dict[str, Any]:
    """The description of the work, made in a child process: making it computes, which starts threads, and this process must have
    none."""
    mine, theirs = socket.socketpair()
    process = os.fork()
    if not process:
        try:
            _die_with_parent()
            mine.close()
            theirs.sendall(json.dumps(_description(runner)).encode())
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
    return parse_message(text)


def _may_fork() -> bool:
    """Whether this process may be forked: no GPU in use, and no module loaded that a fork breaks."""
    torch = sys.modules.get("torch")
    uses_gpu = driver_in_use() or (torch is not None and torch.cuda.is_initialized())
    return not uses_gpu and not any(name in sys.modules for name in NO_FORK)


def _die_with_parent() -> None:
    """Lets the kernel kill this process when its parent ends (Linux)."""
    call = prctl()
    if call is not None:
        call(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
