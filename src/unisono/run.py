"""The only wiring: a configuration and a communicator become a training, and a training a run directory."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Any

import torch

from unisono.cluster.deadline import of_this_process
from unisono.cluster.resolve import is_restarted, slurm_job
from unisono.cluster.stop_request import StopRequest
from unisono.comm.base import Communicator
from unisono.comm.together import together
from unisono.config import TrainConfig
from unisono.errors import AlreadyTold, CannotWrite, TrainingFailed
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
from unisono.training.background import BackgroundWriter
from unisono.training.checkpoint import Checkpoints, Loaded, Snapshot
from unisono.training.clock import Clock
from unisono.training.progress import FINISHED, INTERRUPTED, NOT_FINITE
from unisono.training.provenance import sources_of
from unisono.training.run_directory import RunDirectory, as_json, differences
from unisono.training.run_record import evaluation_batch, made_by, record_of, summary_of, weights_of
from unisono.training.saving import Best, Every, Saving
from unisono.training.state import Restored, State, share_state
from unisono.training.status import Status
from unisono.training.status import read as read_status
from unisono.training.trainer import Trainer, lr_of
from unisono.training.weights import initialise, save_weights

STOPPED_CODE = 75
"""Of a process that stopped in time with everything saved, as sysexits.h calls it: try again later."""


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
        stop = held.enter_context(StopRequest())  # to the end: what was reached is written whatever comes
        job = together(comm, lambda: _prepare(config, comm, spans, task))
        place = together(comm, lambda: _open(config, job) if comm.rank == 0 else None)
        if place is not None:
            held.callback(place.directory.close)
        out = Path(comm.broadcast_object(None if place is None else str(place.directory.path)))
        summary = comm.broadcast_object(None if place is None else as_json(place.finished))
        if summary is not None:
            if screen is not None and comm.rank == 0:
                more = "; more --epochs would go on" if summary["reason"] == FINISHED else ""
                print(f"{out} is finished ({summary['reason']} after {summary['epochs']} epochs){more}")
            return Ended(out, summary, comm.rank)
        observers = together(comm, lambda: _observers(config, comm, place, out, screen))
        for observer in observers:
            held.callback(observer.close)
        return _live(config, comm, job, place, out, observers, spans, began, stop)


@dataclass(frozen=True)
class _Job:
    """One rank's training, ready to begin."""

    changed: Changed
    parts: Assembled
    record: Mapping[str, Any]
    """The configuration as it is written down."""
    notes: Sequence[str]
    every: Every


@dataclass(frozen=True)
class _Place:
    """Where rank 0 writes, and what is there already."""

    directory: RunDirectory
    record: Mapping[str, Any]
    made_by: Mapping[str, Any]
    """Of the task as it is now: it may be edited meanwhile."""
    checkpoints: Checkpoints
    loaded: Loaded | None
    """The state to go on from."""
    finished: Mapping[str, Any] | None
    """The summary of a run that is over."""
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
    return _Job(changed, parts, record_of(config, changed, comm.size), notes, Every.parse(str(config.checkpoint_every)))


def _open(config: TrainConfig, job: _Job) -> _Place:
    made = made_by(config, job.parts.task)
    record = {**job.record, "sources": sources_of(made["provenance"]["task"])}
    directory = RunDirectory.open(
        config.out,
        job.changed.task.name,
        record,
        fresh=config.fresh and not is_restarted(),  # the second life goes on with what the first began afresh
        accept_changes=config.accept_changes,
    )
    try:
        checkpoints = Checkpoints(directory.checkpoints, config.keep)
        finished = None if directory.changes else _finished(directory, job.changed.task.epochs)
        loaded = None if finished is not None else checkpoints.newest()
        notes = [f"warning: {one}; the one before is used" for one in loaded.damaged] if loaded is not None else []
        notes += [f"accepted change: {one}" for one in directory.changes]
        if loaded is not None:
            notes += _other_bits(loaded.made_by, made["versions"], int(job.record["num_workers"]))
        elif directory.metrics.exists() and finished is None:
            notes.append("this run ended before its first checkpoint; it starts from the beginning")
    except BaseException:
        directory.close()
        raise
    return _Place(directory, record, made, checkpoints, loaded, finished, notes)


