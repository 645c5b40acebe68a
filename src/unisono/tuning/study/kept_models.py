"""Selects which models of a study are kept: those of the best trials. All others would fill the disk."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from unisono.tuning.study.study import COMPLETE, FAILED, Result, Trial
from unisono.tuning.workers.blocks import TrialObserver

WEIGHTS = ("weights.safetensors", "best.safetensors")
CHECKPOINTS = "checkpoints"


@dataclass
class KeptModels:
    """An observer of trials that removes the models of all but the best. Local. It touches only trials that have ended, and files
    that are gone already do not disturb it, so any number of jobs may do the same at the same time.

    Kept are the models of the best trial by the first objective and, of several objectives, those of the front: trials than which
    no other is better in one and at least as good in all.
    """

    folder: Path
    """Of the study."""
    higher_is_better: Sequence[bool]
    observer: TrialObserver | None = None
    """Another observer, which gets the same calls."""
    _seen: dict[int, Result] = field(default_factory=dict)
    _best: int | None = None
    _front: set[int] = field(default_factory=set)
    _to_remove: dict[int, None] = field(default_factory=dict)
    """Trials whose weights may go, in order."""

    def trial_ended(self, trial: Trial) -> None:
        """Notes a result; `remove_weights` then removes files. Not blocking."""
        if trial.result is not None and self._seen.get(trial.number) != trial.result:
            before = {self._best, *self._front}
            is_known = trial.number in self._seen
            self._seen[trial.number] = trial.result
            if is_known:  # a job that was thought dead has ended it too, and its result counts
                self._best, self._front = None, set()
            for number in self._seen if is_known else (trial.number,):
                self._update_best(number)
            for one in (*before, trial.number):
                if one is not None and one not in (self._best, *self._front):
                    self._to_remove[one] = None
        if self.observer is not None:
            self.observer.trial_ended(trial)

    def say(self, text: str) -> None:
        """Passes a text on to the observer. Not blocking."""
        if self.observer is not None:
            self.observer.say(text)

    def remove_weights(self) -> None:
        """Removes the weights of trials that are not among the best, and the checkpoints of those that failed. Blocking."""
        for number in self._to_remove.keys() - {self._best, *self._front}:
            folder = self.folder / "trials" / f"{number:06d}"
            for depth in ("*", "old-*/*"):  # as runs that were put aside lie one deeper
                for name in WEIGHTS:
                    for file in folder.glob(f"{depth}/{name}"):
                        with suppress(OSError):  # it only takes space
                            file.unlink()
                if self._seen[number].state == FAILED:  # other trials may still be running in a job that was thought dead
                    for found in folder.glob(f"{depth}/{CHECKPOINTS}"):
                        shutil.rmtree(found, ignore_errors=True)
        self._to_remove.clear()

    def _update_best(self, number: int) -> None:
        """Compares a trial that has ended with the best one and, with several objectives, with the Pareto front."""
        gains = self._gains(number)
        if not gains:
            return
        best = None if self._best is None else self._gains(self._best)
        if best is None or (gains[0], -number) > (best[0], -(self._best or 0)):
            self._best = number
        others = {other: self._gains(other) for other in self._front - {number}}
        if len(gains) > 1 and not any(_dominates(other, gains) for other in others.values()):
            self._front = {number, *(other for other, theirs in others.items() if not _dominates(gains, theirs))}

    def _gains(self, number: int) -> tuple[float, ...]:
        """The values of a trial with the sign that makes higher better; empty where the trial cannot be among the best."""
        result = self._seen[number]
        if result.state != COMPLETE or len(result.values) != len(self.higher_is_better) or not math.isfinite(result.values[0]):
            return ()
        return tuple(value if higher else -value for value, higher in zip(result.values, self.higher_is_better, strict=True))


def _dominates(mine: Sequence[float], other: Sequence[float]) -> bool:
    """Whether one trial is at least as good in all objectives and better in one; higher is better."""
    return mine != other and all(a >= b for a, b in zip(mine, other, strict=True))
