"""The inputs of each model of an ensemble: every run prepares them as its own data, and all runs give the same names to their
classes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from unisono.data.splits import Splits
from unisono.data.streamed_reads import with_streams
from unisono.errors import UsageError
from unisono.predict.apply_inputs import Inputs, class_names, file_inputs, split_inputs
from unisono.predict.finished_run import FinishedRun
from unisono.predict.predict_options import ApplyConfig
from unisono.predict.rebuild import rebuild_splits
from unisono.predict.same_samples import other_samples
from unisono.task.overrides import ResolvedTask
from unisono.training.frontends.factories import make_splits


def inputs_of_runs(
    config: ApplyConfig, runs: Sequence[FinishedRun], tasks: Sequence[ResolvedTask]
) -> tuple[list[Inputs], tuple[str, ...]]:
    """Local, blocking: the inputs of each run, the same object where the data of runs are prepared alike, and the names of the
    classes. Refuses runs that have no common samples, and names that differ."""
    if not config.inputs:
        _refuse_other_samples(config, runs, tasks)
    made: dict[str, tuple[Inputs, tuple[str, ...]]] = {}
    found = []
    for run, changed in zip(runs, tasks, strict=True):
        is_ready = config.as_is and bool(config.inputs)
        key = "" if is_ready else _preparation(run)
        if key not in made:
            splits = None if is_ready else _splits_of(config, run, changed)
            own = (
                file_inputs(config.inputs, config.options, splits)
                if splits is None or config.inputs
                else split_inputs(splits, config.split)
            )
            made[key] = replace(own, source=with_streams(own.source)), () if splits is None else class_names(splits)
        inputs, names = made[key]
        found.append((run, inputs, names or _recorded_names(run)))
    _refuse_other_names([(run, names) for run, _, names in found])
    return [inputs for _, inputs, _ in found], next((names for _, names in made.values() if names), ())


def _preparation(run: FinishedRun) -> str:
    """Returns all that decides how the data of a run are prepared, as a text."""
    task, settings, config = run.summary["provenance"]["task"], run.config["settings"], run.config
    code = [task.get("sha256"), task.get("imports"), task.get("sources")]
    parts = [
        config["data"],
        settings.get("data_seed"),
        config.get("division"),
        run.summary["split"]["sha256"],
        config.get("samples"),
    ]
    return json.dumps([code, parts], sort_keys=True)


def _splits_of(config: ApplyConfig, run: FinishedRun, changed: ResolvedTask) -> Splits:
    """Rebuilds the data of a run; for INPUTS only their form is needed, not their samples."""
    if not config.inputs:
        return rebuild_splits(run, changed, config.accept_changes)
    try:
        return rebuild_splits(run, changed, accept_changes=True)
    except UsageError as error:
        raise UsageError(
            f"{error} (inputs are prepared as in the data of the task; if yours are ready for the model, use --as-is)"
        ) from error


def _refuse_other_samples(config: ApplyConfig, runs: Sequence[FinishedRun], tasks: Sequence[ResolvedTask]) -> None:
    """Refuses runs that divide their data differently, or hold other samples."""
    found = {run.summary["split"]["sha256"] for run in runs}
    if config.split == "test" and all(run.config.get("division", {}).get("held_out") for run in runs):
        found = {make_splits(replace(changed, division=None)).sha256() for changed in tasks}  # folds of one search share it
    if len(found) > 1:
        listed = ", ".join(f"{run.path} ({run.summary['split']['sha256'][:12]})" for run in runs)
        raise UsageError(f"these runs divide their data differently, so they have no common --split: {listed}; give INPUTS")
    for run in runs[1:]:
        if other := other_samples(runs[0].samples(config.split), run.samples(config.split)):
            raise UsageError(
                f"{runs[0].path} and {run.path} hold other samples, so they have no common --split: the values of {other} of the "
                f"{config.split} data differ; give INPUTS"
            )


def _recorded_names(run: FinishedRun) -> tuple[str, ...]:
    """Returns the names of the classes that the training has recorded; empty where classes have none."""
    found = run.summary.get("data", {}).get("train", {}).get("classes", ())
    return tuple(found) if isinstance(found, list) else ()


def _refuse_other_names(named: Sequence[tuple[FinishedRun, tuple[str, ...]]]) -> None:
    """Refuses runs whose classes have different names, or another order; those without names are not compared."""
    known = [(run, names) for run, names in named if names]
    for run, names in known[1:]:
        first, theirs = known[0]
        if names == theirs:
            continue
        number = next((place for place, pair in enumerate(zip(theirs, names, strict=False)) if pair[0] != pair[1]), None)
        how = (
            f"{len(theirs)} classes and {len(names)}"
            if number is None
            else f"class {number} is {theirs[number]!r} and {names[number]!r}"
        )
        raise UsageError(
            f"{first.path} and {run.path} cannot be averaged, as their classes differ: {how}; apply each alone, or train both with "
            "the same classes=, in the same order"
        )
