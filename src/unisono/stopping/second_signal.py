"""The second Ctrl-C or SIGTERM ends the process at once, also while its main thread is in C, where no handler of Python runs."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic
from types import TracebackType

SAME_SIGNAL_S: Mapping[int, float] = {signal.SIGINT: 0.3, signal.SIGTERM: 2.0}
"""Signal -> seconds in which a repetition counts as the first one. One request may arrive twice: a terminal signals the whole
process group and a launcher in it forwards the signal; SLURM signals the step and the job, a launcher and its ranks. SIGTERM has
more time, for slow launchers, as no user waits at a keyboard for the second one."""


class SecondSignal:
    """A context in which a thread reads the wake-up descriptor. Local; only in the main thread, and for signals that have handlers.

    The previous owner of the descriptor still receives all signals, and gets it back in the end. The thread needs the interpreter's
    lock: C code that never releases it can only be killed (SIGKILL)."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._before_fd = -1

    def __enter__(self) -> SecondSignal:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._before_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._watch, name="unisono-signals", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._thread is not None:
            self._restore_wakeup_fd(self._before_fd)
            # Not by closing: a child that was forked in C may hold a copy, and then it would have no end.
            self._writer.shutdown(socket.SHUT_WR)
            self._thread.join()
            self._close()

    def detach_in_child(self) -> None:
        """Local, in a forked child: its signals are not those of the parent, whose thread reads the other end."""
        if self._thread is not None:
            self._restore_wakeup_fd(-1)
            self._close()

    def _restore_wakeup_fd(self, fd: int) -> None:
        """Gives the wake-up descriptor back to `fd`, unless somebody else has replaced ours meanwhile."""
        current = signal.set_wakeup_fd(-1)
        with suppress(OSError):  # it was closed meanwhile
            signal.set_wakeup_fd(fd if current == self._writer.fileno() else current)

    def _close(self) -> None:
        """Closes both ends of the descriptor that signals wake."""
        self._thread = None
        self._reader.close()
        self._writer.close()

    def _watch(self) -> None:
        """On our thread: reads signals, passes them on to the previous owner, and ends the process at a second one that is no
        repetition.
        """
        first: dict[int, float] = {}
        while received := self._reader.recv(4096):
            now = monotonic()
            for signum in received:
                if signum in SAME_SIGNAL_S and now - first.setdefault(signum, now) > SAME_SIGNAL_S[signum]:
                    die_by_signal(signum)
            if self._before_fd != -1:
                with suppress(OSError):  # full, as when the kernel writes there itself, or closed
                    os.write(self._before_fd, received)


def die_by_signal(signum: int) -> None:
    """Local: ends this process as the signal itself does, from any thread; Python's own function is for the main thread only."""
    set_handler = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(("PyOS_setsig", ctypes.pythonapi))
    set_handler(signum, None)  # SIG_DFL
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signum,))
    signal.raise_signal(signum)
    os._exit(128 + signum)  # the first process of a container: the kernel ends it only by signals from outside
