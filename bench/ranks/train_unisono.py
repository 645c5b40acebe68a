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
from unisono.cluster.deadline import Deadline
from unisono.cluster.stop_request import StopRequest
from unisono.comm.base import Communicator
from unisono.config import TrainConfig
from unisono.data.arrays import Arrays
from unisono.events import EpochDone, Observer, RunStarted
from unisono.observe.console import Console
from unisono.observe.jsonl import JsonLines
from unisono.overrides import change
from unisono.training import promise
from unisono.training.assemble import Assembled, assemble
from unisono.training.background import BackgroundWriter
from unisono.training.checkpoint import Checkpoints
from unisono.training.clock import Clock
from unisono.training.hashes import short_hash
from unisono.training.run_record import weights_of
from unisono.training.saving import Best, Every, Saving
from unisono.training.status import Status
from unisono.training.trainer import Trainer

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
    with un.connect(quiet=True) as comm, nullcontext() if shards is None else promise.set_up(comm.device):
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
        parts = assemble(change(task, {}), "allreduce", comm, on_nan="stop")
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
        trainer = make_trainer(comm, task, parts, observers, saving, lambda: deadline.asks(stop))
        learning.attend({"unisono": un.__version__, "how": comm.origin}, parts.adapter.model, trainer.run)
        for observer in observers:
            observer.close()


def _saving(comm: Communicator, parts: Assembled, out: Path) -> Saving:
    """As a run has it; nothing is saved in the minutes of a measurement."""
    writer = BackgroundWriter(Checkpoints(out / "checkpoints", 3), {}) if comm.rank == 0 else None
    return Saving(comm, parts.adapter, parts.algorithm, Every.parse("10h"), writer, Best(), print)


def make_trainer(
    comm: Communicator,
    task: un.Task,
    parts: Assembled,
    observers: Sequence[Observer],
    saving: Saving,
    told_to_stop: Callable[[], bool],
) -> Trainer:
    return Trainer(
        comm,
        parts.adapter,
        parts.algorithm,
        parts.loader,
        None,
        parts.metrics,
        parts.followed,
        parts.settings,
        parts.goals,
        observers,
        task.seed,
        task.global_batch,
        told_to_stop,
        lambda: short_hash(weights_of(parts.adapter.model)) if comm.rank == 0 else "",
        lambda: None,
        saving=saving,
    )


def started(comm: Communicator, task: un.Task, parts: Assembled, out: str) -> RunStarted:
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
