"""Runs a program on another host for a launcher that is connected by ssh: the end of the connection ends all of it.

ssh forwards no signals, and only the end of standard input tells the other host that it has ended. A separate program.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from unisono.launch.orphans import preexec_of_rank

PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from unisono.launch.ssh.remote_watchdog import main; main(sys.argv[2:])"
GRACE_S = 5.0
"""Between SIGTERM and SIGKILL, at the end of input."""
READ_BYTES = 4096
CANNOT_START_CODE = 127


def argv_of(program: Sequence[str]) -> tuple[str, ...]:
    """Local: returns the arguments that start the program there under this watchdog, with this Python and this package, which
    are at the same path on all hosts."""
    return (sys.executable, "-I", "-S", "-c", PROGRAM, str(Path(__file__).parents[3]), *program)


def main(program: Sequence[str]) -> None:
    """Blocking: runs the program to its end; ends this process with its code, as the shell gives it."""
    try:
        process = subprocess.Popen(
            program,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=preexec_of_rank(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        )
    except OSError as error:
        print(
            f"unisono: {program[0]} cannot be started on this host: {error.strerror}; check the program",
            file=sys.stderr,
            flush=True,
        )
        os._exit(CANNOT_START_CODE)

    def pass_on(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as signal calls it
        send(process.pid, signum)

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, pass_on)
    ended = threading.Event()
    threading.Thread(target=end_with_stdin, args=(process.pid, ended), daemon=True).start()
    code = process.wait()
    ended.set()
    send(process.pid, signal.SIGKILL)  # what it left in its group
    os._exit(code if code >= 0 else 128 - code)  # the thread sits in a call that waits for input


def end_with_stdin(group: int, ended: threading.Event) -> None:
    """Blocking until the end of standard input; then ends the group, first by SIGTERM."""
    while os.read(0, READ_BYTES):
        continue
    send(group, signal.SIGTERM)
    if not ended.wait(GRACE_S):
        send(group, signal.SIGKILL)


def send(group: int, signum: int) -> None:
    """Local: sends a signal to a process group, which may be gone."""
    with suppress(ProcessLookupError, PermissionError):  # gone, or (on macOS) nothing but zombies
        os.killpg(group, signum)
