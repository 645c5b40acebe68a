"""The only wiring: a configuration and a communicator become a training, and a training a run directory."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Any

import torch

from unisono.cluster.deadline import Deadline, of_this_process
from unisono.cluster.resolve import slurm_job
from unisono.cluster.stop_request import StopRequest
from unisono.comm.base import Communicator
from unisono.comm.together import together
from unisono.config import TrainConfig
from unisono.errors import AlreadyTold, CannotWrite, TrainingFailed, UsageError
from unisono.events import Observer, RunEnded, RunStarted, Spans
from unisono.model.flat import hash_of
from unisono.observe.console import Console
from unisono.observe.jsonl import JsonLines, read_lines
from unisono.observe.monitor import Monitor
from unisono.observe.plots import draw_curves
from unisono.observe.tensorboard import TensorBoard
from unisono.observe.timeline import gather_spans, write_timeline
from unisono.task import Task
from unisono.training import promise
from unisono.training.background import BackgroundWriter
from unisono.training.central.algorithm import Central
from unisono.training.central.arrivals import FILE as ARRIVALS
from unisono.training.central.joining import write_invitation
from unisono.training.central.trainer import CentralTrainer
from unisono.training.checkpoint import Snapshot
from unisono.training.clock import Clock
from unisono.training.hashes import FILE as HASHES
from unisono.training.hashes import FIRST, FIRST_BYTES, HashRecord, short_hash
from unisono.training.job import Job, prepare
from unisono.training.place import Place, goes_on, open_place
from unisono.training.progress import FINISHED, INTERRUPTED, NOT_FINITE
from unisono.training.run_directory import as_json
from unisono.training.run_record import evaluation_batch, summary_of, weights_of
from unisono.training.saving import Best, Saving
from unisono.training.state import Restored, share_state
from unisono.training.status import Status
from unisono.training.trainer import Trainer
from unisono.training.weights import save_weights
from unisono.training.worker_states import State

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


@dataclass(frozen=True)
class Steering:
    """One of many trainings that somebody compares while they run."""

    goes_on: Callable[[int, Mapping[str, float]], bool]
    """As `Trainer.goes_on`."""


def execute(
    config: TrainConfig,
    comm: Communicator,
    screen: Screen | None = None,
    task: Task | None = None,
    steering: Steering | None = None,
) -> Ended:
    """Collective, blocking: one training, from the task to the summary. Without a screen it is silent. `task` stands for the one of
    the task file. With `steering` it may end early, and no curves are drawn.

    One rank raises what is wrong, the others `AlreadyTold`: a mistake that is seen before work starts, or `TrainingFailed` for a
    loss that is not finite; what was reached is written before that. The first Ctrl-C or SIGTERM ends it after the step in hand,
    as "interrupted", the second ends the process."""
    began = perf_counter()
    spans = Spans() if config.timeline else None
    with ExitStack() as held:
        stop = held.enter_context(StopRequest())  # to the end: what was reached is written whatever comes
        held.callback(torch.set_num_threads, torch.get_num_threads())  # which shards may change
        restores = comm.broadcast_object(together(comm, lambda: comm.rank == 0 and goes_on(config)))
        job = together(comm, lambda: prepare(config, comm, spans, task, restores))
        if job.parts.task.shards is not None:
            held.enter_context(promise.kept(job.parts.adapter.device))
        place = together(comm, lambda: open_place(config, job.parts, job.record, comm.engine) if comm.rank == 0 else None)
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
        return _live(config, comm, job, place, out, observers, spans, began, stop, steering)


def _observers(config: TrainConfig, comm: Communicator, place: Place | None, out: Path, screen: Screen | None) -> list[Observer]:
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
    job: Job,
    place: Place | None,
    out: Path,
    observers: list[Observer],
    spans: Spans | None,
    began: float,
    stop: StopRequest,
    steering: Steering | None,
) -> Ended:
    """Collective, blocking: one life of the run, whose beginning and end are in status.json."""

    def say(text: str) -> None:
        for observer in observers:
            observer.say(text)
        if not any(isinstance(observer, Console) for observer in observers):  # quiet is no reason to hide that a save failed
            _to_standard_error(text)

    state = together(comm, lambda: None if place is None or place.loaded is None else _state_of(place.loaded.snapshot))
    state = share_state(comm, state, job.parts.algorithm)
    saving = Saving(job.parts.algorithm.comm, job.parts.adapter, job.parts.algorithm, job.every, None, Best(), say, spans)
    trainer = _trainer(comm, job, observers, stop, saving, place is not None, spans, config.max_steps)
    trainer.goes_on = None if steering is None else steering.goes_on
    lived = Restored(state) if state is not None else None
    notes = [] if lived is None else together(comm, lambda: trainer.go_on_from(lived))
    mixed = _mixed(comm, job.parts.adapter.device) if job.parts.task.shards is not None else []
    if place is None:
        ended = _train(config, comm, job, None, out, trainer, began, stop, ())
        comm.barrier()
        return ended
    if place.loaded is not None and place.loaded.snapshot.best is not None:
        saving.best.weights, saving.best.step = dict(place.loaded.snapshot.best), int(place.loaded.snapshot.best_version or 0)
    if place.directory.changes:
        place.directory.write_json("config.json", place.record)
    # Who steers many trainings knows when the time is over, and tells them; each asking the scheduler would be a crowd.
    deadline = of_this_process(config.time_limit_s) if steering is None else Deadline(None, 0.0)
    saving.writer = BackgroundWriter(place.checkpoints, place.about)
    trainer.told_to_stop = lambda: deadline.asks(stop)
    if isinstance(trainer, CentralTrainer):
        trainer.arrivals = place.directory.path / ARRIVALS
        trainer.silence_s = config.silence_s
        if config.comes_and_goes:
            trainer.host = config.host or trainer.host
            write_invitation(place.directory.path, config)
    is_small = sum(one.nbytes for one in weights_of(job.parts.adapter.model).values()) <= FIRST_BYTES
    num_first = FIRST if job.parts.task.shards is not None and is_small else 0
    if config.hash_every is not None or num_first:
        hashes = HashRecord(place.directory.path / HASHES, config.hash_every, job.parts.adapter.model, num_first)
        trainer.after_step = hashes.after_step
    trainer.no_time_to_evaluate = lambda: not deadline.fits_evaluation(stop=stop)
    status = Status(place.directory.status, say)
    done = trainer.progress
    num_steps = job.changed.task.epochs * job.parts.loader.plan.steps_per_epoch
    status.begin(done.step, done.epoch, num_steps, job.parts.algorithm.num_workers, slurm_job())
    observers.append(Clock(deadline, status, saving))
    try:
        notes = [text for text in (*place.notes, *notes, *mixed, deadline.note, deadline.describe()) if text]
        ended = _train(config, comm, job, place, out, trainer, began, stop, notes, mixed)
    except CannotWrite as error:  # a mistake before the training, a failure after it
        status.end("failed", 1, str(error), done.step, done.epoch)
        raise TrainingFailed(str(error)) from error
    except BaseException as error:
        status.end("failed", _code_of(error), f"{type(error).__name__}: {error}", done.step, done.epoch)
        raise
    finally:
        saving.writer.close()
    is_stopped = ended.summary["reason"] == INTERRUPTED
    status.end(
        "stopped" if is_stopped else "finished", STOPPED_CODE if is_stopped else 0, ended.summary["reason"], done.step, done.epoch
    )
    comm.barrier()  # a launcher may end the others as soon as the first has left with a code that is not 0
    return ended


def _mixed(comm: Communicator, device: torch.device) -> list[str]:
    """Collective: what makes workers round differently, e.g. CPUs of several generations."""
    first, *others = comm.allgather_object(promise.conditions(device))
    found = [f"rank {rank}: {one}" for rank, other in enumerate(others, 1) for one in promise.broken_by(first, other)]
    return [f"warning: {one} (there: rank 0); with another number of workers the bits may differ" for one in found]


def _code_of(error: BaseException) -> int:
    """Pure: with which code the process ends of it."""
    if isinstance(error, AlreadyTold):
        return error.code
    return 2 if isinstance(error, UsageError) else 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1


def _state_of(snapshot: Snapshot) -> State:
    return dict(snapshot.progress), dict(snapshot.tensors)


def _trainer(
    comm: Communicator,
    job: Job,
    observers: Sequence[Observer],
    stop: StopRequest,
    saving: Saving,
    keeps_best: bool,
    spans: Spans | None,
    max_steps: int | None,
) -> Trainer:
    task, parts = job.changed.task, job.parts

    def keep_best() -> None:
        if keeps_best:
            saving.best.step = trainer.progress.step
            saving.best.weights = {name: one.detach().cpu().clone() for name, one in weights_of(trainer.looked_at).items()}

    kind: type[Trainer] = CentralTrainer if isinstance(parts.algorithm, Central) else Trainer
    trainer = kind(
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
        evaluation_batch(task.global_batch, task.shards or comm.size),
        stop.asked,
        lambda: short_hash(weights_of(trainer.looked_at)) if keeps_best else "",
        keep_best,
        spans,
        saving=saving,
        max_steps=max_steps,
    )
    return trainer


def _train(
    config: TrainConfig,
    comm: Communicator,
    job: Job,
    place: Place | None,
    out: Path,
    trainer: Trainer,
    began: float,
    stop: StopRequest,
    notes: Sequence[str],
    mixed: Sequence[str] = (),
) -> Ended:
    task, parts, adapter, observers = job.changed.task, job.parts, job.parts.adapter, trainer.observers
    plan, spans, saving = parts.loader.plan, trainer.spans, trainer.saving
    assert saving is not None
    started = RunStarted(
        name=task.name,
        out=str(out),
        num_workers=parts.algorithm.num_workers,
        num_servers=parts.algorithm.num_servers,
        rank=comm.rank,
        engine=comm.engine,
        device=str(adapter.device),
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
    with promise.explained():  # here, so that the status says it too
        done = trainer.run()
    test: Mapping[str, float] = {}
    if parts.splits.test is not None and done.reason not in (INTERRUPTED, NOT_FINITE):
        found = trainer.look_at(parts.splits.test, "test_")
        if found is None:  # all is saved but the test, which the next life makes
            done.reason = INTERRUPTED
        else:
            test = found
    state = weights_of(adapter.model)
    hashes, wishes = zip(*comm.allgather_object((hash_of(state), stop.why())), strict=True)
    told = next((why for why in wishes if why is not None), "--max-steps")
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
            "promise": None if place.about["promise"] is None else {**place.about["promise"], "mixed": list(mixed)},
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
        steps = [row for row in read_lines(place.directory.metrics) if row.get("event") == "step"]
        if trainer.goes_on is None:
            draw_curves(done.history, place.directory.curves, task.name, steps, started.target)
    summary = comm.broadcast_object(as_json(summary))
    for observer in observers:
        if done.reason == INTERRUPTED:
            observer.say(f"told to stop ({told}); the same command goes on from step {done.step}")
        observer.ended(RunEnded(summary, done.reason))
    if text := comm.broadcast_object(done.failure or (failure and f"the last checkpoint is not saved: {failure}") or ""):
        if comm.rank:
            raise AlreadyTold(1)
        raise TrainingFailed(f"{text} (what was reached is in {out})") from (CannotWrite(failure) if failure else None)
    return Ended(out, summary, comm.rank)
