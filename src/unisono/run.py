"""The only wiring: a configuration and a communicator become a training, and a training a run directory."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Any

import torch
from torch import nn

from unisono.cluster.stop_request import StopRequest
from unisono.comm.base import Communicator
from unisono.comm.together import together
from unisono.config import TrainConfig
from unisono.errors import AlreadyTold, TrainingFailed
from unisono.events import Observer, RunEnded, RunStarted, Spans
from unisono.model.flat import hash_of
from unisono.observe.console import Console
from unisono.observe.jsonl import JsonLines, read_lines
from unisono.observe.monitor import Monitor
from unisono.observe.plots import draw_curves
from unisono.observe.tensorboard import TensorBoard
from unisono.observe.timeline import gather_spans, write_timeline
from unisono.optim.scaling import growth_note
from unisono.overrides import Changed, change
from unisono.task import Task
from unisono.taskfile import load_task
from unisono.training.assemble import Assembled, assemble
from unisono.training.evaluation import evaluate
from unisono.training.provenance import provenance
from unisono.training.run_directory import RunDirectory, as_json
from unisono.training.trainer import Progress, Trainer, lr_of
from unisono.training.weights import initialise, save_weights


@dataclass(frozen=True)
class Screen:
    """Where people look while it runs."""

    columns: int | None = None
    """Width of the terminal; None where it is none."""
    colour: bool = False


@dataclass(frozen=True)
class Ended:
    """A run that is over: where its results are, and its summary."""

    out: Path
    summary: Mapping[str, Any]
    rank: int = 0
    """Of the process that says so; all have the same summary."""


def execute(config: TrainConfig, comm: Communicator, screen: Screen | None = None, task: Task | None = None) -> Ended:
    """Collective, blocking: one training, from the task to the summary. Without a screen it is silent. `task` stands for the one of
    the task file.

    One rank raises what is wrong, the others `AlreadyTold`: a mistake that is seen before work starts, or `TrainingFailed` for a
    loss that is not finite; what was reached is written before that. The first Ctrl-C or SIGTERM ends it after the step in hand,
    as "interrupted", the second ends the process."""
    began = perf_counter()
    spans = Spans() if config.timeline else None
    with ExitStack() as held:
        job = together(comm, lambda: _prepare(config, comm, spans, task))
        directory = together(comm, lambda: _open(config, job) if comm.rank == 0 else None)
        if directory is not None:
            held.callback(directory.close)
        out = Path(comm.broadcast_object(None if directory is None else str(directory.path)))
        observers = together(comm, lambda: _observers(config, comm, directory, out, screen))
        for observer in observers:
            held.callback(observer.close)
        with StopRequest() as stop:  # to the end: what was reached is written whatever comes
            return _train(config, comm, job, directory, out, observers, spans, began, stop)


@dataclass
class _Best:
    """The best weights so far, in host memory."""

    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    step: int = 0


@dataclass(frozen=True)
class _Job:
    """One rank's training, ready to begin."""

    changed: Changed
    parts: Assembled
    record: Mapping[str, Any]
    """The configuration as it is written down."""
    notes: Sequence[str]


def _prepare(config: TrainConfig, comm: Communicator, spans: Spans | None, task: Task | None) -> _Job:
    changed = change(load_task(config.task_file) if task is None else task, config.changes)
    if config.local_batch is not None:
        changed = replace(changed, task=replace(changed.task, global_batch=config.local_batch * comm.size))
    if not changed.task.name:
        changed = replace(changed, task=replace(changed.task, name=Path(config.task_file).stem or "task"))
    parts = assemble(changed, config.algorithm, comm, config.on_nan, spans)
    changed = replace(changed, task=parts.task)
    if config.init_from is not None:
        initialise(parts.adapter.model, Path(config.init_from))
    notes = [f"warning: {text}" for text in parts.splits.warnings]
    if config.local_batch is not None:
        notes.append(growth_note(config.local_batch, comm.size, len(parts.splits.train), lr_of(parts.settings(0))))
    return _Job(changed, parts, _record(config, changed, comm.size), notes)


