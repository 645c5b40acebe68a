"""A wish to stop, from Ctrl-C, the scheduler or the clock: noted, and acted on by all ranks at the same step."""

from __future__ import annotations

import os
import signal
import threading
import weakref
from functools import partial
from types import FrameType, TracebackType
from typing import Any

from unisono.cluster.second_signal import SecondSignal

NOTED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class StopRequest:
    """While it is entered Ctrl-C, SIGTERM and SIGUSR1 are only noted; a second Ctrl-C or SIGTERM ends the process at once.

    A Ctrl-C that was ignored before (nohup, shell jobs in the background) stays so. In a thread that is not the main one nothing
    can be told of signals, and only `ask` counts. A forked child lives on through Ctrl-C and SIGUSR1, which are meant for its
    parent, and ends by SIGTERM as it would have before."""

    def __init__(self) -> None:
        self._why: str | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._second = SecondSignal()

    def asked(self) -> bool:
        """Local; cheap enough for every step."""
        return self._why is not None

    def why(self) -> str | None:
        """Local: what asked first, as people call it: 'Ctrl-C', 'SIGTERM', 'SIGUSR1', or what `ask` was given."""
        return self._why

    def ask(self, why: str) -> None:
        """Local: a wish that comes from no signal, e.g. 'time limit'; the first that came is the one that is kept."""
        self._why = self._why or why

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # only there Python can be told of signals
            self._second.__enter__()
            for signum in NOTED:
                if signum != signal.SIGINT or signal.getsignal(signum) != signal.SIG_IGN:
                    self._before[signum] = signal.signal(signum, self._note)
            os.register_at_fork(after_in_child=partial(_leave_to_parent, weakref.ref(self)))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for signum in tuple(self._before):
            self._give_back(signum)
        self._second.__exit__(kind, error, trace)

    def _note(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.ask("Ctrl-C" if signum == signal.SIGINT else signal.Signals(signum).name)

    def _give_back(self, signum: signal.Signals) -> None:
        before = self._before.pop(signum)
        signal.signal(signum, signal.SIG_DFL if before is None else before)  # None: it was not set from Python


def _leave_to_parent(reference: weakref.ref[StopRequest]) -> None:
    """In a forked child, e.g. one that reads data: whoever started it ends it by SIGTERM (`Process.terminate`)."""
    request = reference()
    if request is not None and signal.SIGTERM in request._before:
        request._second.leave_to_parent()
        request._give_back(signal.SIGTERM)
