"""Ranks runs by a metric, with intervals for chance. Only runs that were measured on the same samples are compared; that they were
trained on others is noted."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from unisono.data.data_differences import PART_NAMES
from unisono.errors import UsageError, unknown_name
from unisono.metrics import Metric, resolve_metrics
from unisono.model.losses import Reading, resolve_loss
from unisono.predict.finished_run import PREFIXES, WEIGHTS, FinishedRun, open_run
from unisono.predict.intervals import NUM_RESAMPLES, Predictions, paired_bootstrap, spread, wilson
from unisono.task.averages import KEY, MEANINGS, UNNAMED, recorded_averages

UNFINISHED = ("interrupted", "not finite")
"""Reasons for the end of a run that make it no result."""
TRAIN = "train"
PARTS = "parts_sha256"
"""Of the split in a summary: part of the data -> hash of its samples."""
COUNTED = re.compile(r"accuracy|top_[0-9]+_accuracy")
"""Metrics that are shares of samples."""


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
    name = metric or _usual_metric(runs)
    averages = _averages(name, runs)
    known = [run.metrics() for run in runs]
    values = {str(run.path): _value_of(run, found, name) for run, found in zip(runs, known, strict=True)}
    measured = _Measured.of(name, runs, lower_is_better, averages)
    samples = _samples_of(runs, measured.split or TRAIN)
    if len(samples) > 1:
        raise UsageError(
            f"{name} of these runs was measured on different samples, so they cannot be ranked by it: {_listed(samples)}. Compare "
            "each group alone"
        )
    groups = sorted(_groups(runs), key=lambda group: _mean(group, values), reverse=measured.higher_is_better)
    best = groups[0][0] if len(groups[0]) == 1 else None
    rows = tuple(_row(place, group, values, measured, best) for place, group in enumerate(groups, 1))
    return Comparison(
        name,
        measured.higher_is_better,
        measured.num_samples,
        next(iter(samples)),
        rows,
        (*_notes(rows, measured), *_other_data(runs), *_outdated(runs)),
    )


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


@dataclass(frozen=True)
class _Measured:
    """A metric by its full name, e.g. best_val_accuracy: the quantity, the part of the data, and the weights."""

    name: str
    metric: Metric | None
    """The metric of Unisono; None for the loss, or for a user's own."""
    higher_is_better: bool
    split: str | None
    num_samples: int | None
    which: str | None
    """The weights; None for those that count in each run."""
    is_counted: bool
    """Whether it is a share of samples, each of which counts 1."""
    num_unknown: int = 0
    """Number of runs whose own model or function computes it, so that they may average otherwise than the rest."""

    @classmethod
    def of(
        cls, name: str, runs: Sequence[FinishedRun], lower_is_better: bool, averages: Mapping[str, Sequence[FinishedRun]]
    ) -> _Measured:
        """Makes it from the full name of a metric, e.g. 'best_val_accuracy', and how the runs average it."""
        which, split, short = _parts_of(name)
        average = next((one for one in averages if one), "")
        options = [run.config["settings"]["loss_options"].get("ignore_label") for run in runs]
        try:
            metric = resolve_metrics([short], _reading_of(runs[0]), {short: average} if average else {})[0]
        except UsageError:  # the loss, or a function of the task
            metric = None
        higher = bool(metric.higher_is_better) if metric is not None else short != "loss"
        num_samples = runs[0].summary["split"]["num_samples"].get(split) if split is not None else None
        is_counted = COUNTED.fullmatch(short) is not None and all(option is None for option in options)
        num_unknown = len(averages.get("", ())) if average else 0
        return cls(name, metric, higher and not lower_is_better, split, num_samples, which, is_counted, num_unknown)

    def hits(self, value: float) -> int | None:
        """Number of correct samples; None where the value is no share of samples (weights, several places in a sample)."""
        if not self.is_counted or not self.num_samples:
            return None
        number = round(value * self.num_samples)
        return number if abs(number - value * self.num_samples) < 1e-6 else None

    def predictions(self, run: FinishedRun) -> Predictions | None:
        """Local, blocking: the predictions that an evaluation with these weights on these samples has saved; None without."""
        which = self.which or run.weights_that_count
        if self.split is None or not (file := run.predictions(self.split, which)).is_file():
            return None
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            return Predictions.of(arrays) if run.is_current(which, arrays) else None


def _refuse_unusable(runs: Sequence[FinishedRun]) -> None:
    """Refuses runs given twice, and unfinished ones."""
    resolved = [run.path.resolve() for run in runs]
    for run, path in zip(runs, resolved, strict=True):
        if resolved.count(path) > 1:
            raise UsageError(f"{run.path} is given twice; give each run once")
        if run.summary["reason"] in UNFINISHED:
            raise UsageError(f"{run.path} is unfinished ({run.summary['reason']}); train it to its end, or leave it out")


def _samples_of(runs: Sequence[FinishedRun], part: str) -> dict[str, list[str]]:
    """Groups runs by the hash of the samples in a part of their data; by that of all their data, where one of them did not record
    it: a run of an earlier version, or of a fold."""
    splits = [run.summary["split"] for run in runs]
    are_known = all(part in split.get(PARTS, ()) for split in splits)
    return _grouped(runs, [split[PARTS][part] if are_known else split["sha256"] for split in splits])