def _open(config: TrainConfig, job: _Job) -> RunDirectory:
    return RunDirectory.open(config.out, job.changed.task.name, job.record)


def _observers(
    config: TrainConfig, comm: Communicator, directory: RunDirectory | None, out: Path, screen: Screen | None
) -> list[Observer]:
    found: list[Observer] = []
    if directory is not None:
        if screen is not None:
            found.append(Console(sys.stdout, screen.columns, screen.colour))
        found.append(JsonLines(directory.metrics, config.log_every))
        if config.tensorboard:
            found.append(TensorBoard(directory.path / "tensorboard", config.log_every))
    if config.monitor:
        found.append(Monitor(out / "monitor", rank=comm.rank))
    return found


def _train(
    config: TrainConfig,
    comm: Communicator,
    job: _Job,
    directory: RunDirectory | None,
    out: Path,
    observers: Sequence[Observer],
    spans: Spans | None,
    began: float,
    stop: StopRequest,
) -> Ended:
    task, parts, adapter = job.changed.task, job.parts, job.parts.adapter
    plan = parts.loader.plan
    made_by = _made_by(config, job) if directory is not None else {}  # of the task as it is now: it may be edited meanwhile
    started = RunStarted(
        name=task.name,
        out=str(out),
        num_workers=comm.size,
        rank=comm.rank,
        engine=comm.engine,
        device=str(comm.device),
        global_batch=task.global_batch,
        num_epochs=task.epochs,
        steps_per_epoch=plan.steps_per_epoch,
        num_samples=plan.num_samples,
        num_parameters=adapter.num_parameters,
        monitor=parts.goals.monitor,
        target=(parts.goals.monitor, parts.goals.target) if parts.goals.monitor and parts.goals.target is not None else None,
    )
    for observer in observers:
        observer.started(started)
        for note in job.notes:
            observer.say(note)
    best = _Best()

    def keep_best() -> None:
        if directory is not None:
            best.step = trainer.progress.step
            best.weights = {name: tensor.detach().cpu().clone() for name, tensor in weights_of(adapter.model).items()}

    batch = evaluation_batch(task.global_batch, comm.size)
    trainer = Trainer(
        comm,
        adapter,
        parts.algorithm,
        parts.loader,
        parts.splits.validation,
        parts.metrics,
        parts.followed,
        parts.settings,
        parts.goals,
        observers,
        task.seed,
        batch,
        stop.asked,
        keep_best,
        spans,
    )
    done = trainer.run()
    test = {}
    if parts.splits.test is not None and done.reason not in ("interrupted", "not finite"):
        test = evaluate(comm, adapter, parts.splits.test, parts.metrics, batch, "test_", trainer.tell_evaluating)
    state = weights_of(adapter.model)
    hashes = comm.allgather_object(hash_of(state))
    monitors = comm.allgather_object([observer.summary() for observer in observers if isinstance(observer, Monitor)])
    summary: dict[str, Any] = {}
    if directory is not None:
        saving = perf_counter_ns()
        sha256 = save_weights(directory.weights, state, task=task.name, step=done.step)
        if best.weights:
            save_weights(directory.best, best.weights, task=task.name, step=best.step)
        if spans is not None:
            spans.add("save", "weights", saving, perf_counter_ns())
        summary = {
            **_summary(job, done, test, comm, began),
            "weights_sha256": sha256,
            "replicas_equal": len(set(hashes)) == 1,
            **({"monitor": [rows[0] for rows in monitors]} if config.monitor else {}),
            **made_by,
        }
        if len(set(hashes)) > 1:
            for observer in observers:
                observer.say("warning: the workers hold different weights or buffers; those of rank 0 are saved")
    if spans is not None:
        gathered = gather_spans(comm, spans)
        if directory is not None and gathered is not None:
            write_timeline(directory.timeline, gathered)
    if directory is not None:
        directory.write_json("summary.json", summary)
        steps = [row for row in read_lines(directory.metrics) if row["event"] == "step"]
        draw_curves(done.history, directory.curves, task.name, steps, started.target)
    summary = comm.broadcast_object(_plain(summary))
    for observer in observers:
        observer.ended(RunEnded(summary, done.reason))
    if done.failure:
        if comm.rank:
            raise AlreadyTold(1)
        raise TrainingFailed(f"{done.failure} (what was reached is in {out})")
    return Ended(out, summary, comm.rank)


