"""Signals as events that a selector can wait for."""

from __future__ import annotations

import contextlib
import selectors
import signal
import socket
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

from unisono.errors import UsageError

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
DELIVERED = (*FORWARDED, signal.SIGKILL)
"""Signals that `received` can return. SIGKILL comes only by `put`: it requests that all ranks are killed."""


class SignalInbox:
    """A context in which signals are queued instead of handled. Local; only in the main thread, as Python demands.

    A signal that was ignored before stays ignored (nohup, shell jobs in the background), also for the ranks.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._before: dict[signal.Signals, Any] = {}
        self._before_fd = -1
        self._before_mask: set[int] = set()

    def __enter__(self) -> SignalInbox:
        if threading.current_thread() is not threading.main_thread():
            raise UsageError(
                "launch() was called outside the main thread, where signals cannot be handled; call it in the main thread"
            )
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._selector.register(self._reader, selectors.EVENT_READ, _do_nothing)
        self._before_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for signum in (*FORWARDED, signal.SIGCHLD):
            if signal.getsignal(signum) != signal.SIG_IGN or signum == signal.SIGCHLD:
                self._before[signum] = signal.signal(signum, _do_nothing)
        self._before_mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, self._before)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before_mask)
        for signum, handler in self._before.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._before_fd)
        self._selector.unregister(self._reader)
        self._reader.close()
        self._writer.close()

    def received(self) -> list[signal.Signals]:
        """Local, not blocking: returns the signals since the last call that are to be forwarded, in their order."""
        try:
            return [signal.Signals(signum) for signum in self._reader.recv(4096) if signum in DELIVERED]
        except BlockingIOError:
            return []

    def put(self, signum: signal.Signals) -> None:
        """Local, not blocking: adds a signal as if it had been received."""
        self._writer.send(bytes([signum]))

    @contextlib.contextmanager
    def blocked(self) -> Iterator[set[int]]:
        """A context that blocks signals while a rank is forked; gives the previous mask."""
        before: set[int] = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        try:
            yield before
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _do_nothing(signum: int = 0, frame: FrameType | None = None) -> None:
    """Does nothing: the number of the signal is in the wake-up pipe."""
