"""The only wiring: makes a training from a configuration and a communicator, runs it, and writes its run directory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Any

import torch

from unisono.comm.base import Communicator
from unisono.comm.on_all_ranks import on_all_ranks
from unisono.data.data_differences import describe_unrepeatable
from unisono.errors import CannotWrite, ReportedElsewhere, TrainingFailed
from unisono.events import Observer, RunEnded, RunStarted, Spans
from unisono.model.flat import hash_of
from unisono.observe.console import Console
from unisono.observe.jsonl import read_lines
from unisono.observe.monitor import Monitor
from unisono.observe.open_observers import open_observers, say_to
from unisono.observe.plots import draw_curves
from unisono.observe.timeline import gather_spans, write_timeline
from unisono.stopping.deadline import Deadline, deadline_of_this_process
from unisono.stopping.stop_request import StopRequest
from unisono.task.task import Task
from unisono.task.train_config import TrainConfig
from unisono.training import determinism
from unisono.training.checkpointing.checkpoint import CheckpointStore
from unisono.training.checkpointing.saving import SaveInterval, Saving
from unisono.training.clock import Clock
from unisono.training.evaluation import evaluation_batch
from unisono.training.prepare import prepare
from unisono.training.progress import FINISHED, INTERRUPTED, Progress
from unisono.training.run_folder.attempt_record import record_attempt
from unisono.training.run_folder.hash_record import open_hash_record, short_hash
from unisono.training.run_folder.run_directory import as_json
from unisono.training.run_folder.run_output import RunOutput, earlier_attempt, open_run_output
from unisono.training.run_folder.run_record import summary_of
from unisono.training.run_folder.run_status import Status
from unisono.training.run_folder.weights import save_weights, weights_of
from unisono.training.run_hooks import RunHooks
from unisono.training.same_data import expect_same_data, expect_same_settings
from unisono.training.shard_rules import refuse_unrepeatable
from unisono.training.trainer import Trainer
from unisono.training.trainer_base import TrainerBase
from unisono.training.training_parts import EarlierAttempt, TrainingParts


@dataclass(frozen=True)
class Screen:
    """The terminal on which a run shows its progress."""

    columns: int | None = None
    """Width of the terminal; None where the output is no terminal."""
    colour: bool = False


@dataclass(frozen=True)
class RunResult:
    """The result of a finished run: its directory and its summary."""

    out: Path
    summary: Mapping[str, Any]
    rank: int = 0
    """Rank of this process; all ranks have the same summary."""
    stop_reason: str | None = None
    """The first request to stop that came while it ran, also if it was over before that had an effect: Ctrl-C, SIGTERM, time limit;
    None without one."""


@dataclass(frozen=True)
class EarlyStopHook:
    """Ends one of many trainings early, as a search decides while they run."""

    should_continue: Callable[[int, Mapping[str, float]], bool]
    """The hook `RunHooks.should_continue` of the run."""


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """The values that all parts of one run share on this rank."""

    config: TrainConfig
    comm: Communicator
    parts: TrainingParts
    stop: StopRequest
    deadline: Deadline
    began: float
    """Start of this attempt by `time.perf_counter`."""
    observers: Sequence[Observer] = ()
    say: Callable[[str], None] = print
    """Shows a line to the user where no observer may show it."""
    spans: Spans | None = None
    hooks: RunHooks = field(default_factory=RunHooks)
    """Hooks of this run besides the usual ones."""
    save_interval: SaveInterval | None = None
    """How often it is saved; None for a run that is not saved."""
    store: CheckpointStore | None = None
    """Where checkpoints go, on rank 0 of a run that is saved."""
    out: Path | None = None
    """The run directory; None where there is none."""
    output: RunOutput | None = None
    """The open run directory, on rank 0."""
    status: Status | None = None


def build_trainer(run: RunContext, batch: int | None = None, progress: Progress | None = None) -> TrainerBase:
    """Local: makes the trainer with its saves, hooks and observers. `batch`: number of samples that a rank evaluates at a time;
    `progress`: where it starts, if not at step 0."""
    parts, task, saving = run.parts, run.parts.task, None
    if run.save_interval is not None:
        saving = Saving(
            adapter=parts.adapter,
            algorithm=parts.algorithm,
            interval=run.save_interval,
            store=run.store,
            say=run.say,
            spans=run.spans,
        )
    hooks = replace(
        run.hooks,
        stop_requested=lambda: run.deadline.stop_requested(run.stop),
        fits_evaluation=lambda: run.deadline.fits_evaluation(stop=run.stop),
    )
    observers = tuple(run.observers)
    if run.out is not None and run.status is not None and saving is not None:
        record = open_hash_record(run.out, run.config.hash_every, parts.adapter.model, task.shards is not None)
        hooks = replace(
            hooks,
            keep_best=saving.best.keep,
            hash_weights=lambda model: short_hash(weights_of(model)),
            after_step=None if record is None else record.after_step,
        )
        observers = (*observers, Clock(run.deadline, run.status, saving))
    shared: dict[str, Any] = {
        "comm": run.comm,
        "parts": parts,
        "evaluation_batch": batch or evaluation_batch(task.global_batch, task.shards or parts.algorithm.num_working),
        "hooks": hooks,
        "observers": observers,
        "saving": saving,
        "spans": run.spans,
        "max_steps": run.config.max_steps,
        "progress": progress or Progress(),
    }
    if not parts.algorithm.has_server:
        return Trainer(**shared)
    from unisono.training.server.server_trainer import ServerSettings, ServerTrainer

    return ServerTrainer(**shared, server=ServerSettings.of(run.config, None if run.output is None else run.out))


# ---- one training ------------------------------------------------------------------------------------------------------


def execute(
    config: TrainConfig,
    comm: Communicator,
    screen: Screen | None = None,
    task: Task | None = None,
    early_stop: EarlyStopHook | None = None,
) -> RunResult:
    """Collective, blocking: executes one training, from the task to the summary. Without a screen it is silent. `task` is used
    instead of the task file. With `early_stop` it may end early, and no curves are drawn.

    On an error one rank raises it and the others raise `ReportedElsewhere`: a mistake seen before work starts, or `TrainingFailed`
    for a loss that is not finite; the state that was reached is written before that. The first Ctrl-C or SIGTERM ends the training
    after the current step, as "interrupted", the second ends the process."""
    began = perf_counter()
    spans = Spans() if config.timeline else None
    with ExitStack() as held:
        stop = held.enter_context(StopRequest())  # to the end: what was reached is written whatever comes
        held.callback(torch.set_num_threads, torch.get_num_threads())  # which shards may change
        is_first = comm.rank == 0
        found = on_all_ranks(comm, lambda: earlier_attempt(config) if is_first else None)
        earlier = EarlierAttempt(*comm.broadcast_object(None if found is None else tuple(found)))
        config = replace(config, changes={**earlier.settings, **config.changes})
        job = on_all_ranks(comm, lambda: prepare(config, comm, spans, task, earlier))
        parts = job.parts
        if parts.task.precision == "tf32":
            from unisono.training.gpu_precision import set_tf32

            held.enter_context(set_tf32(parts.adapter.device))
        expect_same_settings(comm, {**job.record["settings"], "algorithm": job.record["algorithm"], "on_nan": job.record["on_nan"]})
        samples = expect_same_data(comm, parts.splits.parts())
        unrepeatable = describe_unrepeatable(samples)
        if parts.task.shards is not None:
            on_all_ranks(comm, lambda: refuse_unrepeatable(unrepeatable))
            held.enter_context(determinism.enforce(parts.adapter.device))
        output = on_all_ranks(comm, lambda: open_run_output(config, parts, job.record, samples, comm.engine) if is_first else None)
        if output is not None:
            held.callback(output.directory.close)
        out = Path(comm.broadcast_object(None if output is None else str(output.directory.path)))
        summary = comm.broadcast_object(None if output is None else as_json(output.finished))
        if summary is not None:
            if screen is not None and comm.rank == 0:
                more = "; more --epochs would continue it" if summary["reason"] == FINISHED else ""
                print(f"{out} is finished ({summary['reason']} after {summary['epochs']} epochs){more}")
            return RunResult(out, summary, comm.rank, stop.reason())

        def make_context() -> RunContext:
            console = None if screen is None or comm.rank else Console(sys.stdout, screen.columns, screen.colour)
            observers = open_observers(config, comm.rank, out, console)
            for observer in observers:
                held.callback(observer.close)
            say = partial(say_to, observers)
            # A search knows the deadline and stops its trainings; if each of them asked the scheduler, that would be many requests.
            asks_clock = output is not None and early_stop is None
            return RunContext(
                config=config,
                comm=comm,
                parts=parts,
                stop=stop,
                deadline=deadline_of_this_process(config.time_limit_s) if asks_clock else Deadline(None, 0.0),
                began=began,
                observers=observers,
                say=say,
                spans=spans,
                hooks=RunHooks(should_continue=None if early_stop is None else early_stop.should_continue),
                save_interval=job.save_interval,
                store=None if output is None else output.store,
                out=out,
                output=output,
                status=None if output is None else Status(output.directory.status, say),
            )

        notes = [*job.notes, *(f"warning: {text}" for text in unrepeatable)]
        ended = _attempt(on_all_ranks(comm, make_context), notes)
        return replace(ended, stop_reason=ended.stop_reason or stop.reason())  # one that came while the results were written


def _attempt(run: RunContext, notes: Sequence[str]) -> RunResult:
    """Collective, blocking: runs one attempt, from the first step or from a checkpoint. `notes` are shown to the user."""
    output, parts = run.output, run.parts
    trainer = build_trainer(run)
    resumed = trainer.resume(None if run.store is None else run.store.loaded) or []
    mixed = determinism.describe_mixed_ranks(run.comm, parts.adapter.device) if parts.task.shards is not None else []
    if output is not None:
        more = (*output.notes, *resumed, *mixed, run.deadline.note, run.deadline.describe())
        notes = [*notes, *(text for text in more if text)]
        if output.directory.changes:
            output.directory.write_json("config.json", output.record)
        if run.config.comes_and_goes:
            from unisono.training.server.joining import write_join_info

            write_join_info(output.directory.path, run.config, output.samples)
    with record_attempt(run.status, trainer):
        test = _train(run, trainer, notes)
        result = _finish(run, trainer, test, mixed)
    run.comm.barrier()  # a launcher may end the others as soon as the first has left with a code that is not 0
    return result


def _train(run: RunContext, trainer: TrainerBase, notes: Sequence[str]) -> Mapping[str, float]:
    """Collective, blocking: trains to the end and evaluates the test data; returns their metrics."""
    comm, parts = run.comm, run.parts
    task, goals, plan = parts.task, parts.goals, parts.loader.plan
    started = RunStarted(
        name=task.name,
        out=str(run.out),
        num_workers=parts.algorithm.num_workers,
        num_servers=parts.algorithm.num_servers,
        rank=comm.rank,
        engine=comm.engine,
        device=str(parts.adapter.device),
        global_batch=task.global_batch,
        num_epochs=task.epochs,
        steps_per_epoch=plan.steps_per_epoch,
        num_samples=plan.num_samples,
        num_parameters=parts.adapter.num_parameters,
        first_step=trainer.progress.step,
        first_epoch=trainer.progress.epoch,
        monitor=goals.monitor,
        target=goals.target_metric,
    )
    for observer in trainer.observers:
        observer.started(started)
        for note in notes:
            observer.say(note)
    with determinism.explain_errors(), determinism.explain_full_gpu():  # here, so that the status says it too
        trainer.train()
    return trainer.test()


def _finish(run: RunContext, trainer: TrainerBase, test: Mapping[str, float], mixed: Sequence[str]) -> RunResult:
    """Collective, blocking: writes the results of the training and reports them; raises if it failed."""
    comm, output, saving, out = run.comm, run.output, trainer.saving, run.out
    done, observers = trainer.progress, trainer.observers
    assert saving is not None
    assert out is not None
    weights = weights_of(run.parts.adapter.model)
    hashes, reasons = zip(*comm.allgather_object((hash_of(weights), run.stop.reason())), strict=True)
    stop_reason = next((one for one in reasons if one is not None), None)
    monitors = comm.allgather_object([observer.summary() for observer in observers if isinstance(observer, Monitor)])
    are_equal = len(set(hashes)) == 1
    summary: dict[str, Any] = {}
    if output is not None:
        hashes_of_files = _write_weights(output, trainer, weights)
        summary = {
            **summary_of(trainer, test, run.began),
            "algorithm": output.record["algorithm"],
            **hashes_of_files,
            "replicas_equal": are_equal,
            **({"monitor": [rows[0] for rows in monitors]} if run.config.monitor else {}),
            **output.about(mixed),
        }
        if not are_equal:
            for observer in observers:
                observer.say("warning: the workers hold different weights or buffers; those of rank 0 are saved")
    if run.spans is not None:
        gathered = gather_spans(comm, run.spans)
        if output is not None and gathered is not None:
            write_timeline(output.directory.timeline, gathered)
    failure = saving.finish()
    if output is not None:
        output.directory.write_json("summary.json", summary)
        if run.hooks.should_continue is None:
            steps = [row for row in read_lines(output.directory.metrics) if row.get("event") == "step"]
            draw_curves(done.history, output.directory.curves, run.parts.task.name, steps, run.parts.goals.target_metric)
    summary = comm.broadcast_object(as_json(summary))
    for observer in observers:
        if done.reason == INTERRUPTED:
            observer.say(f"stopped ({stop_reason or '--max-steps'}); run the same command to resume from step {done.step}")
        observer.ended(RunEnded(summary, done.reason))
    if text := comm.broadcast_object(done.failure or (failure and f"the last checkpoint was not saved: {failure}") or ""):
        if comm.rank:
            raise ReportedElsewhere(1)
        raise TrainingFailed(f"{text} (the results so far are in {out})") from (CannotWrite(failure) if failure else None)
    return RunResult(out, summary, comm.rank, stop_reason)


def _write_weights(output: RunOutput, trainer: TrainerBase, weights: Mapping[str, torch.Tensor]) -> dict[str, str | None]:
    """Local, blocking: writes the final weights and the best ones; returns their hashes as entries of the summary."""
    began, directory = perf_counter_ns(), output.directory
    best = {} if trainer.saving is None else trainer.saving.best.weights
    found = {
        "weights_sha256": save_weights(directory.weights, weights),
        "best_weights_sha256": save_weights(directory.best, best) if best else None,
    }
    if not best:
        directory.best.unlink(missing_ok=True)  # of an attempt with another monitor
    if trainer.spans is not None:
        trainer.spans.add("save", "weights", began, perf_counter_ns())
    return found
