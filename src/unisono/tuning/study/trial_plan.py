"""What a trial consists of: trainings on every fold from every random start, some at the same time; and how their results are
combined."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from unisono.errors import UsageError
from unisono.task.metric_names import split_direction, unknown_direction
from unisono.task.task import BEST

TIME = "time_s"
"""An objective that every task has: seconds of training."""


class Objective(NamedTuple):
    """The name and direction of a value that a trial gives."""

    metric: str
    higher_is_better: bool


class Part(NamedTuple):
    """One training of a trial: its fold and its random start."""

    fold: int
    repeat: int


@dataclass(frozen=True)
class Plan:
    """What every trial of a study consists of. Pure."""

    objectives: Sequence[Objective]
    folds: int = 1
    repeats: int = 1
    parallel: int = 1
    """Trainings of one trial at the same time."""
    workers: int = 1
    epochs: int = 1
    """Of one training, at most; by which reports of parts are lined up."""
    prune: str = "none"
    attempts: int = 5
    """How often a trial may be begun whose process is killed."""
    limit_s: float | None = None
    """Of one trial."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of every training, as `TrainConfig` has them."""
    samples: Mapping[str, Any] = field(default_factory=dict)
    """The fingerprints of the data, which those of every worker must equal; empty for an objective."""

    @property
    def waves(self) -> list[list[Part]]:
        """The parts that run at the same time, wave after wave."""
        parts = [Part(fold, repeat) for repeat in range(self.repeats) for fold in range(self.folds)]
        return [parts[first : first + self.parallel] for first in range(0, len(parts), self.parallel)]

    @property
    def num_parts(self) -> int:
        """Number of trainings of one trial."""
        return self.folds * self.repeats

    @property
    def num_steps(self) -> int:
        """Most reports of one trial."""
        return self.num_parts if self.prune == "wilcoxon" else len(self.waves) * self.epochs


def objectives_of(proposed: Sequence[str], about: Mapping[str, Any]) -> list[Objective]:
    """Returns the objectives for the given metrics, of the weights that count in the task; refuses a metric that the task does not
    report, or of which it is not known whether higher is better. Pure."""
    known: Mapping[str, bool | None] = about["metrics"]
    if about["space"] is None:  # an objective gives what it gives
        return [Objective(name, bool(higher)) for name, higher in (split_direction(text, "--metric") for text in proposed)]
    names = list(proposed) or ([about["monitor"]] if about["monitor"] else [])
    if not names:
        raise UsageError("the task reports no metric that compares trials; name metrics of the task, or give it validation data")
    found = []
    for text in names:
        name, higher = split_direction(text, "--metric")
        base = name.removeprefix("best_")
        judged = next((one for one in (base, f"val_{base}") if one in known), None)
        if name == TIME:
            found.append(Objective(TIME, bool(higher)))
        elif judged is None:
            options = ", ".join([*known, TIME])
            raise UsageError(f"the task does not report {name!r} (--metric); it reports {options}, each also as best_...")
        else:
            of_best = about.get("weights") == BEST or name.startswith("best_")
            metric = f"best_{judged}" if of_best else judged
            higher = known[judged] if higher is None else higher
            if higher is None:
                raise unknown_direction(name, "--metric")
            found.append(Objective(metric, higher))
    twice = [one.metric for number, one in enumerate(found) if one.metric in [other.metric for other in found[:number]]]
    if twice:
        raise UsageError(f"--metric {twice[0]} is given twice; give it once")
    return found


def values_of(objectives: Sequence[Objective], metrics: Mapping[str, Any], took_s: float) -> list[float]:
    """Returns the objectives of one training; NaN where a metric is missing or has no value. Pure."""
    found = {**metrics, TIME: took_s}
    return [math.nan if found.get(one.metric) is None else float(found[one.metric]) for one in objectives]


def mean_of(parts: Sequence[Sequence[float]]) -> list[float]:
    """Returns the mean of each objective over the parts of a trial. Pure."""
    return [statistics.fmean(column) for column in zip(*parts, strict=True)]


def spread_of(parts: Sequence[Sequence[float]]) -> float:
    """Returns the standard deviation of the first objective over the parts: 0 of a single part, NaN where a value is not finite.
    Pure."""
    first = [values[0] for values in parts]
    if not all(map(math.isfinite, first)):
        return math.nan
    return statistics.stdev(first) if len(first) > 1 else 0.0


def final_values(objectives: Sequence[Objective], message: Mapping[str, Any]) -> list[float]:
    """Returns the objectives from a worker's last message on its training; an objective function gives the numbers itself. Pure."""
    if "values" in message:
        return [float(one) for one in message["values"]]
    return values_of(objectives, message["metrics"], message.get("all_lives_s", message["took_s"]))


def problem_of(objectives: Sequence[Objective], parts: Sequence[Sequence[float]]) -> str:
    """Returns why these values are not a valid result; an empty text where they are. Pure."""
    wanted = len(objectives)
    for values in parts:
        if len(values) != wanted:
            return f"it must give {wanted} number{'s' * (wanted > 1)}, and it gave {len(values)}"
        for objective, value in zip(objectives, values, strict=True):
            if math.isnan(value):
                return f"{objective.metric} has no value (nan)"
    return ""
