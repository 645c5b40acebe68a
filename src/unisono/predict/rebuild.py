"""Rebuilds from a run directory the task with its settings, its data, and the model with the trained weights."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unisono.data.data_differences import PART_NAMES, describe_changed_values, values_of
from unisono.data.fingerprint import fingerprints
from unisono.data.fitted_inputs import as_fitted_to
from unisono.data.fold_data import apply_division
from unisono.data.source import Source
from unisono.data.splits import Splits
from unisono.data.streamed_reads import splits_with_streams, with_streams
from unisono.errors import UsageError
from unisono.files.hashes import sha256_of
from unisono.model.flat import hash_of
from unisono.model.torch.adapter import TorchAdapter, trainable
from unisono.predict.finished_run import FinishedRun
from unisono.task.overrides import FACTORIES, OPTION_FIELDS, PLAIN, ResolvedTask, change
from unisono.task.task import Task
from unisono.task.task_file import load_task
from unisono.training.evaluation import evaluation_batch
from unisono.training.frontends.base import frontend_of
from unisono.training.frontends.factories import make_model, make_splits
from unisono.training.frontends.try_out import first_outputs
from unisono.training.run_folder.run_record import as_plain
from unisono.training.run_folder.weights import initialise


def rebuild_task(run: FinishedRun, task_file: str | None = None, accept_changes: bool = False) -> ResolvedTask:
    """Local: rebuilds the task as it was trained, from its file and the settings of the run. `task_file` is where that file is
    now."""
    file = Path(task_file) if task_file is not None else _task_file(run)
    altered = list(_changed_sources(run, file))
    if altered and not accept_changes:
        raise UsageError(
            f"the task of {run.path} has changed since it was trained: {'; '.join(altered)}. Restore it (git), "
            "or use it as it is now with --accept-changes"
        )
    task = load_task(str(file))
    return replace(change(task, dict(_recorded_changes(task, run.config))), division=run.config.get("division"))


def rebuild_splits(run: FinishedRun, changed: ResolvedTask, accept_changes: bool = False) -> Splits:
    """Local, blocking for one read of the labels: rebuilds the data of the task; refuses data that are divided differently now."""
    whole = make_splits(replace(changed, division=None))
    splits = splits_with_streams(apply_division(whole, changed.division))
    if not accept_changes and (found := describe_changed_data(run, splits)):
        raise UsageError(f"{found}; restore them, or use them as they are now with --accept-changes")
    held_out = as_fitted_to(splits.train, whole.test) if splits.test is None else None
    return splits if held_out is None else _with_test(splits, with_streams(held_out))


def describe_changed_data(run: FinishedRun, splits: Splits, part: str | None = None) -> str:
    """Local, blocking for reads of some samples: says how data differ from those of the training; empty where they do not. `part`:
    the only one whose values matter."""
    recorded = run.summary["split"]
    if not splits.is_recorded_as(recorded["sha256"]):
        now = {name: len(one) for name, one in splits.parts().items()}
        counts = "" if now == recorded["num_samples"] else f" ({_counts(recorded['num_samples'])} then, {_counts(now)} now)"
        return f"the data of {run.path} are not those of its training, or are divided differently{counts}"
    then = _recorded_values(run, splits)
    checked = {name: one for name, one in splits.parts().items() if name in then and part in (None, name)}
    found = describe_changed_values({name: then[name] for name in checked}, values_of(fingerprints(checked)))
    return f"the values of {' and '.join(found)} are not those of the training of {run.path}" if found else ""


def describe_unchecked_data(run: FinishedRun, splits: Splits, part: str) -> str:
    """Pure: says what cannot be checked of a part of the data, as an earlier version trained the run; empty where all is."""
    if part in _recorded_values(run, splits):
        return ""
    return (
        f"{run.path} has recorded no values of its {PART_NAMES[part]} data, as an earlier version trained it: that they are the "
        "same is known from their number, sizes, division and labels alone"
    )


def split_hash(run: FinishedRun, splits: Splits) -> str:
    """Pure: the hash of the splits; that which the run has recorded, if an earlier version computed it of the same."""
    recorded = str(run.summary["split"]["sha256"])
    return recorded if splits.is_recorded_as(recorded) else splits.sha256()


def _recorded_values(run: FinishedRun, splits: Splits) -> Mapping[str, Any]:
    """Returns the sums of the values of each part that the run has recorded; none of versions that recorded none, or of other
    samples of a torch data set."""
    recorded = run.summary["split"]["sha256"]
    is_earlier = recorded != splits.sha256() and splits.is_recorded_as(recorded)
    return {} if is_earlier else run.config.get("samples", {}).get("values") or {}


def _with_test(splits: Splits, test: Source) -> Splits:
    """Local: adds to a fold the test data that no fold of a search sees."""
    return Splits(splits.train, splits.validation, test, splits.how, splits.seed, splits.num_dropped, splits.warnings)


def rebuild_model(
    run: FinishedRun, changed: ResolvedTask, which: str, device: torch.device, samples: Source, what: str
) -> tuple[nn.Module, Any, str]:
    """Local, blocking: rebuilds the trained model; returns it, its outputs for the first of `samples` (`what` in messages), and
    the sha256 of its weights. Refuses weights that are not those that the run wrote."""
    file = run.weights(which)
    model = make_model(changed, device)
    first_outputs(model, samples, device, what)  # gives lazy modules their shapes, which the weights need
    initialise(model, file, place=f"the task of {run.path}")
    sha256, written = hash_of(model.state_dict()), run.sha256(which)
    if sha256 != written:
        raise UsageError(
            f"{file} does not hold the weights that this run wrote (their sha256 is {sha256[:12]}, but summary.json says "
            f"{'none' if written is None else written[:12]}); copy the file again, or train again"
        )
    return model, first_outputs(model, samples, device, what), sha256


def make_adapter(changed: ResolvedTask, model: nn.Module, device: torch.device) -> TorchAdapter:
    """Local: makes an adapter of a model that is evaluated and never trained."""
    body = frontend_of(changed.task, model).body(with_outputs=True)
    return TorchAdapter(model, body, {"": trainable(model)}, device, _own_buffer(device), precision=changed.task.precision)


def batch_of(run: FinishedRun) -> int:
    """Pure: samples of one batch, a number that the validation of the training could hold. It does not depend on the number of
    workers now, so that the same samples meet in a batch, and the last bits of an output are the same."""
    return evaluation_batch(run.config["settings"]["global_batch"], run.config["num_workers"])


def _own_buffer(device: torch.device) -> Any:
    """Returns a function that makes buffers in memory of this process alone."""
    return lambda numel, dtype: torch.empty(numel, dtype=dtype, device=device)


def _task_file(run: FinishedRun) -> Path:
    """Returns the path of a run's task file, where it was or as it was typed; refuses a run without one."""
    asked = run.config["task_file"]
    if asked is None:
        raise UsageError(
            f"the task of {run.path} came from a notebook or script, not from a file; write it to a file, and give that with --task"
        )
    places = (Path(run.summary["provenance"]["task"]["file"]), Path(asked))
    for place in places:
        if place.is_file():
            return place
    raise UsageError(f"the task file of {run.path} is not there any more ({places[0]}); restore it, or give its path with --task")


