"""Shows the progress over samples as a bar on a terminal; silent elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from unisono.observe.bar import Bar
from unisono.observe.quantities import duration, rate


class PieceProgress:
    """Shows the progress of the first worker, whose part is as large as that of the others. Local."""

    def __init__(self, bar: Bar, what: str, workers: int, clock: Callable[[], float] = perf_counter) -> None:
        self._bar = bar
        self._what = what
        self._workers = workers
        self._clock = clock
        self._began: float | None = None

    def __call__(self, done: int, total: int) -> None:
        if not self._bar.is_shown:
            return
        now = self._clock()
        if self._began is None:
            self._began = now
        if not self._bar.is_due(now):
            return
        share = done / max(total, 1)
        words = {"share": f"{share:4.0%}"}
        if now > self._began and done:
            per_s = done / (now - self._began)
            words["rate"] = f"{rate(per_s * self._workers)} samples/s"
            words["left"] = f"{duration((total - done) / per_s)} left"
        self._bar.draw(self._what, share, words, ("rate", "left"))
