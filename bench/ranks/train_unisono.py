"""A rank of Unisono: its trainer with what `unisono train` gives it; `... SOCKET GROUP CASE DATA FOLDER [SHARDS]`.

At several workers `unisono run` starts it, as `unisono train -n` would.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import unisono as un
from bench.ranks.learning import Learning, Turns, make_model
from unisono.algorithms.base import LockStepAlgorithm
from unisono.comm.base import Communicator
from unisono.data.sources.arrays import Arrays
from unisono.events import EpochDone, Observer, RunStarted
from unisono.observe.console import Console
from unisono.observe.jsonl import JsonLines
from unisono.stopping.deadline import Deadline
from unisono.stopping.stop_request import StopRequest
from unisono.task.overrides import change
from unisono.task.train_config import TrainConfig
from unisono.training import determinism
from unisono.training.checkpointing.checkpoint import Checkpoints, CheckpointStore
from unisono.training.checkpointing.saving import SaveInterval, Saving
from unisono.training.clock import Clock
from unisono.training.frontends.assemble import assemble
from unisono.training.run_folder.hash_record import short_hash
from unisono.training.run_folder.run_status import Status
from unisono.training.run_folder.weights import weights_of
from unisono.training.run_hooks import RunHooks
from unisono.training.trainer import Trainer
from unisono.training.training_parts import TrainingParts

EPOCHS = 10**6


class Turn(Observer):
    """Stands behind the usual observers, so that their work counts."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def epoch(self, event: EpochDone) -> None:  # noqa: ARG002
        self._turns.epoch_done()


def main() -> None:
    out = Path(sys.argv[5])
    shards = int(sys.argv[6]) if len(sys.argv) > 6 else None
    with un.connect(quiet=True) as comm, nullcontext() if shards is None else determinism.set_switches(comm.device):
        learning = Learning(comm.rank, comm.size)
        case = learning.case
        task = un.Task(
            model=lambda: make_model(case),
            # A subset, as a split of the data gives it.
            data=lambda: un.Splits(train=Arrays(learning.inputs, learning.targets).subset(range(case.num_samples))),
            loss="cross_entropy",
            metrics=("accuracy",),
            optimizer=case.optimizer,
            optimizer_options=case.optimizer_options,
            lr=case.lr,
            global_batch=case.global_batch,
            epochs=EPOCHS,
            shards=shards,
            name=case.name,
        )
        parts = assemble(change(task, {}), "allreduce", comm)
        # As in a run: only the first rank shows and records.
        usual: list[Observer] = (
            [Console(sys.stdout), JsonLines(out / "metrics.jsonl", TrainConfig("").log_every)] if comm.rank == 0 else []
        )
        saving = _saving(comm, parts, out)
        stop, deadline = StopRequest(), Deadline(None, 0.0)
        if saving.writer is not None:
            status = Status(out / "status.json", print)
            status.begin(0, 0, EPOCHS * case.steps, comm.size)
            usual.append(Clock(deadline, status, saving))
        observers = [*usual, Turn(learning.turns)]
        for observer in observers:
            observer.started(started(comm, task, parts, str(out)))
        trainer = make_trainer(comm, task, parts, observers, saving, lambda: deadline.stop_requested(stop))
        learning.attend({"unisono": un.__version__, "how": comm.origin}, parts.adapter.model, trainer.train)
        for observer in observers:
            observer.close()


def _saving(comm: Communicator, parts: TrainingParts, out: Path) -> Saving:
    """As a run has it; nothing is saved in the minutes of a measurement."""
    store = CheckpointStore(Checkpoints(out / "checkpoints", 3)) if comm.rank == 0 else None
    interval = SaveInterval.parse("10h")
    return Saving(adapter=parts.adapter, algorithm=parts.algorithm, interval=interval, store=store, say=print)


def make_trainer(
    comm: Communicator,
    task: un.Task,
    parts: TrainingParts,
    observers: Sequence[Observer],
    saving: Saving,
    stop_requested: Callable[[], bool],
) -> Trainer:
    assert isinstance(parts.algorithm, LockStepAlgorithm)
    return Trainer(
        comm=comm,
        parts=parts,
        evaluation_batch=task.global_batch,
        hooks=RunHooks(
            stop_requested=stop_requested,
            hash_weights=lambda model: short_hash(weights_of(model)) if comm.rank == 0 else "",
        ),
        observers=observers,
        saving=saving,
    )


def started(comm: Communicator, task: un.Task, parts: TrainingParts, out: str) -> RunStarted:
    return RunStarted(
        name=task.name,
        out=out,
        num_workers=comm.size,
        rank=comm.rank,
        engine=comm.engine,
        device=str(comm.device),
        global_batch=task.global_batch,
        num_epochs=task.epochs,
        steps_per_epoch=parts.loader.plan.steps_per_epoch,
        num_samples=parts.loader.plan.num_samples,
        num_parameters=parts.adapter.num_parameters,
    )


if __name__ == "__main__":
    main()
