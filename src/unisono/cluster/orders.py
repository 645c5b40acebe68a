"""What passes between a launcher and the program that started it, perhaps through ssh, which passes no signals on.

The secret of the job and signals go in by standard input; that a signal was heard, and the first failure, come out as lines on
standard error. Lines of ranks begin with the rank, so none is alike.
"""

from __future__ import annotations

import os
import selectors
import signal
from collections.abc import Callable

from unisono.cluster.signals import FORWARDED, SignalInbox
from unisono.errors import UsageError

READ_BYTES = 4096
FAILED = b"unisono-host-failed "
HEARD = b"unisono-host-heard"
"""That a signal has come. An ssh that hangs passes nothing on."""


def secret_from_stdin(fd: int = 0) -> str:
    """Blocking: the first line, and no byte more. On a command line everybody on that host could read it."""
    heard = b""
    while not heard.endswith(b"\n"):
        byte = os.read(fd, 1)
        if not byte:
            raise UsageError(
                "standard input ended before the secret of the job came (--told-by-stdin); only launchers give that option"
            )
        heard += byte
    return heard.decode(errors="replace").strip()


def failed(code: int) -> bytes:
    """Pure: the report of a first failure."""
    return FAILED + str(code).encode()


def failure_in(line: bytes) -> int | None:
    """Pure: the code, if this line is the report of a first failure."""
    code = line.removeprefix(FAILED).strip()
    return int(code) if line.startswith(FAILED) and code.isdigit() else None


class OrdersFromStdin:
    """Reads lines like SIGINT. The end of input is the end of whoever started us: all ranks are killed then. Nothing blocks."""

    def __init__(
        self, selector: selectors.BaseSelector, inbox: SignalInbox, answer: Callable[[], None] | None = None, fd: int = 0
    ) -> None:
        """`answer` is called for each signal."""
        self._selector = selector
        self._inbox = inbox
        self._answer = answer
        self._fd = fd
        self._heard = b""
        selector.register(fd, selectors.EVENT_READ, self._read)

    def _read(self) -> None:
        data = os.read(self._fd, READ_BYTES)
        if not data:
            self._selector.unregister(self._fd)
            self._inbox.put(signal.SIGKILL)
            return
        *lines, self._heard = (self._heard + data).split(b"\n")
        named = {signum.name.encode(): signum for signum in FORWARDED}
        for line in lines:
            if line in named:
                self._inbox.put(named[line])
                if self._answer is not None:
                    self._answer()
