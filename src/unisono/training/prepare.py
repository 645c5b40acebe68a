"""Prepares one rank's training from its configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unisono.algorithms.roles import LayoutOptions
from unisono.cluster.machine.worker_threads import set_threads
from unisono.comm.base import Communicator
from unisono.data.streamed_reads import describe_unrepeatable_augment
from unisono.errors import UsageError
from unisono.events import Spans
from unisono.launch.this_process import prepare_cublas
from unisono.model.packed import pack
from unisono.optim.scaling import growth_note
from unisono.task.overrides import ResolvedTask, change
from unisono.task.task import BEST, Task
from unisono.task.task_file import load_task
from unisono.task.train_config import TrainConfig
from unisono.training import determinism
from unisono.training.batch_norms import accumulate_note, batch_note
from unisono.training.checkpointing.saving import SaveInterval
from unisono.training.frontends.assemble import assemble
from unisono.training.frontends.device import compute_device
from unisono.training.run_folder.run_record import record_of
from unisono.training.shard_rules import lonely_note, refuse_unrepeatable, shard_note
from unisono.training.trainer_base import shown_lr
from unisono.training.training_parts import AssemblyOptions, EarlierAttempt, TrainingParts
from unisono.training.work_layout import count_parts


@dataclass(frozen=True)
class Job:
    """One rank's training, ready to begin."""

    parts: TrainingParts
    record: Mapping[str, Any]
    """The configuration as it is recorded in the run directory."""
    notes: Sequence[str]
    save_interval: SaveInterval


def without_goals(resolved: ResolvedTask, names_epochs: bool) -> tuple[ResolvedTask, list[str]]:
    """Pure: the task without monitor, target, patience and best weights, if the training uses all data (but for validation data of
    another source), and a note on these. Refuses a task that ends by them, unless somebody has said how many epochs it trains
    (`names_epochs`)."""
    if resolved.division is None or resolved.division["fold"] is not None:
        return resolved, []
    task = resolved.task
    ends = [f"{name} {getattr(task, name)}" for name in ("patience", "target") if getattr(task, name) is not None]
    if ends and not names_epochs:
        raise UsageError(
            f"the task ends its training by validation data ({', '.join(ends)}), by which --all-data does not end; give the number "
            "of epochs (--epochs)"
        )
    goals = [*ends, *([] if task.monitor is None else [f"monitor {task.monitor}"]), *(["weights best"] * (task.weights == BEST))]
    note = f"with --all-data or --from-study {', '.join(goals)} of the task has no effect; it trains {task.epochs} epochs"
    task = replace(task, monitor=None, target=None, patience=None, weights=None)
    return replace(resolved, task=task), [note] * bool(goals)


def prepare(
    config: TrainConfig,
    comm: Communicator,
    spans: Spans | None,
    task: Task | None,
    earlier: EarlierAttempt,
) -> Job:
    """Local, blocking: makes all parts of one rank's training; mistakes in the configuration are reported here."""
    task = load_task(config.task_file) if task is None else task
    changes = dict(config.changes)
    if "interval" in task.schedule_options and changes.get("schedule.interval", "") is None:
        del changes["schedule.interval"]  # that of an earlier attempt stands only in the place of a default
    resolved = change(task, changes)
    resolved, goal_notes = without_goals(replace(resolved, division=config.division), "epochs" in config.changes)
    layout = LayoutOptions(config.group, config.servers, config.simulate, config.elastic)
    if resolved.task.shards is not None:
        set_threads(config.threads or 1)  # another number gives other bits, so it must not depend on the machine
        prepare_cublas()
        if config.local_batch is not None:
            raise UsageError(
                "--local-batch makes the batch depend on the number of workers, which --shards excludes; use --global-batch"
            )
    if config.local_batch is not None:
        num_workers = count_parts(resolved, config.algorithm, comm.size, layout)
        resolved = replace(resolved, task=replace(resolved.task, global_batch=config.local_batch * num_workers))
    if not resolved.task.name:
        resolved = replace(resolved, task=replace(resolved.task, name=Path(config.task_file).stem or "task"))
    options = AssemblyOptions(
        layout=layout,
        device=config.device,
        capture=config.capture,
        compiled=earlier.compiled,
        resident=config.resident,
        on_nan=config.on_nan,
        replay=_recorded_calls(config),
        spans=spans,
        averages=earlier.averages if config.averages is None else config.averages,
        init_from=None if config.init_from is None or earlier.resumes else Path(config.init_from),
    )
    with ExitStack() as held:
        if resolved.task.shards is not None:
            held.enter_context(determinism.enforce(compute_device(config.device, comm, in_shards=True)))
        parts = assemble(resolved, config.algorithm, comm, options)
    task = parts.task
    record = record_of(config, replace(resolved, task=task), comm.size, parts.averages)
    if config.replay is not None:
        from unisono.training.server.replay_check import check_same_experiment

        check_same_experiment(Path(config.replay), record)
    if config.hash_every is not None and parts.algorithm.has_server:
        raise UsageError(
            f"--hash-every has no effect with --algorithm {config.algorithm}, whose weights change with every call; leave it out"
        )
    pack(parts.adapter.state(), {}, "state")  # a state that cannot be saved is refused before work is done
    notes = [*goal_notes, *(f"warning: {text}" for text in parts.splits.warnings)]
    model, in_shards, can_shard = parts.adapter.model, task.shards is not None, config.algorithm == "allreduce"
    found = (
        parts.schedule_note,
        *parts.notes,
        shard_note(task),
        lonely_note(task, model, len(parts.splits.train)),
        batch_note(model, parts.num_learning, in_shards, can_shard),
        accumulate_note(model, task.accumulate),
    )
    notes += [note for note in found if note]
    if task.augment is not None and (unrepeatable := describe_unrepeatable_augment(task.augment, parts.splits.train)):
        refuse_unrepeatable([unrepeatable] if in_shards else [])
        notes.append(f"warning: {unrepeatable}")
    if config.local_batch is not None:
        notes.append(growth_note(config.local_batch, num_workers, len(parts.splits.train), shown_lr(parts.settings(0))))
    return Job(parts, record, notes, SaveInterval.parse(str(config.checkpoint_every)))


def _recorded_calls(config: TrainConfig) -> Sequence[str] | None:
    """Local: the recorded order of calls of the run that is to be repeated; None without --replay."""
    if config.replay is None:
        return None
    from unisono.algorithms.server.call_record import read_call_record

    return read_call_record(Path(config.replay))
