"""Runs work that may never return in a thread of its own: a library that hangs cannot be interrupted."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Aside:
    """Runs one function at a time in a background thread. Local."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def run(self, work: Callable[[], T], limit_s: float) -> T | None:
        """Blocking: returns the result of `work` or raises its error; None if it is not done within the limit."""
        results: list[T] = []
        errors: list[BaseException] = []

        def perform() -> None:
            try:
                results.append(work())
            except BaseException as error:  # noqa: BLE001 -- it is raised again by `run`
                errors.append(error)

        self._thread = threading.Thread(target=perform, name="unisono-doctor-aside", daemon=True)
        self._thread.start()
        self._thread.join(limit_s)
        if errors:
            raise errors[0]
        return results[0] if results else None

    @property
    def busy(self) -> bool:
        """Whether the work still runs; then the process must exit at once, without the exit handlers of its libraries."""
        return self._thread is not None and self._thread.is_alive()

    def where(self) -> str:
        """The line of code at which the work is now."""
        frame = sys._current_frames().get(self._thread.ident or 0) if self._thread else None
        if frame is None:
            return "ended"
        last = traceback.extract_stack(frame)[-1]
        return f"{last.filename}, line {last.lineno}, in {last.name}"
