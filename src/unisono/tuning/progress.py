"""What a search shows while it goes on: the best so far, how many trials are done, and how long it will take."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TextIO

from unisono.observe.quantities import duration
from unisono.tuning.plan import Objective
from unisono.tuning.study import COMPLETE, FAILED, PRUNED, Study, Trial

DRAW_EVERY_S = 0.2
BEGIN_OF_LINE, ERASE_TO_END = "\r", "\x1b[K"
BAR = 20


class Progress:
    """Local. A bar on a terminal, a line for each trial elsewhere."""

    def __init__(
        self,
        stream: TextIO | None,
        columns: int | None,
        study: Study,
        objectives: Sequence[Objective],
        num_trials: int,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`stream`: None to say nothing. `columns`: width of the terminal; None where it is none."""
        self._stream, self._columns, self._study = stream, columns, study
        self._objectives, self._num_trials, self._clock = objectives, num_trials, clock
        self._began = clock()
        self._seen: set[int] = set()
        self._here = 0
        self._next = 0.0
        self._drawn = False

    def earlier(self, trials: Sequence[Trial]) -> None:
        """Local: trials that ended before this job came."""
        self._seen |= {trial.number for trial in trials if trial.result is not None}

    def trial_ended(self, trial: Trial) -> None:
        result = trial.result
        if result is None or trial.number in self._seen:
            return
        self._seen.add(trial.number)
        self._here += 1
        what = shown_values(self._objectives, result.values) if result.state == COMPLETE else result.state
        spread = result.details.get("spread")
        if result.state == COMPLETE and spread:
            what += f" ± {spread:.2g}"
        if result.state == FAILED:
            what += f": {result.reason.splitlines()[0] if result.reason else 'no reason is known'}"
        best = self.best()
        star = "  best" if best is not None and best.number == trial.number else ""
        self.say(f"trial {trial.number}: {what}  {shown_settings(trial.values or {})}  {duration(result.took_s)}{star}")

    def best(self) -> Trial | None:
        """Pure: of the first objective."""
        return self._study.best(self._objectives[0].higher_is_better)

    def say(self, text: str) -> None:
        if self._stream is None:
            return
        erase = f"{BEGIN_OF_LINE}{ERASE_TO_END}" if self._drawn else ""
        self._drawn = False
        self._next = 0.0
        print(f"{erase}{text}", file=self._stream, flush=True)

    def draw(self, num_running: int) -> None:
        """Local: the line at the bottom of a terminal."""
        now = self._clock()
        if self._stream is None or self._columns is None or now < self._next:
            return
        self._next = now + DRAW_EVERY_S
        done = sum(number < self._num_trials for number in self._seen)  # other jobs may have been asked for more
        filled = round(BAR * done / max(self._num_trials, 1))
        parts = [f"[{'#' * filled}{'-' * (BAR - filled)}] {done}/{self._num_trials} trials, {num_running} running"]
        best = self.best()
        if best is not None and best.result is not None:
            parts.append(f"best {shown_values(self._objectives, best.result.values)} (trial {best.number})")
        parts.append(self._times(done, now))
        line = "  ".join(parts)[: self._columns - 1]
        self._stream.write(f"{BEGIN_OF_LINE}{line}{ERASE_TO_END}")
        self._stream.flush()
        self._drawn = True

    def _times(self, done: int, now: float) -> str:
        took_s = now - self._began
        left = self._num_trials - done
        if not self._here or not left:
            return duration(took_s)
        return f"{duration(took_s)}, about {duration(took_s / self._here * left)} left"


def shown_values(objectives: Sequence[Objective], values: Sequence[float]) -> str:
    """Pure: 'val_accuracy 0.9812'."""
    return ", ".join(f"{one.metric} {_number(value)}" for one, value in zip(objectives, values, strict=False))


def shown_settings(values: object) -> str:
    """Pure: 'lr=0.05 model.width=128'."""
    items = values.items() if hasattr(values, "items") else ()
    return " ".join(f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in items)


def _number(value: float) -> str:
    return "nan" if math.isnan(value) else f"{value:.5g}"


def counts(study: Study) -> str:
    """Pure: '21 complete, 2 pruned, 1 failed'."""
    found = [(state, len(study.in_state(state))) for state in (COMPLETE, PRUNED, FAILED)]
    return ", ".join(f"{number} {state}" for state, number in found if number) or "no trial has ended"