def _other_bits(before: Mapping[str, Any], versions: Mapping[str, str], num_workers: int) -> list[str]:
    """Local: what makes the end of a run the same only to rounding. A package that one life did not load is not compared."""
    there = {"workers": before["num_workers"], "threads of each worker": before["threads"], **before["versions"]}
    here = {"workers": num_workers, "threads of each worker": torch.get_num_threads(), **versions}
    common = [name for name in there if name in here]
    found = differences({name: there[name] for name in common}, {name: here[name] for name in common})
    return [f"warning: {one}; the end will be the same only to rounding" for one in found]


def _finished(directory: RunDirectory, num_epochs: int) -> Mapping[str, Any] | None:
    """Local: the summary of a run that is over. One that was killed while it wrote its results is not: the status comes last."""
    status = read_status(directory.status)
    if status is None or status["state"] != "finished" or not directory.summary.exists():
        return None
    summary: dict[str, Any] = json.loads(directory.summary.read_text())
    over = summary["reason"] not in (INTERRUPTED, NOT_FINITE)
    return summary if over and (summary["reason"] != FINISHED or summary["epochs"] >= num_epochs) else None


def _observers(config: TrainConfig, comm: Communicator, place: _Place | None, out: Path, screen: Screen | None) -> list[Observer]:
    found: list[Observer] = []
    if place is not None:
        console = None if screen is None else Console(sys.stdout, screen.columns, screen.colour)
        if console is not None:
            found.append(console)
        warn = _to_standard_error if console is None else console.say
        found.append(JsonLines(place.directory.metrics, config.log_every, warn))
        if config.tensorboard:
            found.append(TensorBoard(place.directory.path / "tensorboard", config.log_every))
    if config.monitor:
        found.append(Monitor(out / "monitor", rank=comm.rank))
    return found


