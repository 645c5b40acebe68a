"""The records of a run: its configuration, its summary, and what made it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from unisono.algorithms.base import find_algorithm
from unisono.task.averages import OF_OUTPUTS, Averages, averages_record
from unisono.task.overrides import ResolvedTask
from unisono.task.task import BEST, Task
from unisono.task.train_config import TrainConfig
from unisono.training.progress import with_prefix
from unisono.training.run_folder.provenance import provenance
from unisono.training.shard_rules import SHARDED
from unisono.training.trainer_base import TrainerBase

ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""The address in the text of an object, which differs between processes."""


def record_of(config: TrainConfig, resolved: ResolvedTask, size: int, averages: Averages = OF_OUTPUTS) -> dict[str, Any]:
    """Returns the configuration of a run in plain values, as config.json holds it. Whether two runs are the same is told by all of
    it but `task_file` and `num_workers`."""
    task = resolved.task
    threads = {} if task.shards is None else {"threads": torch.get_num_threads()}  # they decide the bits of a training in shards
    who: dict[str, Any] = {"group": config.group} if config.group is not None and config.group > 1 else {}
    if config.elastic is not None:
        who["elastic"] = config.elastic
    if config.simulate is not None:  # its clock decides the order of calls
        who["simulate"] = {"workers": config.simulate, **resolved.simulate}
    settings = {
        name: as_plain(getattr(task, name)) for name in Task.__dataclass_fields__ if name not in ("model", "data", "name", "space")
    }
    if task.weights is None:
        del settings["weights"]  # as in runs of earlier versions, whose record stays as it is
    if task.compile != "on":  # what "auto" has decided; older runs have no such setting
        del settings["compile"]
    if task.data_seed is None:  # as in the records of older versions, which seeded nothing for `data`
        del settings["data_seed"]
    return {
        "task": task.name,
        "task_file": config.task_file or None,
        "model": {name: as_plain(value) for name, value in resolved.model.items()},
        "data": {name: as_plain(value) for name, value in resolved.data.items()},
        "settings": settings,
        "algorithm": {**_algorithm_record(config.algorithm if task.shards is None else SHARDED, resolved.algorithm), **who},
        "init_from": config.init_from,
        **({} if config.division is None else {"division": dict(config.division)}),
        "num_workers": size,
        **averages_record(task.metrics, averages),
        "on_nan": config.on_nan,
        **threads,
    }


def _algorithm_record(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The name of an algorithm and its options, as they would have been recorded before a default changed."""
    kind = find_algorithm(name)
    options = kind.Options(**given)
    changed = {option: value for option, older in kind.older_defaults.items() if (value := getattr(options, option)) != older}
    return {"name": name, **{option: value for option, value in given.items() if option not in kind.older_defaults}, **changed}


def as_plain(value: Any) -> Any:
    """Pure: the value in a form that JSON can hold: tuples become lists, keys text, a partial a dict, functions and classes their
    names, and anything else its repr without addresses."""
    if isinstance(value, Mapping):
        return {str(name): as_plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_plain(part) for part in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, partial):
        return {"partial": as_plain(value.func), "arguments": as_plain(value.args), "keywords": as_plain(value.keywords)}
    return getattr(value, "__qualname__", None) or ADDRESS.sub("", repr(value))


def summary_of(trainer: TrainerBase, test: Mapping[str, float], began: float) -> dict[str, Any]:
    """Local: the summary of a training; `began` is its start by `time.perf_counter`."""
    parts, task, done = trainer.parts, trainer.parts.task, trainer.progress
    weights = done.weights_that_count
    found = {**done.metrics, **trainer.unfinished}
    if weights == BEST:
        assert done.best_epoch is not None
        found = {**found, **with_prefix("final_", found), **done.history[done.best_epoch]["metrics"]}
    return {
        "name": task.name,
        "reason": done.reason,
        "metrics": {**found, **test},
        "weights": weights,
        "monitor_metric": parts.goals.monitor,
        "higher_is_better": {"loss": False} | {name.removeprefix("val_"): one for name, one in parts.comparable_metrics.items()},
        "reading": asdict(parts.reading),
        "best_epoch": done.best_epoch,
        "num_workers": parts.algorithm.num_workers,
        **({"num_servers": parts.algorithm.num_servers} if parts.algorithm.num_servers else {}),
        "global_batch": task.global_batch,
        "epochs": done.epoch,
        "steps": done.step,
        "num_samples": done.num_samples,
        "num_skipped_updates": done.num_skipped,
        **parts.algorithm.summary(),
        "samples_per_s": done.num_samples / done.train_s if done.train_s else None,
        "wall_s": done.wall_s + perf_counter() - began,
        "train_s": done.train_s,
        "data_wait_s": done.data_wait_s,
        **({"time_to_target_s": done.time_to_target_s, "target": parts.goals.target} if parts.goals.target is not None else {}),
        "engine": trainer.comm.engine,
        "device": str(parts.adapter.device),
        **({"gpu": _gpu_record(trainer)} if parts.adapter.device.type == "cuda" else {}),
        "threads": torch.get_num_threads(),
        "num_parameters": parts.adapter.num_parameters,
        "split": parts.splits.record(),
        "data": {name: dict(part.describe()) for name, part in parts.splits.parts().items()},
        "history": done.history,
    }


def _gpu_record(trainer: TrainerBase) -> dict[str, Any]:
    """How a training was computed on a GPU."""
    parts = trainer.parts
    return {
        "precision": parts.task.precision,
        "compiled": parts.task.compile == "on",
        "captured": parts.adapter.is_captured,
        "resident": [name for name, part in parts.resident.parts.items() if not part.reads],
        "notes": [*parts.notes, *trainer.gpu_notes],
    }


def made_by(config: TrainConfig, task: Task) -> dict[str, Any]:
    """Local, blocking for some tens of milliseconds: the versions and the provenance of a run."""
    if not config.task_file:
        found = provenance(None, {"model": task.model, "data": task.data}, config.command)
    else:
        found = provenance(Path(config.task_file), None, config.command)
    return {"versions": found.pop("versions"), "provenance": found}
