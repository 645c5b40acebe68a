"""Ranks runs by a metric, with intervals for chance. Only runs that were measured on the same samples are compared; that they were
trained on others is noted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from unisono.errors import UsageError, unknown_name
from unisono.predict.finished_run import FinishedRun, open_run
from unisono.predict.intervals import NUM_RESAMPLES, spread, wilson
from unisono.predict.measured_metric import Measured, parts_of
from unisono.predict.same_samples import TRAIN, describe_other_data, group_by_samples
from unisono.task.averages import KEY, MEANINGS, UNNAMED, recorded_averages
from unisono.task.metric_names import split_direction

UNFINISHED = ("interrupted", "not finite")
"""Reasons for the end of a run that make it no result."""


@dataclass(frozen=True)
class Row:
    """One run, or several of one configuration with different seeds."""

    rank: int
    runs: tuple[str, ...]
    value: float
    """The value of the metric; the mean of several runs."""
    interval: tuple[float, float] | None
    """The interval of one run, by Wilson."""
    spread: float | None
    """The standard deviation of several runs."""
    difference: tuple[float, float] | None
    """The interval of the difference to the best run, by a paired bootstrap."""
    steps: float
    wall_s: float
    samples_per_s: float | None
    num_workers: int


@dataclass(frozen=True)
class Comparison:
    metric: str
    higher_is_better: bool
    num_samples: int | None
    """Number of samples on which it was measured."""
    split_sha256: str
    """Hash of these samples; of all parts of the data, where a run of an earlier version recorded no other."""
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    """Notes on what the intervals are, and why some are missing."""

    def as_dict(self) -> dict[str, Any]:
        """Returns the comparison as plain data, for --json."""
        return asdict(self)


def compare_runs(paths: Sequence[str], metric: str | None = None, lower_is_better: bool = False) -> Comparison:
    """Local, blocking: ranks runs by a metric; refuses runs that are unfinished, were measured on different samples or lack the
    metric."""
    runs = [open_run(path) for path in paths]
    _refuse_unusable(runs)
    asked, higher = _asked(metric, lower_is_better)
    name = asked or _usual_metric(runs)
    averages = _averages(name, runs)
    known = [run.metrics() for run in runs]
    values = {str(run.path): _value_of(run, found, name) for run, found in zip(runs, known, strict=True)}
    measured = Measured.of(name, runs, higher, {parts_of(name)[-1]: one for one in averages if one})
    part = measured.split or TRAIN
    first, *others = group_by_samples(runs, part)
    if others:
        listed = "; ".join(map(str, (first, *others)))
        raise UsageError(
            f"{name} of these runs was measured on different samples, so they cannot be ranked by it: {listed}. Compare each group "
            "alone"
        )
    groups = sorted(_groups(runs), key=lambda group: _mean(group, values), reverse=measured.higher_is_better)
    best = groups[0][0] if len(groups[0]) == 1 else None
    alone = [group[0] for group in groups[1:] if len(group) == 1]
    differences = {} if best is None else {str(run.path): measured.difference(run, best, values) for run in alone}
    rows = tuple(
        _row(place, group, values, measured, differences.get(str(group[0].path), (None, ""))[0])
        for place, group in enumerate(groups, 1)
    )
    missing = [why for _, why in differences.values() if why]
    notes = (*measured.notes, *_notes(rows, measured, measured.num_samples(runs[0])), *missing)
    if any(found is None and not why for found, why in differences.values()) and measured.needs_predictions(runs[0]):
        notes = (*notes, _how_to_save(measured))
    if num_unknown := len(averages.get("", ())) if any(averages) else 0:
        notes = (*notes, f"{name} of {num_unknown} of the runs comes from its own model or function, and may average otherwise")
    return Comparison(
        name,
        measured.higher_is_better,
        measured.num_samples(runs[0]),
        first.sha256,
        rows,
        (*notes, *describe_other_data(runs, part), *_outdated(runs)),
    )


def _asked(metric: str | None, lower_is_better: bool) -> tuple[str | None, bool | None]:
    """Pure: the metric that was asked for, and whether higher is better; None where that was not given."""
    name, higher = (None, None) if metric is None else split_direction(metric, "--metric")
    if higher and lower_is_better:
        raise UsageError(f"--metric {metric} and --lower-is-better contradict each other; give one of them")
    return name or None, False if lower_is_better else higher


def _value_of(run: FinishedRun, found: Mapping[str, float], name: str) -> float:
    """Returns the metric of this name among those of a run; refuses a name that it does not have."""
    value = found.get(name, found.get(name.removeprefix(f"{run.weights_that_count}_")))
    if value is not None:
        return float(value)
    known = [one for one, value in found.items() if value is not None]
    refusal = unknown_name("metric", name, known, f"of {run.path} (--metric)")
    raise UsageError("; ".join([str(refusal), *_outdated([run])]))


def _outdated(runs: Sequence[FinishedRun]) -> list[str]:
    """Returns a sentence for each evaluation that is left out, as it is not of the weights that the run has now."""
    return [
        f"{file} is left out, as it is of other weights or samples than {run.path} has now; run unisono evaluate again"
        for run in runs
        for file in run.outdated()
    ]


def _refuse_unusable(runs: Sequence[FinishedRun]) -> None:
    """Refuses runs given twice, and unfinished ones."""
    resolved = [run.path.resolve() for run in runs]
    for run, path in zip(runs, resolved, strict=True):
        if resolved.count(path) > 1:
            raise UsageError(f"{run.path} is given twice; give each run once")
        if run.summary["reason"] in UNFINISHED:
            raise UsageError(f"{run.path} is unfinished ({run.summary['reason']}); train it to its end, or leave it out")


def _averages(name: str, runs: Sequence[FinishedRun]) -> Mapping[str, Sequence[FinishedRun]]:
    """Returns how runs average a metric whose name does not say it, each average with its runs, "" where that is not known; {} for
    other metrics. Refuses runs of which one average is not that of another."""
    short = parts_of(name)[-1]
    found: dict[str, list[FinishedRun]] = {}
    for run in runs if short in UNNAMED else ():
        found.setdefault(recorded_averages(run.config).get(short, ""), []).append(run)
    known = {average: those for average, those in found.items() if average}
    if len(known) > 1:
        listed = "; ".join(
            f"{MEANINGS.get(average, average)} ({short}_{average}): {', '.join(str(run.path) for run in those)}"
            for average, those in known.items()
        )
        raise UsageError(
            f"{name} means different things in these runs, so they cannot be ranked by it: {listed}. Compare each group alone, or "
            f"train with a metric that names its average, e.g. {short}_binary"
        )
    return found


def _usual_metric(runs: Sequence[FinishedRun]) -> str:
    """The metric that compares runs by default: the first run's monitor, on the test data where all have it, else on the
    validation; else the loss."""
    common = set.intersection(*(set(run.metrics()) for run in runs))
    monitored = (runs[0].summary["monitor_metric"] or "val_loss").removeprefix("val_")
    for name in (f"test_{monitored}", f"val_{monitored}", "test_loss", "val_loss", "loss"):
        if name in common:
            return name
    raise UsageError(f"these runs have no common metric (--metric); the first has {', '.join(runs[0].metrics())}")


def _groups(runs: Sequence[FinishedRun]) -> list[list[FinishedRun]]:
    """Groups runs that differ only in their seeds."""
    found: dict[str, list[FinishedRun]] = {}
    for run in runs:
        found.setdefault(_configuration(run), []).append(run)
    groups: list[list[FinishedRun]] = []
    for group in found.values():
        seeds = [run.config["settings"]["seed"] for run in group]
        groups += [group] if len(set(seeds)) == len(seeds) else [[run] for run in group]
    return groups


def _configuration(run: FinishedRun) -> str:
    """Returns the configuration of a run without its seed, as a text; equal for runs that differ only in that."""
    task = run.summary["provenance"]["task"]
    settings = {name: value for name, value in run.config["settings"].items() if name != "seed"}
    files = [task.get("sha256"), task.get("imports"), task.get("sources")]
    return json.dumps([{**run.config, "settings": settings, "task_file": None, KEY: None}, files], sort_keys=True)


def _row(
    place: int,
    group: Sequence[FinishedRun],
    values: Mapping[str, float],
    measured: Measured,
    difference: tuple[float, float] | None,
) -> Row:
    """Makes the row of a run, or of several that differ only in the seed."""
    names = tuple(str(run.path) for run in group)
    value = _mean(group, values)
    hits = measured.hits(group[0], value) if len(group) == 1 else None
    total = measured.num_samples(group[0])
    speeds = [run.summary["samples_per_s"] for run in group if run.summary["samples_per_s"]]
    return Row(
        rank=place,
        runs=names,
        value=value,
        interval=wilson(hits, total) if hits is not None and total else None,
        spread=spread([values[name] for name in names]) if len(group) > 1 else None,
        difference=difference,
        steps=_average([run.summary["steps"] for run in group]),
        wall_s=_average([run.summary["wall_s"] for run in group]),
        samples_per_s=_average(speeds) if speeds else None,
        num_workers=group[0].summary["num_workers"],
    )


def _notes(rows: Sequence[Row], measured: Measured, num_samples: int | None) -> list[str]:
    """Returns the explanations below the table, of what it shows and what is missing."""
    notes = []
    single = [row for row in rows if len(row.runs) == 1]
    if any(row.interval for row in single):
        notes.append(f"in brackets: Wilson 95 % interval of a share of {num_samples} samples")
    if any(row.interval is None for row in single):
        notes.append(
            f"no interval where {measured.name} is not a share of counted samples, as a summary alone does not give its spread"
        )
    if any(row.spread is not None for row in rows):
        notes.append("+-: mean and standard deviation over runs of one configuration with different seeds")
    if any(row.difference for row in rows):
        notes.append(
            f"to best: 95 % interval of the difference, paired bootstrap with {NUM_RESAMPLES} resamples of the same samples"
        )
    return notes


def _how_to_save(measured: Measured) -> str:
    """Returns the note on how the differences to the best run are made visible."""
    weights = "" if measured.which is None else f" --weights {measured.which}"
    return (
        f"for differences to the best run do this for each: unisono evaluate RUN --split {measured.split}{weights} "
        "--save-predictions"
    )


def _mean(group: Sequence[FinishedRun], values: Mapping[str, float]) -> float:
    """Returns the mean value of the runs in a group."""
    return _average([values[str(run.path)] for run in group])


def _average(numbers: Sequence[float]) -> float:
    """Returns the mean of some numbers."""
    return sum(numbers) / len(numbers)
