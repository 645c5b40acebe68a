"""A bar for work that is one stretch of samples: drawn on a terminal, silent elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TextIO

from unisono.observe.quantities import duration, rate

DRAW_EVERY_S = 0.1
LONGEST_BAR = 40
BEGIN_OF_LINE, ERASE_TO_END = "\r", "\x1b[K"


class Progress:
    """Told how far the first worker is, whose part is as large as that of the others. Local."""

    def __init__(
        self, stream: TextIO, columns: int | None, what: str, workers: int, clock: Callable[[], float] = perf_counter
    ) -> None:
        """`columns`: width of the terminal; None where it is none."""
        self._stream = stream
        self._columns = columns
        self._what = what
        self._workers = workers
        self._clock = clock
        self._began: float | None = None
        self._next_s = 0.0
        self._is_drawn = False

    def __call__(self, done: int, total: int) -> None:
        if self._columns is None:
            return
        now = self._clock()
        if self._began is None:
            self._began = now
        if now < self._next_s:
            return
        self._next_s = now + DRAW_EVERY_S
        share = done / max(total, 1)
        words = f" {share:4.0%}"
        if now > self._began and done:
            per_s = done / (now - self._began)
            words += f"  {rate(per_s * self._workers)} samples/s  {duration((total - done) / per_s)} left"
        cells = max(0, min(LONGEST_BAR, self._columns - len(self._what) - len(words) - 2))
        full = round(share * cells)
        text = f"{self._what} {'#' * full}{'-' * (cells - full)}{words}"[: self._columns - 1]
        self._stream.write(f"{BEGIN_OF_LINE}{text}{ERASE_TO_END}")
        self._stream.flush()
        self._is_drawn = True

    def close(self) -> None:
        """Leaves an empty line. Idempotent."""
        if self._is_drawn:
            self._stream.write(f"{BEGIN_OF_LINE}{ERASE_TO_END}")
            self._stream.flush()
            self._is_drawn = False