def _other_data(runs: Sequence[FinishedRun]) -> list[str]:
    """Returns a sentence for each other part of the data in which runs differ that were measured on the same samples. Those of
    earlier versions then have the same data throughout."""
    known = [run.summary["split"].get(PARTS) for run in runs]
    hashes = {part: [found.get(part, "none") for found in known if found] for part in (TRAIN, "validation") if all(known)}
    return [
        f"the {PART_NAMES[part]} data of these runs differ, which may be the reason for other results: "
        f"{_listed(_grouped(runs, found))}"
        for part, found in hashes.items()
        if len(set(found)) > 1
    ]


def _grouped(runs: Sequence[FinishedRun], hashes: Sequence[str]) -> dict[str, list[str]]:
    """Returns the paths of the runs by their hashes."""
    found: dict[str, list[str]] = {}
    for run, sha256 in zip(runs, hashes, strict=True):
        found.setdefault(sha256, []).append(str(run.path))
    return found


def _listed(samples: Mapping[str, Sequence[str]]) -> str:
    """Returns the groups of runs as text, each with its hash."""
    return "; ".join(f"split {sha256[:12]}: {', '.join(names)}" for sha256, names in samples.items())


def _parts_of(name: str) -> tuple[str | None, str | None, str]:
    """Returns the weights (None: those that count in each run), the part of the data and the name of the metric itself in its full
    name, e.g. 'best_val_accuracy'."""
    which = next((one for one in WEIGHTS if name.startswith(f"{one}_")), None)
    rest = name if which is None else name[len(which) + 1 :]
    split = next((split for split, prefix in PREFIXES.items() if rest.startswith(prefix)), None)
    return which, split, rest if split is None else rest[len(PREFIXES[split]) :]


def _averages(name: str, runs: Sequence[FinishedRun]) -> Mapping[str, Sequence[FinishedRun]]:
    """Returns how runs average a metric whose name does not say it, each average with its runs, "" where that is not known; {} for
    other metrics. Refuses runs of which one average is not that of another."""
    short = _parts_of(name)[-1]
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
    place: int, group: Sequence[FinishedRun], values: Mapping[str, float], measured: _Measured, best: FinishedRun | None
) -> Row:
    """Makes the row of a run, or of several that differ only in the seed."""
    names = tuple(str(run.path) for run in group)
    value = _mean(group, values)
    hits = measured.hits(value) if len(group) == 1 else None
    speeds = [run.summary["samples_per_s"] for run in group if run.summary["samples_per_s"]]
    return Row(
        rank=place,
        runs=names,
        value=value,
        interval=wilson(hits, measured.num_samples) if hits is not None and measured.num_samples else None,
        spread=spread([values[name] for name in names]) if len(group) > 1 else None,
        difference=_difference(group[0], best, measured) if len(group) == 1 and best is not None and best is not group[0] else None,
        steps=_average([run.summary["steps"] for run in group]),
        wall_s=_average([run.summary["wall_s"] for run in group]),
        samples_per_s=_average(speeds) if speeds else None,
        num_workers=group[0].summary["num_workers"],
    )


def _difference(run: FinishedRun, best: FinishedRun, measured: _Measured) -> tuple[float, float] | None:
    """Returns the interval of the difference to the best run; None where one has no saved predictions."""
    if measured.metric is None:
        return None
    own, theirs = measured.predictions(run), measured.predictions(best)
    if own is None or theirs is None:
        return None
    return paired_bootstrap(measured.metric, own, theirs)


def _notes(rows: Sequence[Row], measured: _Measured) -> list[str]:
    """Returns the explanations below the table, of what it shows and what is missing."""
    notes = []
    single = [row for row in rows if len(row.runs) == 1]
    if any(row.interval for row in single):
        notes.append(f"in brackets: Wilson 95 % interval of a share of {measured.num_samples} samples")
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
    if measured.num_unknown:
        notes.append(
            f"{measured.name} of {measured.num_unknown} of the runs comes from its own model or function, and may average otherwise"
        )
    if measured.metric is not None and measured.split is not None and any(row.difference is None for row in single[1:]):
        weights = "" if measured.which is None else f" --weights {measured.which}"
        notes.append(
            f"for differences to the best run do this for each: unisono evaluate RUN --split {measured.split}{weights} "
            "--save-predictions"
        )
    return notes


def _mean(group: Sequence[FinishedRun], values: Mapping[str, float]) -> float:
    """Returns the mean value of the runs in a group."""
    return _average([values[str(run.path)] for run in group])


def _average(numbers: Sequence[float]) -> float:
    """Returns the mean of some numbers."""
    return sum(numbers) / len(numbers)


def _reading_of(run: FinishedRun) -> Reading:
    """How the loss of a run reads outputs and targets, which one of an earlier version has not recorded."""
    if "reading" in run.summary:
        return Reading(**run.summary["reading"])
    try:
        return resolve_loss(run.config["settings"]["loss"], run.config["settings"]["loss_options"]).reading
    except UsageError:  # a function of the task, or none
        return Reading()
