"""Executes one call of `fit`: our trainer, with Keras's callbacks as its observers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from unisono.comm.base import Communicator
from unisono.comm.on_all_ranks import on_all_ranks
from unisono.comm.replicate import replicate
from unisono.data.sharding_plan import Plan
from unisono.data.source import Source
from unisono.data.splits import Splits
from unisono.errors import STOPPED_CODE, TrainingFailed, UsageError
from unisono.keras._impl.backup import Backup, find_backup
from unisono.keras._impl.callbacks import CallbackGoals, Callbacks, needs_model_every_batch
from unisono.keras._impl.fit_record import record_of_fit
from unisono.keras._impl.stream_loader import StreamLoader
from unisono.keras._impl.streams import Stream
from unisono.model.base import BEGINNING, StreamKey
from unisono.model.keras.module import KerasModule
from unisono.model.keras.optimizer import rate_of
from unisono.run import RunContext, build_trainer, execute
from unisono.stopping.deadline import deadline_of_this_process
from unisono.stopping.stop_request import StopRequest
from unisono.task.overrides import change
from unisono.task.task import Task
from unisono.task.train_config import TrainConfig
from unisono.training.batch_norms import batch_note
from unisono.training.frontends.assemble import assemble
from unisono.training.progress import INTERRUPTED, NOT_FINITE, Progress
from unisono.training.run_folder.weights import initialise
from unisono.training.run_hooks import RunHooks
from unisono.training.same_data import expect_same_data
from unisono.training.training_parts import TrainingParts

if TYPE_CHECKING:
    from unisono.keras._impl.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class FitData:
    """The training and validation data of one call of `fit`."""

    train: Source
    """The training data; of a stream its first batch."""
    stream: Stream | None
    validation: Source | None
    batch: int
    class_weight: Mapping[int, float] | None
    shuffle: bool


@dataclass(frozen=True, kw_only=True)
class FitSchedule:
    """The epochs of one call of `fit`, and when it is evaluated."""

    epochs: int
    initial_epoch: int
    validation_freq: int | Sequence[int]
    validation_batch: int
    verbose: Any


@dataclass(frozen=True)
class Fit:
    """One call of `fit`: its arguments, with its data opened."""

    strategy: Strategy
    model: Any
    make_replica: Callable[[], KerasModule]
    data: FitData
    schedule: FitSchedule
    number: int
    """Number of this fit among those of the script, from 0."""

    @property
    def comm(self) -> Communicator:
        return self.strategy.comm

    @property
    def _seed(self) -> int:
        """The seed of this fit: that of the strategy for the script's first fit, one derived from it and the fit's number later."""
        seed = self.strategy.seed_in_use.value
        return seed if self.number == 0 else StreamKey(seed, self.number, 0, BEGINNING).value() % 2**31

    def _as_task(self, seed: int) -> Task:
        """This fit as a task: the model, its data, its optimiser, and the batch of all workers."""
        splits = Splits(train=self.data.train, validation=self.data.validation)
        return Task(
            model=self.make_replica,
            data=lambda: splits,
            optimizer=self.model.optimizer,  # the object itself, also for plain SGD: callbacks and backups read it
            global_batch=max(self.data.batch, self.comm.size),
            epochs=max(self.schedule.epochs, 1),
            seed=seed,
            name="fit",
        )

    def _begin_backup(self, callbacks: list[Any]) -> tuple[Backup | None, int]:
        """Collective, blocking: returns the backup that this fit resumes from and writes to, None without one, and the seed of the
        fit, which is that of the attempt before. Refuses a backup of another fit."""
        backup = find_backup(self.comm, self.strategy.backup, self.strategy.backup_every, self.number, callbacks)
        if backup is None:
            return None, self._seed
        record = on_all_ranks(self.comm, lambda: record_of_fit(self) if self.comm.rank == 0 else {})
        return backup, backup.begin(record, self._seed, adopts_seed=self.strategy.seed is None)

    def fit_in_step(self, callbacks: list[Any]) -> Any:
        """Collective, blocking: fits with workers that step together, or agree in rounds. Returns the history."""
        comm, strategy = self.comm, self.strategy
        backup, seed = self._begin_backup(callbacks)
        resolved = replace(change(self._as_task(seed), {}), algorithm=strategy.options)
        parts = on_all_ranks(comm, lambda: assemble(resolved, strategy.algorithm, comm))
        note = batch_note(parts.adapter.model, parts.num_learning, in_shards=False, can_shard=False)
        if note and comm.rank == 0 and self.number == 0:
            print(f"unisono: {note}", file=sys.stderr, flush=True)
        # Of a stream every batch is compared when it is read, as an epoch shuffles it.
        held = {name: part for name, part in parts.splits.parts().items() if name != "train" or self.data.stream is None}
        expect_same_data(comm, held)
        loader = self._make_loader(parts)
        keras_callbacks = self._make_callbacks(parts, callbacks, loader.plan.steps_per_epoch)
        history = keras_callbacks.listed._history
        store = None if backup is None else backup.open()
        with StopRequest() as stop:
            run = RunContext(
                config=TrainConfig("", algorithm=strategy.algorithm, quiet=True),
                comm=comm,
                parts=replace(parts, loader=loader, settings=keras_callbacks.settings, goals=self._make_goals(keras_callbacks)),
                stop=stop,
                deadline=deadline_of_this_process(None),
                began=perf_counter(),
                observers=(keras_callbacks,),
                hooks=RunHooks(
                    ends_epoch_early=lambda: keras_callbacks.stops, evaluation_is_due=_is_due_rule(self.schedule.validation_freq)
                ),
                save_interval=None if backup is None else backup.interval,
                store=store,
            )
            first = self.schedule.initial_epoch
            begin = Progress(epoch=first, step=first * loader.plan.steps_per_epoch)
            trainer = build_trainer(run, self.schedule.validation_batch, begin)
            if backup is not None and (notes := trainer.resume(None if store is None else store.loaded)) is not None:
                backup.show(notes)
                keras_callbacks.resume()
                if backup.is_finished(trainer):
                    return _replay_history(history, trainer.progress)
            keras_callbacks.begin(trainer.progress.epoch, mid_epoch=bool(trainer.progress.step_in_epoch))
            _replay_history(history, trainer.progress)
            try:
                done = trainer.train()
                if isinstance(loader, StreamLoader):
                    loader.end_epoch()
                keras_callbacks.end(done.history[-1]["metrics"] if done.history else {})
                trainer.save_final()  # callbacks may have changed the weights at the end
            finally:
                if trainer.saving is not None:
                    trainer.saving.close()
        self._raise_if_ended_early(done, backup, stop)
        # Callbacks of the first worker may have put more into it, e.g. the learning rate.
        history.history = comm.broadcast_object({name: list(map(float, one)) for name, one in history.history.items()})
        return history

    def _make_loader(self, parts: TrainingParts) -> Any:
        """Returns the loader of this worker's part of each batch of the arrays or the stream."""
        data, seed = self.data, parts.task.seed
        if data.stream is None:
            return replace(parts.loader, plan=Plan(len(data.train), data.batch, seed, data.shuffle))
        plan = Plan(data.stream.num_steps * data.batch, data.batch, seed, shuffle=False)
        shard, num_shards, first = parts.loader.shard, parts.loader.num_shards, self.schedule.initial_epoch
        return StreamLoader(data.stream, self.comm, plan, data.class_weight, shard, num_shards, first_epoch=first)

    def _make_goals(self, keras_callbacks: Callbacks) -> CallbackGoals:
        """Returns goals that end training after the last epoch, or when a callback stops it."""
        return CallbackGoals(self.schedule.epochs, None, callbacks=keras_callbacks)

    def _make_callbacks(self, parts: TrainingParts, callbacks: list[Any], num_steps: int) -> Callbacks:
        """Returns the callbacks of all workers as one; only those of the first worker are called. Collective."""
        from keras.callbacks import CallbackList

        is_first = self.comm.rank == 0
        listed = CallbackList(
            callbacks if is_first else [],
            add_history=True,
            add_progbar=is_first and self.schedule.verbose != 0,
            verbose=1 if self.schedule.verbose == "auto" else self.schedule.verbose,
            epochs=self.schedule.epochs,
            steps=num_steps,
            model=self.model,
        )
        watches = any(self.comm.allgather_object(any(needs_model_every_batch(one) for one in callbacks)))
        optimizer = self.model.optimizer
        is_schedule = not hasattr(optimizer._learning_rate, "assign")
        lr = None if is_schedule else rate_of(optimizer)
        return Callbacks(self.comm, parts.adapter, listed, self.schedule.epochs, watches, lr)

    def _raise_if_ended_early(self, done: Progress, backup: Backup | None, stop: StopRequest) -> None:
        """Collective: raises if the training failed or was stopped; otherwise marks the backup as finished."""
        if done.reason == NOT_FINITE:
            raise TrainingFailed(done.failure)
        if done.reason == INTERRUPTED:
            why = "" if backup is None else f"; run the same command to resume from step {done.step} ({backup.folder})"
            if self.comm.rank == 0:
                print(f"unisono: stopped ({stop.reason() or 'by another worker'}){why}", flush=True)
            self.comm.barrier()
            raise SystemExit(STOPPED_CODE)
        if backup is not None:
            backup.finish(self.schedule.epochs, done.step)

    def fit_with_server(self) -> Any:
        """Collective, blocking: fits with a server, whose workers do not wait for each other; the run directory is that of `unisono
        train`. Returns the history."""
        from keras.callbacks import History

        comm = self.comm
        if comm.size < 2:
            raise UsageError(
                f"{self.strategy.algorithm} needs a server and at least one worker, but only 1 process was started; start 2 or "
                "more, e.g. `unisono run -n 3 python SCRIPT`"
            )
        backup, seed = self._begin_backup([])
        replicas: list[KerasModule] = []

        def model() -> KerasModule:
            replicas.append(self.make_replica())
            return replicas[-1]

        with ExitStack() as held:
            if backup is None:
                mine = held.enter_context(TemporaryDirectory(prefix="unisono-fit-")) if comm.rank == 0 else ""
                folder = Path(comm.broadcast_object(mine)) / "run"
            else:
                folder = backup.folder
            options = {f"algorithm.{name}": value for name, value in self.strategy.options.items()}
            every = "never" if backup is None else self.strategy.backup_every
            config = TrainConfig("", options, self.strategy.algorithm, out=str(folder), checkpoint_every=every, quiet=True)
            task = replace(self._as_task(seed), model=model, optimizer=None)  # that of the model, as a rule with a server reads it
            ended = execute(config, comm, task=task)
            replica = replicas[-1]

            def load() -> None:
                """After a fit that was finished already the replica is a new one, without its weights."""
                if comm.rank == 0:
                    initialise(replica, ended.out / "weights.safetensors", place="Strategy(backup=...)")

            on_all_ranks(comm, load)  # the folder goes with the first worker
        with torch.no_grad():
            replicate(comm, [*replica.trainable(), *replica.non_trainable()])
        replica.publish()
        if ended.summary["reason"] == INTERRUPTED:
            raise SystemExit(STOPPED_CODE)
        history = History()
        history.set_model(self.model)
        self.model.history = history
        return _replay_history(history, Progress(history=list(ended.summary["history"])))


def _replay_history(history: Any, done: Progress) -> Any:
    """Local: adds the epochs of an earlier attempt of this fit to Keras's history."""
    history.epoch = [row["epoch"] for row in done.history]
    for row in done.history:
        for name, value in row["metrics"].items():
            history.history.setdefault(name, []).append(value)
    return history


def _is_due_rule(validation_freq: int | Sequence[int]) -> Callable[[int], bool]:
    """Returns a function that tells whether to validate after an epoch, counted from 0; a list counts from 1."""
    if isinstance(validation_freq, int):
        return lambda epoch: (epoch + 1) % validation_freq == 0
    return lambda epoch: epoch + 1 in validation_freq
