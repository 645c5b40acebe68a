"""The progress of a search: the best so far, how many trials are done, and how long it will take."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import monotonic

from unisono.observe.bar import Bar
from unisono.observe.quantities import duration
from unisono.tuning.study.study import COMPLETE, FAILED, PRUNED, Study, Trial
from unisono.tuning.study.trial_plan import Objective

DRAW_EVERY_S = 0.2


class SearchProgress:
    """The progress of a search on the console: a bar on a terminal, a line for each trial elsewhere. Local."""

    def __init__(
        self,
        bar: Bar | None,
        study: Study,
        objectives: Sequence[Objective],
        num_trials: int,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`bar`: None to say nothing."""
        self._bar, self._study = bar, study
        self._objectives, self._num_trials, self._clock = objectives, num_trials, clock
        self._began = clock()
        self._seen: set[int] = set()
        self._here = 0

    def skip_ended(self, trials: Sequence[Trial]) -> None:
        """Leaves out trials that ended before this job started. Local."""
        self._seen |= {trial.number for trial in trials if trial.result is not None}

    def trial_ended(self, trial: Trial) -> None:
        """Prints one line on a trial that has ended, the first time it is told: values, settings, duration. Local."""
        result = trial.result
        if result is None or trial.number in self._seen:
            return
        self._seen.add(trial.number)
        self._here += 1
        is_complete = result.state == COMPLETE
        what = format_values(self._objectives, result.values, result.details.get("spread")) if is_complete else result.state
        if result.state == FAILED:
            what += f": {result.reason.splitlines()[0] if result.reason else 'no reason is known'}"
        best = self.best()
        star = "  best" if best is not None and best.number == trial.number else ""
        self.say(f"trial {trial.number}: {what}  {format_settings(trial.values or {})}  {duration(result.took_s)}{star}")

    def best(self) -> Trial | None:
        """Returns the best trial by the first objective. Pure."""
        return self._study.best(self._objectives[0].higher_is_better)

    def say(self, text: str) -> None:
        """Prints a line above the progress line, if there is one. Local."""
        if self._bar is not None:
            self._bar.say(text)
            self._bar.draw_soon()

    def draw(self, num_running: int) -> None:
        """Draws the line at the bottom of a terminal. Local."""
        now = self._clock()
        if self._bar is None or not self._bar.is_shown or not self._bar.is_due(now):
            return
        done = sum(number < self._num_trials for number in self._seen)  # other jobs may have been asked for more
        words = {"running": f"{num_running} running"}
        best = self.best()
        if best is not None and best.result is not None:
            words["best"] = f"best {format_values(self._objectives, best.result.values)} (trial {best.number})"
        words["times"] = self._times(done, now)
        self._bar.draw(f"{done}/{self._num_trials} trials", done / max(self._num_trials, 1), words, ("running", "times", "best"))

    def _times(self, done: int, now: float) -> str:
        """Returns the time taken and, once a trial has ended here, an estimate of the time left."""
        took_s = now - self._began
        left = self._num_trials - done
        if not self._here or not left:
            return duration(took_s)
        return f"{duration(took_s)}, about {duration(took_s / self._here * left)} left"


def format_values(objectives: Sequence[Objective], values: Sequence[float], spread: float | None = None) -> str:
    """Returns the objectives with their values, e.g. 'val_accuracy 0.9812 ± 0.013, val_loss 0.31207'. `spread` is that of the first
    objective over the trainings of a trial. Pure."""
    shown = [f"{one.metric} {_number(value)}" for one, value in zip(objectives, values, strict=False)]
    if spread:
        shown[0] += f" ± {spread:.2g}"
    return ", ".join(shown)


def format_settings(values: object) -> str:
    """Returns the settings, e.g. 'lr=0.05 model.width=128'. Pure."""
    items = values.items() if hasattr(values, "items") else ()
    return " ".join(f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in items)


def _number(value: float) -> str:
    """Returns a value with five significant digits, or 'nan'."""
    return "nan" if math.isnan(value) else f"{value:.5g}"


def describe_counts(study: Study) -> str:
    """Returns how many trials ended in which state, e.g. '21 complete, 2 pruned, 1 failed'. Pure."""
    found = [(state, len(study.in_state(state))) for state in (COMPLETE, PRUNED, FAILED)]
    return ", ".join(f"{number} {state}" for state, number in found if number) or "no trial has ended"
