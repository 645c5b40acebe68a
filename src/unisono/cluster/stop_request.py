"""A wish to stop, from Ctrl-C or the scheduler: noted, and acted on by all ranks at the same step."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """While it is entered the first Ctrl-C or SIGTERM is only noted; the second ends the process as usual."""

    def __init__(self) -> None:
        self._asked = False
        self._before: dict[signal.Signals, Any] = {}

    def asked(self) -> bool:
        """Local."""
        return self._asked

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # only there Python can be told of signals
            for signum in SIGNALS:
                self._before[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._give_back()

    def _note(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._asked = True
        self._give_back()

    def _give_back(self) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        self._before.clear()
