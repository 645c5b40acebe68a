"""One call of `fit`: our trainer, with Keras's callbacks as its observers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from unisono.cluster.deadline import of_this_process
from unisono.cluster.stop_request import StopRequest
from unisono.comm.base import Communicator
from unisono.comm.replicate import replicate
from unisono.comm.together import together
from unisono.config import TrainConfig
from unisono.data.plan import Plan
from unisono.data.source import Source
from unisono.data.splits import Splits
from unisono.errors import TrainingFailed, UsageError
from unisono.keras.backup import Backup, find_backup
from unisono.keras.callbacks import CallbackGoals, Callbacks, watches_batches
from unisono.keras.inputs import Stream, StreamLoader
from unisono.model.base import BEGINNING, StreamKey
from unisono.model.keras.module import KerasModule
from unisono.model.keras.optimizer import rate_of
from unisono.overrides import change
from unisono.run import STOPPED_CODE, execute
from unisono.task import Task
from unisono.training.assemble import Assembled, assemble
from unisono.training.progress import INTERRUPTED, NOT_FINITE, Progress
from unisono.training.trainer import Trainer


@dataclass(frozen=True)
class Fit:
    """What one call of `fit` was asked for, its data opened."""

    comm: Communicator
    algorithm: str
    options: Mapping[str, Any]
    seed: int
    backup: str | None
    backup_every: str
    number: int
    """Among the fits of the script."""
    model: Any
    make_replica: Callable[[], KerasModule]
    train: Source
    """Of a stream its first batch."""
    stream: Stream | None
    validation: Source | None
    batch: int
    epochs: int
    initial_epoch: int
    shuffle: bool
    class_weight: Mapping[int, float] | None
    validation_freq: int | Sequence[int]
    validation_batch: int
    verbose: Any

    @property
    def _draws(self) -> int:
        """The seed of orders and of dropout: other ones in every fit of a script, as in Keras."""
        return self.seed if self.number == 0 else StreamKey(self.seed, self.number, 0, BEGINNING).value() % 2**31

    @property
    def _task(self) -> Task:
        splits, batch = Splits(train=self.train, validation=self.validation), max(self.batch, self.comm.size)
        return Task(
            model=self.make_replica,
            data=lambda: splits,
            optimizer=self.model.optimizer,  # itself, also where it is plain SGD: callbacks and backups look at it
            global_batch=batch,
            epochs=max(self.epochs, 1),
            seed=self._draws,
            name="fit",
        )

    def in_step(self, callbacks: list[Any]) -> Any:
        """Collective, blocking: workers that learn in step, or agree in rounds. Gives the history."""
        comm = self.comm
        changed = replace(change(self._task, {}), algorithm=self.options)
        parts = together(comm, lambda: assemble(changed, self.algorithm, comm, "stop"))
        loader = self._loader(parts)
        backup = find_backup(comm, self.backup, self.backup_every, self.number, callbacks)
        heard = self._callbacks(parts, callbacks, loader.plan.steps_per_epoch)
        history = heard.listed._history
        with StopRequest() as stop:
            trainer = self._trainer(parts, loader, heard, stop)
            if backup is not None and backup.take_up(trainer, parts):
                heard.look_again()
                if backup.is_finished(trainer):
                    return _told_again(history, trainer.progress)
            heard.begin(trainer.progress.epoch, goes_on=bool(trainer.progress.step_in_epoch))
            _told_again(history, trainer.progress)
            try:
                done = trainer.run()
                heard.end(done.history[-1]["metrics"] if done.history else {})
                if done.reason not in (INTERRUPTED, NOT_FINITE):
                    trainer.save_again()  # callbacks may have changed the weights at the end
            finally:
                if trainer.saving is not None and trainer.saving.writer is not None:
                    trainer.saving.writer.close()
        self._end(done, backup, stop)
        # Callbacks of the first worker may have put more into it, e.g. the learning rate.
        history.history = comm.broadcast_object({name: list(map(float, one)) for name, one in history.history.items()})
        return history

    def _loader(self, parts: Assembled) -> Any:
        if self.stream is None:
            return replace(parts.loader, plan=Plan(len(self.train), self.batch, self._draws, self.shuffle))
        plan = Plan(self.stream.num_steps * self.batch, self.batch, self._draws, shuffle=False)
        shard, num_shards = parts.loader.shard, parts.loader.num_shards
        return StreamLoader(self.stream, self.comm, plan, self.class_weight, shard, num_shards, first_epoch=self.initial_epoch)

    def _callbacks(self, parts: Assembled, callbacks: list[Any], num_steps: int) -> Callbacks:
        from keras.callbacks import CallbackList

        is_first = self.comm.rank == 0
        listed = CallbackList(
            callbacks if is_first else [],
            add_history=True,
            add_progbar=is_first and self.verbose != 0,
            verbose=1 if self.verbose == "auto" else self.verbose,
            epochs=self.epochs,
            steps=num_steps,
            model=self.model,
        )
        watches = any(self.comm.allgather_object(any(watches_batches(one) for one in callbacks)))
        optimizer = self.model.optimizer
        is_schedule = not hasattr(optimizer._learning_rate, "assign")
        lr = None if is_schedule else rate_of(optimizer)
        return Callbacks(self.comm, parts.adapter, listed, self.epochs, watches, lr)

    def _trainer(self, parts: Assembled, loader: Any, heard: Callbacks, stop: StopRequest) -> _FitTrainer:
        deadline = of_this_process(None)
        trainer = _FitTrainer(
            self.comm,
            parts.adapter,
            parts.algorithm,
            loader,
            parts.splits.validation,
            parts.metrics,
            parts.followed,
            heard.settings,
            CallbackGoals(self.epochs, None, callbacks=heard),
            (heard,),
            self._draws,
            self.validation_batch,
            lambda: deadline.asks(stop),
            str,
            lambda: None,
            epoch_is_enough=lambda: heard.stops,
            is_due=_due(self.validation_freq),
        )
        trainer.progress = Progress(epoch=self.initial_epoch, step=self.initial_epoch * loader.plan.steps_per_epoch)
        return trainer

    def _end(self, done: Progress, backup: Backup | None, stop: StopRequest) -> None:
        """Collective: raises where it did not end by itself."""
        if done.reason == NOT_FINITE:
            raise TrainingFailed(done.failure)
        if done.reason == INTERRUPTED:
            why = "" if backup is None else f"; the same command goes on from step {done.step} ({backup.folder})"
            if self.comm.rank == 0:
                print(f"unisono: told to stop ({stop.why() or 'by another worker'}){why}", flush=True)
            self.comm.barrier()
            raise SystemExit(STOPPED_CODE)
        if backup is not None:
            backup.finish(self.epochs)

    def through_a_server(self) -> Any:
        """Collective, blocking: workers that do not wait for each other; the run directory is that of `unisono train`."""
        from keras.callbacks import History

        comm = self.comm
        if comm.size < 2:
            raise UsageError("a server and at least one worker are needed; start 2 or more processes, e.g. `unisono run -n 3`")
        backup = find_backup(comm, self.backup, self.backup_every, self.number, [])
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
            options = {f"algorithm.{name}": value for name, value in self.options.items()}
            every = "never" if backup is None else self.backup_every
            config = TrainConfig("", options, self.algorithm, out=str(folder), checkpoint_every=every, quiet=True)
            task = replace(self._task, model=model, optimizer=None)  # that of the model, as a rule with a server reads it
            ended = execute(config, comm, task=task)
            comm.barrier()  # the folder goes with the first worker
        replica = replicas[-1]
        with torch.no_grad():
            replicate(comm, [*replica.trained(), *replica.kept()])
        replica.publish()
        if ended.summary["reason"] == INTERRUPTED:
            raise SystemExit(STOPPED_CODE)
        history = History()
        history.set_model(self.model)
        self.model.history = history
        return _told_again(history, Progress(history=list(ended.summary["history"])))


class _FitTrainer(Trainer):
    """Looks at the validation data in some epochs only (`validation_freq`)."""

    def __init__(self, *args: Any, is_due: Callable[[int], bool], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.is_due = is_due

    def save_again(self) -> None:
        """Collective: after `run`."""
        if self.saving is not None:
            self._keep(self.state(None), mid_epoch=False, is_last=True)

    def evaluate(self) -> dict[str, float] | None:
        return super().evaluate() if self.is_due(self.progress.epoch) else {}


def _told_again(history: Any, done: Progress) -> Any:
    """Local: what an earlier life of this fit has told."""
    history.epoch = [row["epoch"] for row in done.history]
    for row in done.history:
        for name, value in row["metrics"].items():
            history.history.setdefault(name, []).append(value)
    return history


def _due(validation_freq: int | Sequence[int]) -> Callable[[int], bool]:
    if isinstance(validation_freq, int):
        return lambda epoch: (epoch + 1) % validation_freq == 0
    return lambda epoch: epoch + 1 in validation_freq
