"""From what was asked for to one rank's training, ready to begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unisono.algorithms.base import find_algorithm
from unisono.cluster.launch import prepare_cublas
from unisono.cluster.threads import set_threads
from unisono.comm.base import Communicator
from unisono.config import TrainConfig
from unisono.errors import UsageError
from unisono.events import Spans
from unisono.model.packed import pack
from unisono.optim.scaling import growth_note
from unisono.overrides import Changed, change
from unisono.task import Task
from unisono.taskfile import load_task
from unisono.training import promise
from unisono.training.assemble import Assembled, assemble
from unisono.training.central.algorithm import Central
from unisono.training.central.arrivals import read_arrivals
from unisono.training.central.assemble import count_workers
from unisono.training.central.division import Asked
from unisono.training.central.repeated import check_same_experiment
from unisono.training.device import compute_device
from unisono.training.run_record import record_of
from unisono.training.saving import Every
from unisono.training.shard_rules import lonely_note, shard_note
from unisono.training.trainer import lr_of
from unisono.training.weights import initialise


@dataclass(frozen=True)
class Job:
    """One rank's training, ready to begin."""

    changed: Changed
    parts: Assembled
    record: Mapping[str, Any]
    """The configuration as it is written down."""
    notes: Sequence[str]
    every: Every


def without_judging(changed: Changed) -> Changed:
    """Pure: a training on all data has nothing to judge its epochs by, whatever the task says."""
    if changed.division is None or changed.division["fold"] is not None:
        return changed
    return replace(changed, task=replace(changed.task, monitor=None, target=None, patience=None))


def prepare(config: TrainConfig, comm: Communicator, spans: Spans | None, task: Task | None, restores: bool) -> Job:
    """Local, blocking: all that can be wrong is told here. `restores`: a state will be loaded, so no first weights are needed."""
    asked = Asked(config.group, config.servers, config.simulate, config.elastic)
    changed = change(load_task(config.task_file) if task is None else task, config.changes)
    changed = without_judging(replace(changed, division=config.division))
    if changed.task.shards is not None:
        set_threads(config.threads or 1)  # another number gives other bits, so it must not depend on the machine
        prepare_cublas()
    if config.local_batch is not None and changed.task.shards is not None:
        raise UsageError(
            "--local-batch makes the batch depend on the number of workers, which --shards excludes; use --global-batch"
        )
    if config.local_batch is not None:
        kind = find_algorithm(config.algorithm)
        num_workers = count_workers(kind, comm.size, asked)
        changed = replace(changed, task=replace(changed.task, global_batch=config.local_batch * num_workers))
    if not changed.task.name:
        changed = replace(changed, task=replace(changed.task, name=Path(config.task_file).stem or "task"))
    replay = None if config.replay is None else read_arrivals(Path(config.replay))
    with ExitStack() as promised:
        if changed.task.shards is not None:
            promised.enter_context(promise.kept(compute_device(config.device, comm, in_shards=True)))
        parts = assemble(
            changed,
            config.algorithm,
            comm,
            config.on_nan,
            spans,
            config.device,
            asked,
            replay,
        )
    changed = replace(changed, task=parts.task)
    record = record_of(config, changed, comm.size)
    if config.replay is not None:
        check_same_experiment(Path(config.replay), record)
    if config.hash_every is not None and isinstance(parts.algorithm, Central):
        raise UsageError(
            f"--hash-every is read by nobody with --algorithm {parts.algorithm.name}, whose weights change with every call; "
            "leave it out"
        )
    if config.init_from is not None and not restores:
        initialise(parts.adapter.model, Path(config.init_from))
    pack(parts.adapter.state(), {}, "state")  # what cannot be kept is said before work is done
    notes = [f"warning: {text}" for text in parts.splits.warnings]
    lonely = lonely_note(changed.task, parts.adapter.model, len(parts.splits.train))
    notes += [note for note in (shard_note(changed.task), lonely) if note]
    if config.local_batch is not None:
        notes.append(growth_note(config.local_batch, num_workers, len(parts.splits.train), lr_of(parts.settings(0))))
    return Job(changed, parts, record, notes, Every.parse(str(config.checkpoint_every)))