def evaluation_batch(global_batch: int, size: int) -> int:
    """Pure: samples of one worker in a step without gradients, which needs less memory than one with them."""
    return max(64, 2 * -(-global_batch // size))


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Local: what is saved of a model and compared between workers; a module may keep other things in its state."""
    return {name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}


def _record(config: TrainConfig, changed: Changed, size: int) -> dict[str, Any]:
    """The configuration in plain values: what must be the same for two runs to be the same experiment."""
    task = changed.task
    settings = {name: shown(getattr(task, name)) for name in Task.__dataclass_fields__ if name not in ("model", "data", "name")}
    return {
        "task": task.name,
        "task_file": config.task_file or None,
        "model": {name: shown(value) for name, value in changed.model.items()},
        "data": {name: shown(value) for name, value in changed.data.items()},
        "settings": settings,
        "algorithm": {"name": config.algorithm, **changed.algorithm},
        "init_from": config.init_from,
        "num_workers": size,
        "on_nan": config.on_nan,
    }


def shown(value: Any) -> Any:
    """Pure: a value as JSON can hold it; functions by their names."""
    if isinstance(value, Mapping):
        return {str(name): shown(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown(part) for part in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return getattr(value, "__qualname__", None) or repr(value)


def _summary(job: _Job, done: Progress, test: Mapping[str, float], comm: Communicator, began: float) -> dict[str, Any]:
    parts, task = job.parts, job.changed.task
    last = done.history[-1]["metrics"] if done.history else {}
    best = done.history[done.best_epoch]["metrics"] if done.best_epoch is not None else {}
    return {
        "name": task.name,
        "reason": done.reason,
        "metrics": {**last, **test, **{f"best_{name}": value for name, value in best.items() if name.startswith("val_")}},
        "monitor_metric": parts.goals.monitor,
        "best_epoch": done.best_epoch,
        "num_workers": comm.size,
        "global_batch": task.global_batch,
        "epochs": done.epoch,
        "steps": done.step,
        "num_skipped_updates": done.num_skipped,
        "samples_per_s": done.num_samples / done.train_s if done.train_s else None,
        "wall_s": perf_counter() - began,
        "train_s": done.train_s,
        "data_wait_s": done.data_wait_s,
        **({"time_to_target_s": done.time_to_target_s, "target": parts.goals.target} if parts.goals.target is not None else {}),
        "engine": comm.engine,
        "device": str(comm.device),
        "threads": torch.get_num_threads(),
        "algorithm": job.record["algorithm"],
        "num_parameters": parts.adapter.num_parameters,
        "split": parts.splits.record(),
        "data": {name: dict(part.describe()) for name, part in parts.splits.parts().items()},
        "config": job.record,
        "history": done.history,
    }


def _made_by(config: TrainConfig, job: _Job) -> dict[str, Any]:
    task = job.changed.task
    if not config.task_file:
        found = provenance(None, {"model": task.model, "data": task.data}, config.command)
    else:
        found = provenance(Path(config.task_file), None, config.command)
    return {"versions": found.pop("versions"), "provenance": found}


def _plain(value: Any) -> Any:
    """As the control plane carries it: no types but those of JSON."""
    return as_json(value)
