"""Requests to stop, by Ctrl-C, the scheduler or the time limit: recorded here; all ranks stop at the same step."""

from __future__ import annotations

import os
import signal
import threading
import weakref
from functools import partial
from types import FrameType, TracebackType
from typing import Any

from unisono.errors import STOPPED_CODE
from unisono.stopping.second_signal import SecondSignal

HANDLED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
CTRL_C = "Ctrl-C"
"""The reason of a stop that a user requested at the keyboard, or in a notebook."""


class StopRequest:
    """A context in which Ctrl-C, SIGTERM and SIGUSR1 request a stop; a second Ctrl-C or SIGTERM ends the process at once.

    An ignored Ctrl-C (nohup, shell jobs in the background) stays ignored. Outside the main thread Python cannot handle signals,
    and only `request` counts. A forked child ignores Ctrl-C and SIGUSR1, which are meant for its parent, and ends by SIGTERM as
    usual."""

    def __init__(self) -> None:
        self._reason: str | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._second = SecondSignal()

    def requested(self) -> bool:
        """Local: whether a stop was requested; cheap enough for every step."""
        return self._reason is not None

    def reason(self) -> str | None:
        """Local: the reason of the first request: 'Ctrl-C', 'SIGTERM', 'SIGUSR1', or the argument of `request`."""
        return self._reason

    def request(self, reason: str) -> None:
        """Local: requests a stop without a signal, e.g. for 'time limit'; the first reason is kept."""
        self._reason = self._reason or reason

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # Python handles signals only there
            self._second.__enter__()
            for signum in HANDLED_SIGNALS:
                if signum != signal.SIGINT or signal.getsignal(signum) != signal.SIG_IGN:
                    self._before[signum] = signal.signal(signum, self._on_signal)
            os.register_at_fork(after_in_child=partial(_detach_in_child, weakref.ref(self)))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for signum in tuple(self._before):
            self._restore_handler(signum)
        self._second.__exit__(kind, error, trace)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Handler of the signals: requests a stop with the signal's name as its reason."""
        self.request(CTRL_C if signum == signal.SIGINT else signal.Signals(signum).name)

    def _restore_handler(self, signum: signal.Signals) -> None:
        """Restores the handler that the signal had before."""
        before = self._before.pop(signum)
        signal.signal(signum, signal.SIG_DFL if before is None else before)  # None: it was not set from Python


def raise_stop(reason: str | None) -> None:
    """Local: raises what a request to stop means for the caller of a function that has carried it out: `KeyboardInterrupt` after
    Ctrl-C, `SystemExit` with the code of a stopped run after another signal. Time limits and the like raise nothing."""
    if reason == CTRL_C:
        raise KeyboardInterrupt
    if reason in {signum.name for signum in HANDLED_SIGNALS}:
        raise SystemExit(STOPPED_CODE)


def _detach_in_child(reference: weakref.ref[StopRequest]) -> None:
    """Restores signal handling in a forked child, e.g. a worker of a data loader: its parent ends it by SIGTERM
    (`Process.terminate`)."""
    request = reference()
    if request is not None and signal.SIGTERM in request._before:
        request._second.detach_in_child()
        request._restore_handler(signal.SIGTERM)
