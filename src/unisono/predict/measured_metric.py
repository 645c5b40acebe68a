"""A metric by which runs are compared: its direction, the samples that it counts, and its difference between two runs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from unisono.errors import UsageError
from unisono.metrics import Metric, resolve_metrics
from unisono.model.losses import Reading, resolve_loss
from unisono.predict.finished_run import PREFIXES, WEIGHTS, FinishedRun, read_json
from unisono.predict.intervals import Predictions, paired_bootstrap
from unisono.predict.same_samples import other_preparation

COUNTED = re.compile(r"accuracy|top_[0-9]+_accuracy")
"""Metrics that are shares of samples, where a sample has one label."""
DIRECTIONS = "higher_is_better"
"""In a summary: name of a metric -> whether higher is better; None where the run does not know it."""
ROUNDING = 1e-5


@dataclass(frozen=True)
class Measured:
    """A metric by its full name, e.g. best_val_accuracy: the quantity, the part of the data, and the weights. Methods are local."""

    name: str
    short: str
    """The name of the quantity, e.g. accuracy."""
    split: str | None
    which: str | None
    """The weights; None for those that count in each run."""
    higher_is_better: bool
    averages: Mapping[str, str]
    """How the runs average it, where its name does not say it."""
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, runs: Sequence[FinishedRun], higher_is_better: bool | None, averages: Mapping[str, str]) -> Measured:
        """Makes it from the full name of a metric and, where it is given, its direction; refuses one whose direction is unknown."""
        which, split, short = parts_of(name)
        higher, notes = (higher_is_better, ()) if higher_is_better is not None else _direction(name, short, runs)
        return cls(name, short, split, which, higher, averages, notes)

    def num_samples(self, run: FinishedRun) -> int | None:
        """The number of samples on which it was measured."""
        found: Mapping[str, int] = run.summary["split"]["num_samples"]
        return None if self.split is None else found.get(self.split)

    def hits(self, run: FinishedRun, value: float) -> int | None:
        """Number of correct samples; None where the value is no share of samples: each counts by its weight, or has several
        labels or places, which are not independent of each other."""
        total = self.num_samples(run)
        if self.split is None or not total or COUNTED.fullmatch(self.short) is None:
            return None
        known, ignored = run.samples(self.split), run.config["settings"]["loss_options"].get("ignore_label")
        if ignored is not None or (known is not None and (known["has_weights"] or not _has_one_label(known["target_shape"], run))):
            return None
        number = round(value * total)
        return number if abs(number - value * total) < 1e-6 else None

    def needs_predictions(self, run: FinishedRun) -> bool:
        """Whether saved predictions would give its difference between two runs."""
        return self.split is not None and _own_metric(self.short, run, self.averages) is not None

    def difference(
        self, run: FinishedRun, best: FinishedRun, values: Mapping[str, float]
    ) -> tuple[tuple[float, float] | None, str]:
        """Blocking: the interval of the difference to the best run, by saved predictions; or None and why there is none, empty
        where predictions were not saved. `values`: those that are shown."""
        if self.split is None or not self.needs_predictions(run):
            return None, ""
        pair = [(one, self._predictions(one)) for one in (run, best)]
        if any(found is None for _, found in pair):
            return None, ""
        read = []
        for one, found in pair:
            assert found is not None
            metric = _own_metric(self.short, one, self.averages)
            assert metric is not None
            now, recorded = _recomputed(metric, found[0]), self._recorded(one, values)
            if now is None or not math.isclose(now, recorded, rel_tol=ROUNDING, abs_tol=ROUNDING):
                return None, (
                    f"no difference between {run.path} and {best.path}: {self.name} of {one.path} is {recorded:.6g}, but computed "
                    f"from its saved predictions {'it has no value' if now is None else f'{now:.6g}'}, as its model, loss or data "
                    "read outputs in a way of their own, which the run does not record"
                )
            read.append((metric, found))
        (metric, (mine, my_order)), (_, (theirs, their_order)) = read
        if (my_order and their_order and my_order != their_order) or not _same(mine.targets, theirs.targets):
            return None, (
                f"no difference between {run.path} and {best.path}: their saved predictions are in another order, or of other "
                "targets, so they are no pairs"
            )
        if other_preparation(run.samples(self.split), best.samples(self.split)):
            return None, f"no difference between {run.path} and {best.path}: that their samples are the same is not known"
        return paired_bootstrap(metric, mine, theirs), ""

    def _predictions(self, run: FinishedRun) -> tuple[Predictions, str] | None:
        """Returns the predictions that an evaluation with these weights on these samples has saved, and the hash of their order,
        empty where it is not known; None without."""
        assert self.split is not None
        if not (file := run.predictions(self.split, self.which or run.weights_that_count)).is_file():
            return None
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            if not run.is_current(self.which or run.weights_that_count, arrays):
                return None
            return Predictions.of(arrays), str(arrays["order"]) if "order" in arrays else ""

    def _recorded(self, run: FinishedRun, values: Mapping[str, float]) -> float:
        """Returns the value of the evaluation that has saved the predictions, else the one that is shown."""
        assert self.split is not None
        which = self.which or run.weights_that_count
        file = run.evaluation(self.split, which)
        evaluated = read_json(file) if file.is_file() else {}
        found = (
            evaluated["metrics"].get(PREFIXES[self.split] + self.short) if evaluated and run.is_current(which, evaluated) else None
        )
        return values[str(run.path)] if found is None else float(found)


def parts_of(name: str) -> tuple[str | None, str | None, str]:
    """Pure: the weights (None: those that count in each run), the part of the data and the name of the metric itself in its full
    name, e.g. 'best_val_accuracy'."""
    which = next((one for one in WEIGHTS if name.startswith(f"{one}_")), None)
    rest = name if which is None else name[len(which) + 1 :]
    split = next((split for split, prefix in PREFIXES.items() if rest.startswith(prefix)), None)
    return which, split, rest if split is None else rest[len(PREFIXES[split]) :]


def _direction(name: str, short: str, runs: Sequence[FinishedRun]) -> tuple[bool, tuple[str, ...]]:
    """Returns whether higher is better, as the runs have recorded it, and notes; refuses where they do not know it or disagree."""
    recorded = [run.summary[DIRECTIONS].get(short) for run in runs if DIRECTIONS in run.summary]
    known = {one for one in recorded if one is not None}
    if len(known) == 1:
        return known.pop(), ()
    remedy = f"say it: --metric {name}:min where lower is better, or {name}:max"
    if known:
        raise UsageError(f"{name} is better when higher in some of these runs and when lower in others; {remedy}")
    if short == "loss":
        return False, ()
    ours = _own_metric(short, runs[0], {})
    if ours is not None and ours.higher_is_better is not None:
        return ours.higher_is_better, ()
    if recorded:
        raise UsageError(f"whether higher values of {name} are better is not known, so runs cannot be ranked by it; {remedy}")
    note = f"whether higher values of {name} are better was not recorded by the version that trained these runs, so it is assumed"
    return True, (f"{note}; {remedy}",)


def _own_metric(short: str, run: FinishedRun, averages: Mapping[str, str]) -> Metric | None:
    """Returns the metric of ours with this name, as a run reads outputs and targets; None for the loss and a user's own."""
    try:
        return resolve_metrics([short], _reading_of(run), averages)[0]
    except UsageError:
        return None


def _reading_of(run: FinishedRun) -> Reading:
    """Returns how the loss of a run reads outputs and targets; an earlier version has not recorded it."""
    if "reading" in run.summary:
        return Reading(**run.summary["reading"])
    try:
        return resolve_loss(run.config["settings"]["loss"], run.config["settings"]["loss_options"]).reading
    except UsageError:  # a function of the task, or none
        return Reading()


def _has_one_label(shape: Sequence[int] | None, run: FinishedRun) -> bool:
    """Whether targets of this shape are one decision for each sample."""
    return shape is not None and (math.prod(shape) == 1 or (len(shape) == 1 and _reading_of(run).one_hot is True))


def _recomputed(metric: Metric, found: Predictions) -> float | None:
    """Returns the metric of saved predictions; None where it cannot be computed of such outputs and targets."""
    try:
        return found.value(metric, torch.ones(len(found.targets), dtype=torch.float64))
    except UsageError:
        return None


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two arrays of targets are equal, row by row."""
    is_exact = not (one.is_floating_point() or other.is_floating_point())
    return one.shape == other.shape and np.array_equal(one.numpy(), other.numpy(), equal_nan=not is_exact)
