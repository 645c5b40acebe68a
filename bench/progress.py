"""One line that says where a run stands: rewritten on a terminal, printed now and then elsewhere."""

from __future__ import annotations

import sys
import time

QUIET_S = 10.0
"""How often a line is printed where it cannot be rewritten."""


class Progress:
    """Local; writes to standard error, so that standard output holds the table alone."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._printed_at = 0.0

    def say(self, text: str) -> None:
        """A passing state; the next one replaces it."""
        now = time.monotonic()
        if self._terminal:
            sys.stderr.write(f"\r\033[K{text}")
        elif now - self._printed_at > QUIET_S:
            self._printed_at = now
            sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def keep(self, text: str) -> None:
        """A line that stays."""
        sys.stderr.write(f"\r\033[K{text}\n" if self._terminal else f"{text}\n")
        sys.stderr.flush()
