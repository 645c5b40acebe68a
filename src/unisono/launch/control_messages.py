"""Control messages between a launcher and the program that started it, perhaps over ssh, which forwards no signals.

Standard input brings the secret of the job and the names of signals. Standard error carries two reports as lines: that a signal was
received, and the first failure. Lines of ranks begin with the rank, so they cannot be mistaken for reports.
"""

from __future__ import annotations

import os
import selectors
import signal
from collections.abc import Callable

from unisono.errors import UsageError
from unisono.launch.signals import FORWARDED, SignalInbox

READ_BYTES = 4096
HOST_FAILED = b"unisono-host-failed "
SIGNAL_RECEIVED = b"unisono-host-heard"
"""The acknowledgement of a signal. A hanging ssh connection forwards nothing, so it is noticed by the missing acknowledgement."""


def secret_from_stdin(fd: int = 0) -> str:
    """Local, blocking: reads the secret, which is the first line, and no byte more. All users of a host could read a command
    line."""
    received = b""
    while not received.endswith(b"\n"):
        byte = os.read(fd, 1)
        if not byte:
            raise UsageError(
                "standard input ended before the secret of the job was read; leave --control-stdin out, which is for launchers only"
            )
        received += byte
    return received.decode(errors="replace").strip()


def failure_report(code: int) -> bytes:
    """Pure: returns the line that reports the exit code of the first failure."""
    return HOST_FAILED + str(code).encode()


def parse_failure_report(line: bytes) -> int | None:
    """Pure: returns the exit code, if this line reports a first failure; None otherwise."""
    code = line.removeprefix(HOST_FAILED).strip()
    return int(code) if line.startswith(HOST_FAILED) and code.isdigit() else None


class ControlInput:
    """Reads names of signals (lines such as SIGINT) from standard input and puts the signals into the inbox. Local, not
    blocking. The end of input is the end of the program that started us; it puts SIGKILL, which kills all ranks."""

    def __init__(
        self, selector: selectors.BaseSelector, inbox: SignalInbox, on_signal: Callable[[], None] | None = None, fd: int = 0
    ) -> None:
        """`answer` is called after each signal."""
        self._selector = selector
        self._inbox = inbox
        self._on_signal = on_signal
        self._fd = fd
        self._partial = b""
        selector.register(fd, selectors.EVENT_READ, self._read)

    def _read(self) -> None:
        """Reads names of signals from the input and puts them into the inbox; the end of the input counts as SIGKILL."""
        data = os.read(self._fd, READ_BYTES)
        if not data:
            self._selector.unregister(self._fd)
            self._inbox.put(signal.SIGKILL)
            return
        *lines, self._partial = (self._partial + data).split(b"\n")
        named = {signum.name.encode(): signum for signum in FORWARDED}
        for line in lines:
            if line in named:
                self._inbox.put(named[line])
                if self._on_signal is not None:
                    self._on_signal()