def _changed_sources(run: FinishedRun, file: Path) -> Iterator[str]:
    """Describes what differs between the source files of the training and those that are there now."""
    then = run.summary["provenance"]["task"]
    if then.get("file") is None or not file.is_file():
        return  # a missing file is reported when it is loaded
    expected = {file.name: then["sha256"], **then["imports"]}
    for name, sha256 in expected.items():
        now = file.parent / name
        if not now.is_file():
            yield f"{name} is gone"
        elif sha256_of(now) != sha256:
            yield f"{name} (sha256 {sha256[:12]} then, {sha256_of(now)[:12]} now)"


def _recorded_changes(task: Task, config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The settings, as for --set, in which the run differs from its task file."""
    for what in FACTORIES:
        defaults = {name: one.default for name, one in inspect.signature(getattr(task, what)).parameters.items()}
        for name, value in config[what].items():
            if name not in defaults or as_plain(defaults[name]) != value:
                yield f"{what}.{name}", _restore_tuples(value, defaults.get(name))
    settings = config["settings"]
    for head, field in OPTION_FIELDS.items():
        there = getattr(task, field)
        for name, value in settings[field].items():
            if name not in there or as_plain(there[name]) != value:
                yield f"{head}.{name}", _restore_tuples(value, there.get(name))
    recorded = {"data_seed": None, **settings}  # as older versions did not seed the generators for `data`
    for name in PLAIN:
        if name in recorded and as_plain(getattr(task, name)) != recorded[name]:
            yield name, _restore_tuples(recorded[name], getattr(task, name))


def _restore_tuples(value: Any, like: Any) -> Any:
    """Converts lists from JSON back to tuples where the default is one."""
    return tuple(value) if isinstance(value, list) and not isinstance(like, list) else value


def _counts(num_samples: Mapping[str, int]) -> str:
    """Returns the numbers of samples in words: '100 train, 20 validation'."""
    return ", ".join(f"{number} {name}" for name, number in num_samples.items())
