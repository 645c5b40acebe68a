"""Opens the directory to which a run writes, with the checkpoint that an earlier attempt has left there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unisono.algorithms.base import find_algorithm, known_algorithms
from unisono.cluster.resolve import launch_id
from unisono.data.data_differences import Fingerprint, samples_record, values_of
from unisono.data.splits import Splits
from unisono.files.step_folders import StepFolders
from unisono.optim.curves import SCHEDULES
from unisono.task.averages import recorded_averages
from unisono.task.train_config import TrainConfig
from unisono.training import determinism
from unisono.training.batch_norms import effect_of_device, effect_of_workers
from unisono.training.checkpointing.checkpoint import Checkpoints, CheckpointStore
from unisono.training.progress import FINISHED, INTERRUPTED, NOT_FINITE
from unisono.training.run_folder.provenance import sources_of
from unisono.training.run_folder.run_directory import CHECKPOINTS, RunDirectory, differences
from unisono.training.run_folder.run_record import made_by
from unisono.training.run_folder.run_status import read as read_status
from unisono.training.training_parts import EarlierAttempt, TrainingParts


@dataclass(frozen=True)
class RunOutput:
    """The open run directory of rank 0, with what was found in it."""

    directory: RunDirectory
    record: Mapping[str, Any]
    """The configuration, with the hashes of the task and its data."""
    made_by: Mapping[str, Any]
    """Versions and provenance of the task as it is now: its file may be edited later."""
    store: CheckpointStore
    finished: Mapping[str, Any] | None
    """The summary of a run that is over."""
    samples: Mapping[str, Fingerprint]
    """The fingerprint of each part of the data."""
    notes: Sequence[str]

    def about(self, mixed: Sequence[str]) -> dict[str, Any]:
        """Pure: the entries of the summary that say what made the run; `mixed` says why its workers round differently."""
        promise = self.store.made_by["promise"]
        return {
            "config": self.record,
            "promise": None if promise is None else {**promise, "mixed": list(mixed)},
            "accepted_changes": list(self.directory.changes),
            "samples": samples_record(self.samples),
            **self.made_by,
        }


def has_checkpoint(config: TrainConfig) -> bool:
    """Local, on rank 0: whether there is a checkpoint to resume from, so that initial weights are not needed."""
    if config.out is None or config.fresh or not (Path(config.out) / CHECKPOINTS).is_dir():
        return False
    return bool(StepFolders(Path(config.out) / CHECKPOINTS).list_steps())


def _earlier_samples(config: TrainConfig, splits: Splits) -> dict[str, Any]:
    """Returns what the run in the directory recorded of its data where an earlier version did, which took the samples of a Subset
    of torch for a data set of their own; {} for others."""
    there = _record_there(config).get("samples") or {}
    if there.get("sha256", splits.sha256()) == splits.sha256() or not splits.is_recorded_as(there["sha256"]):
        return {}
    return {name: there[name] for name in ("sha256", "values") if name in there}


def _record_there(config: TrainConfig) -> Mapping[str, Any]:
    """Returns the configuration of the run in the directory; {} where there is none, or where it cannot be read, which is reported
    when the directory is opened."""
    path = None if config.out is None or config.fresh else Path(config.out) / "config.json"
    if path is None or not path.is_file():
        return {}
    try:
        found: Mapping[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found


def earlier_attempt(config: TrainConfig) -> EarlierAttempt:
    """Local, on rank 0: what the directory says of the run that is resumed."""
    return EarlierAttempt(has_checkpoint(config), older_settings(config), averages_there(config), compiled_there(config))


def averages_there(config: TrainConfig) -> dict[str, str]:
    """Local, on rank 0: how the metrics of the run in the directory average whose names do not say it; {} where there is none."""
    there = _record_there(config)
    return dict(recorded_averages(there)) if there else {}


def compiled_there(config: TrainConfig) -> str | None:
    """Local, on rank 0: whether the model of the run in the directory was compiled, "on" or "off"; None where there is none."""
    there = _record_there(config)
    return there.get("settings", {}).get("compile", "off") if there else None


def older_settings(config: TrainConfig) -> dict[str, Any]:
    """Local, on rank 0: settings whose default was another when the run to be resumed or repeated was begun, as they were then."""
    there = None if config.replay is None else Path(config.replay)  # a run, or the record of one
    runs = [
        there if there is None or there.is_dir() else there.parent,
        None if config.fresh or config.out is None else Path(config.out),
    ]
    for file in (run / "config.json" for run in runs if run is not None):
        if file.is_file():
            try:
                record = json.loads(file.read_text())
            except ValueError:
                return {}  # reported where the run is opened
            settings = record.get("settings", {"data_seed": 0})
            unseeded = settings.get("data_seed") is None  # generators were not seeded for `data`
            return {
                **({"data_seed": None} if unseeded else {}),
                **_older_interval(settings),
                **_older_options(record.get("algorithm", {})),
            }
    return {}


def _older_interval(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Pure: the interval of a torch scheduler that a record leaves out: one step after every step, whatever the class."""
    schedule, options = settings.get("schedule"), settings.get("schedule_options") or {}
    is_by_name = schedule is None or schedule in SCHEDULES
    return {} if is_by_name or "interval" in options else {"schedule.interval": None}