def _to_standard_error(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _live(
    config: TrainConfig,
    comm: Communicator,
    job: _Job,
    place: _Place | None,
    out: Path,
    observers: list[Observer],
    spans: Spans | None,
    began: float,
    stop: StopRequest,
) -> Ended:
    """Collective, blocking: one life of the run, whose beginning and end are in status.json."""

    def say(text: str) -> None:
        for observer in observers:
            observer.say(text)
        if not any(isinstance(observer, Console) for observer in observers):  # quiet is no reason to hide that a save failed
            _to_standard_error(text)

    state = together(comm, lambda: None if place is None or place.loaded is None else _state_of(place.loaded.snapshot))
    state = share_state(comm, state)
    saving = Saving(comm, job.parts.adapter, job.parts.algorithm, job.every, None, Best(), say, spans)
    trainer = _trainer(comm, job, observers, stop, saving, place is not None, spans)
    if state is not None:
        trainer.go_on_from(Restored(state))
    if place is None:
        ended = _train(config, comm, job, None, out, trainer, began, stop, ())
        comm.barrier()
        return ended
    if place.loaded is not None and place.loaded.snapshot.best is not None:
        saving.best.weights, saving.best.step = dict(place.loaded.snapshot.best), int(place.loaded.snapshot.best_version or 0)
    deadline = of_this_process(config.time_limit_s)
    about = {"config": place.record, "num_workers": comm.size, "threads": torch.get_num_threads(), **place.made_by}
    saving.writer = BackgroundWriter(place.checkpoints, about)
    trainer.told_to_stop = lambda: deadline.asks(stop)
    trainer.no_time_to_evaluate = lambda: not deadline.fits_evaluation()
    status = Status(place.directory.status, say)
    done = trainer.progress
    num_steps = job.changed.task.epochs * job.parts.loader.plan.steps_per_epoch
    status.begin(done.step, done.epoch, num_steps, comm.size, slurm_job())
    observers.append(Clock(deadline, status, saving.writer))
    try:
        notes = [text for text in (*place.notes, deadline.note, deadline.describe()) if text]
        ended = _train(config, comm, job, place, out, trainer, began, stop, notes)
    except CannotWrite as error:  # a mistake before the training, a failure after it
        status.end("failed", 1, str(error), done.step, done.epoch)
        raise TrainingFailed(str(error)) from error
    except BaseException as error:
        status.end("failed", 1, f"{type(error).__name__}: {error}", done.step, done.epoch)
        raise
    finally:
        saving.writer.close()
    is_stopped = ended.summary["reason"] == INTERRUPTED
    status.end(
        "stopped" if is_stopped else "finished", STOPPED_CODE if is_stopped else 0, ended.summary["reason"], done.step, done.epoch
    )
    comm.barrier()  # a launcher may end the others as soon as the first has left with a code that is not 0
    return ended


def _state_of(snapshot: Snapshot) -> State:
    return dict(snapshot.progress), dict(snapshot.tensors)


def _trainer(
    comm: Communicator,
    job: _Job,
    observers: Sequence[Observer],
    stop: StopRequest,
    saving: Saving,
    keeps_best: bool,
    spans: Spans | None,
) -> Trainer:
    task, parts = job.changed.task, job.parts

    def keep_best() -> None:
        if keeps_best:
            saving.best.step = trainer.progress.step
            saving.best.weights = {name: one.detach().cpu().clone() for name, one in weights_of(parts.adapter.model).items()}

    trainer = Trainer(
        comm,
        parts.adapter,
        parts.algorithm,
        parts.loader,
        parts.splits.validation,
        parts.metrics,
        parts.followed,
        parts.settings,
        parts.goals,
        observers,
        task.seed,
        evaluation_batch(task.global_batch, comm.size),
        stop.asked,
        keep_best,
        spans,
        saving=saving,
    )
    return trainer


def _train(
    config: TrainConfig,
    comm: Communicator,
    job: _Job,
    place: _Place | None,
    out: Path,
    trainer: Trainer,
    began: float,
    stop: StopRequest,
    notes: Sequence[str],
) -> Ended:
    task, parts, adapter, observers = job.changed.task, job.parts, job.parts.adapter, trainer.observers
    plan, spans, saving = parts.loader.plan, trainer.spans, trainer.saving
    assert saving is not None
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
        first_step=trainer.progress.step,
        first_epoch=trainer.progress.epoch,
        monitor=parts.goals.monitor,
        target=(parts.goals.monitor, parts.goals.target) if parts.goals.monitor and parts.goals.target is not None else None,
    )
    for observer in observers:
        observer.started(started)
        for note in (*job.notes, *notes):
            observer.say(note)
    done = trainer.run()
    test: Mapping[str, float] = {}
    if parts.splits.test is not None and done.reason not in (INTERRUPTED, NOT_FINITE):
        found = trainer.look_at(parts.splits.test, "test_")
        if found is None:  # all is saved but the test, which the next life makes
            done.reason = INTERRUPTED
        else:
            test = found
    state = weights_of(adapter.model)
    hashes = comm.allgather_object(hash_of(state))
    monitors = comm.allgather_object([observer.summary() for observer in observers if isinstance(observer, Monitor)])
    summary: dict[str, Any] = {}
    if place is not None:
        began_saving = perf_counter_ns()
        sha256 = save_weights(place.directory.weights, state, task=task.name, step=done.step)
        if saving.best.weights:
            save_weights(place.directory.best, saving.best.weights, task=task.name, step=saving.best.step)
        if spans is not None:
            spans.add("save", "weights", began_saving, perf_counter_ns())
        summary = {
            **summary_of(parts, trainer, test, comm, began),
            "algorithm": job.record["algorithm"],
            "weights_sha256": sha256,
            "replicas_equal": len(set(hashes)) == 1,
            **({"monitor": [rows[0] for rows in monitors]} if config.monitor else {}),
            "config": place.record,
            "accepted_changes": list(place.directory.changes),
            **place.made_by,
        }
        if len(set(hashes)) > 1:
            for observer in observers:
                observer.say("warning: the workers hold different weights or buffers; those of rank 0 are saved")
    if spans is not None:
        gathered = gather_spans(comm, spans)
        if place is not None and gathered is not None:
            write_timeline(place.directory.timeline, gathered)
    failure = saving.finish()
    if place is not None:
        place.directory.write_json("summary.json", summary)
        steps = [row for row in read_lines(place.directory.metrics) if row["event"] == "step"]
        draw_curves(done.history, place.directory.curves, task.name, steps, started.target)
    summary = comm.broadcast_object(as_json(summary))
    for observer in observers:
        if done.reason == INTERRUPTED and stop.why() is not None:
            observer.say(f"told to stop ({stop.why()}); the same command goes on from step {done.step}")
        observer.ended(RunEnded(summary, done.reason))
    if failure := comm.broadcast_object(done.failure or (failure and f"the last checkpoint is not saved: {failure}") or ""):
        if comm.rank:
            raise AlreadyTold(1)
        raise TrainingFailed(f"{failure} (what was reached is in {out})")
    return Ended(out, summary, comm.rank)
