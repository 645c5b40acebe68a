"""What a report needs to know of the trials of a study: finite values, the best trials, and which settings were searched.

A journal may hold anything that a training gave: a loss that is no number, a trial whose settings were lost, parts without a fold.
Here all of that is sorted out once, so that the pictures and tables need not check again.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from unisono.tuning.study.study import COMPLETE, Study, Trial

TOO_LARGE = 1e100
"""From here on a diverged loss is as good as infinite, and its square soon is."""


@dataclass(frozen=True)
class Measure:
    """An objective of the study, which is minimised or maximised."""

    place: int
    """Among the values of a result."""
    metric: str
    higher_is_better: bool

    def gain(self, value: float) -> float:
        """Returns a number that grows as the trial gets better, whatever the direction. Pure."""
        return value if self.higher_is_better else -value

    def __str__(self) -> str:
        return f"{self.metric} ({'higher' if self.higher_is_better else 'lower'} is better)"


@dataclass(frozen=True)
class Setting:
    """A dimension of the space as it is drawn: an axis with numbers, or with one place for each choice."""

    name: str
    choices: Sequence[Any] | None
    """None for a range."""
    low: float = 0.0
    high: float = 1.0
    log: bool = False


class PartValue(NamedTuple):
    """The value that one training of a trial gave."""

    fold: int
    repeat: int
    value: float


def measures_of(about: Mapping[str, Any]) -> list[Measure]:
    """Returns the objectives that study.json lists, at least one. Pure."""
    given = about.get("objectives") or [{}]
    return [
        Measure(place, str(one.get("metric", "objective")), bool(one.get("higher_is_better", False)))
        for place, one in enumerate(given)
    ]


def settings_of_study(study: Study, about: Mapping[str, Any]) -> list[Setting]:
    """Returns the dimensions of the space, then all other settings that trials had (e.g. in an earlier version of the space).
    Pure."""
    described = {one["name"]: one for one in (about.get("space") or {}).get("dimensions") or ()}
    names = [*described, *sorted({name for trial in study.trials.values() for name in trial.values or ()} - described.keys())]
    known = [trial.values for _, trial in sorted(study.trials.items()) if trial.values is not None]
    return [_setting(name, described.get(name, {}), [values[name] for values in known if name in values]) for name in names]


def _setting(name: str, described: Mapping[str, Any], seen: Sequence[Any]) -> Setting:
    """Makes a setting from its description in the space and the values seen: a choice, or a range that holds all of them."""
    ends = [described[end] for end in ("low", "high") if is_number(described.get(end))]
    if "choice" in described or not all(is_number(value) for value in seen) or not (seen or ends):
        choices = list(described.get("choice", ()))
        for value in seen:
            if value not in choices:
                choices.append(value)
        return Setting(name, tuple(choices))
    low, high = min(*ends, *seen, math.inf), max(*ends, *seen, -math.inf)
    return Setting(name, None, float(low), float(high), bool(described.get("log")) and low > 0)


def is_number(value: Any) -> bool:
    """Whether a value is a finite number of a size that can be drawn and calculated with. Pure."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < TOO_LARGE


def value_of(trial: Trial, index: int = 0) -> float | None:
    """Returns the value of one objective of a trial that has ended; None without a finite value. Pure."""
    values = () if trial.result is None else trial.result.values
    return float(values[index]) if index < len(values) and is_number(values[index]) else None


def parts_of(trial: Trial, index: int = 0) -> list[PartValue]:
    """Returns what each training of the trial gave for an objective, without those that gave no finite number. Pure."""
    parts = () if trial.result is None else trial.result.details.get("parts") or ()
    found = [(int(part.get("fold") or 0), int(part.get("repeat") or 0), part.get("values") or ()) for part in parts]
    return sorted(
        PartValue(fold, repeat, float(values[index]))
        for fold, repeat, values in found
        if index < len(values) and is_number(values[index])
    )


def spread_over_parts(trial: Trial, index: int = 0) -> float | None:
    """Returns the standard deviation over the trainings of the trial; None with fewer than two. Pure."""
    given = None if trial.result is None else trial.result.details.get("spread")
    if isinstance(given, Sequence):
        given = given[index] if index < len(given) else None
    elif index:  # one number is that of the first objective
        given = None
    if is_number(given):
        return float(given)  # type: ignore[arg-type]
    values = [part.value for part in parts_of(trial, index)]
    return statistics.stdev(values) if len(values) > 1 else None


def ranked_trials(study: Study, objective: Measure) -> list[Trial]:
    """Returns the complete trials that have a finite value, best first; of equals the earliest first. Pure."""
    found = [(trial, value_of(trial, objective.place)) for trial in study.in_state(COMPLETE)]
    numbers = [(-objective.gain(value), trial.number) for trial, value in found if value is not None]
    return [study.trials[number] for _, number in sorted(numbers)]


def pareto_front(study: Study, objectives: Sequence[Measure]) -> list[Trial]:
    """Returns the complete trials that no other trial dominates (better in one objective, at least as good in all). Pure."""
    gains: dict[int, tuple[float, ...]] = {}
    for trial in study.in_state(COMPLETE):
        values = [value_of(trial, one.place) for one in objectives]
        if None not in values:
            gains[trial.number] = tuple(one.gain(value) for one, value in zip(objectives, values, strict=True) if value is not None)

    def is_dominated(mine: tuple[float, ...]) -> bool:
        return any(other != mine and all(a >= b for a, b in zip(other, mine, strict=True)) for other in gains.values())

    kept = [number for number, mine in gains.items() if not is_dominated(mine)]
    return [study.trials[number] for number in sorted(kept, key=lambda number: (gains[number], -number), reverse=True)]