def _older_options(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Pure: the options of an algorithm that a record leaves out."""
    kind = find_algorithm(recorded["name"]) if recorded.get("name") in known_algorithms() else None
    older = {} if kind is None else kind.older_defaults
    return {f"algorithm.{name}": value for name, value in older.items() if name not in recorded}


def open_run_output(
    config: TrainConfig, parts: TrainingParts, record: Mapping[str, Any], fingerprints: Mapping[str, Fingerprint], engine: str
) -> RunOutput:
    """Local, blocking, on rank 0: opens or makes the run directory, and reads what is there. The caller closes `directory`."""
    made = made_by(config, parts.task)
    split = parts.splits.record()
    earlier = _earlier_samples(config, parts.splits)
    samples = {"num_samples": split["num_samples"], "sha256": split["sha256"], "values": values_of(fingerprints), **earlier}
    record = {**record, "samples": samples, "sources": sources_of(made["provenance"]["task"])}
    about = {
        "config": record,
        "num_workers": record["num_workers"],
        "threads": torch.get_num_threads(),
        "engine": engine,
        "device": parts.adapter.device.type,
        "promise": None if parts.task.shards is None else determinism.conditions(parts.adapter.device),
        **made,
    }
    directory = RunDirectory.open(
        config.out,
        parts.task.name,
        record,
        fresh=config.fresh,
        accept_changes=config.accept_changes,
        launch=launch_id(),
    )
    try:
        checkpoints = Checkpoints(directory.checkpoints, config.keep)
        finished = None if directory.changes else _read_finished(directory, parts.task.epochs)
        loaded = None if finished is not None else checkpoints.newest()
        notes = [f"warning: {one}; the checkpoint before it is used" for one in loaded.damaged] if loaded is not None else []
        notes += [f"accepted change: {one}" for one in directory.changes]
        notes += [
            "warning: which samples of its data set each part has was not recorded by the version that began this run"
        ] * bool(earlier)
        if loaded is not None:
            notes += [
                f"warning: {one}; the result will {_effect_on_result(one, parts)}"
                for one in _changed_conditions(loaded.made_by, about)
            ]
        elif directory.metrics.exists() and finished is None:
            notes.append("this run ended before its first checkpoint; it starts from the beginning")
    except BaseException:
        directory.close()
        raise
    return RunOutput(directory, record, made, CheckpointStore(checkpoints, about, loaded), finished, fingerprints, notes)


def _changed_conditions(before: Mapping[str, Any], now: Mapping[str, Any]) -> Sequence[str]:
    """Pure: the changes since an earlier attempt after which the result has other bits, at least. A package that one attempt did
    not load is not compared."""
    if now["promise"] is not None and before["promise"] is not None:
        return determinism.describe_changes(before["promise"], now["promise"])
    there, here = (
        {
            "processes": about["num_workers"],
            "threads of each worker": about["threads"],
            "engine": about["engine"],
            "device": about["device"],
            **about["versions"],
        }
        for about in (before, now)
    )
    common = [name for name in there if name in here]
    return list(differences({name: there[name] for name in common}, {name: here[name] for name in common}))


def _effect_on_result(difference: str, parts: TrainingParts) -> str:
    """Pure: what a change since an earlier attempt means for the result of a run."""
    if parts.algorithm.depends_on_call_order:
        return "differ in any case, as it depends on the order of calls"
    model, in_shards = parts.adapter.model, parts.task.shards is not None
    if difference.startswith("device "):
        return effect_of_device(model)
    if difference.startswith("processes ") and not in_shards:
        return "differ, as workers learn by themselves" if parts.algorithm.has_own_replicas else effect_of_workers(model)
    return "be the same only up to rounding"


def _read_finished(directory: RunDirectory, num_epochs: int) -> Mapping[str, Any] | None:
    """Local: the summary of a run that is over; None if it is not. A run that was killed while it wrote its results is not over,
    as the status is written last."""
    status = read_status(directory.status)
    if status is None or status["state"] != "finished" or not directory.summary.exists():
        return None
    summary: dict[str, Any] = json.loads(directory.summary.read_text())
    over = summary["reason"] not in (INTERRUPTED, NOT_FINITE)
    return summary if over and (summary["reason"] != FINISHED or summary["epochs"] >= num_epochs) else None
