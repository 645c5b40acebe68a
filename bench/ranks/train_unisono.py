"""A rank of Unisono: its trainer with what `unisono train` gives it; `... SOCKET GROUP CASE DATA FOLDER [SHARDS]`.

At several workers `unisono run` starts it, as `unisono train -n` would.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from time import perf_counter

import unisono as un
from bench.ranks.learning import Learning, Turns, make_model
from unisono.comm.base import Communicator
from unisono.data.sources.arrays import Arrays
from unisono.events import EpochDone, Observer, RunStarted
from unisono.observe.console import Console
from unisono.observe.open_observers import open_observers
from unisono.run import RunContext, build_trainer
from unisono.stopping.deadline import Deadline
from unisono.stopping.stop_request import StopRequest
from unisono.task.overrides import change
from unisono.task.train_config import TrainConfig
from unisono.training import determinism
from unisono.training.checkpointing.checkpoint import Checkpoints, CheckpointStore
from unisono.training.checkpointing.saving import SaveInterval
from unisono.training.frontends.assemble import assemble
from unisono.training.run_folder.run_status import Status
from unisono.training.trainer_base import TrainerBase

EPOCHS = 10**6


class Turn(Observer):
    """Stands behind the usual observers, so that their work counts."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def epoch(self, event: EpochDone) -> None:  # noqa: ARG002
        self._turns.epoch_done()


@contextmanager
def started(
    comm: Communicator,
    task: un.Task,
    out: Path,
    checkpoints: Path,
    interval: SaveInterval,
    stop: StopRequest,
    deadline: Deadline,
    *more: Observer,
) -> Iterator[TrainerBase]:
    """Collective: the trainer of a run of `unisono train` with this task, with what a run has on each rank: console, metrics.jsonl,
    saves, clock and status, and more observers behind the first two."""
    config, is_first = TrainConfig("", out=str(out)), comm.rank == 0
    parts = assemble(change(task, {}), config.algorithm, comm)
    status, steps_per_epoch = Status(out / "status.json", print), parts.loader.plan.steps_per_epoch
    run = RunContext(
        config=config,
        comm=comm,
        parts=parts,
        stop=stop,
        deadline=deadline,
        began=perf_counter(),
        observers=(*open_observers(config, comm.rank, out, Console(sys.stdout)), *more),
        save_interval=interval,
        store=CheckpointStore(Checkpoints(checkpoints, config.keep), {"config": {}}) if is_first else None,
        out=out,
        status=status if is_first else None,
    )
    if is_first:
        status.begin(0, 0, EPOCHS * steps_per_epoch, comm.size)
    trainer = build_trainer(run)
    event = RunStarted(
        name=task.name,
        out=str(out),
        num_workers=comm.size,
        rank=comm.rank,
        engine=comm.engine,
        device=str(comm.device),
        global_batch=task.global_batch,
        num_epochs=task.epochs,
        steps_per_epoch=steps_per_epoch,
        num_samples=parts.loader.plan.num_samples,
        num_parameters=parts.adapter.num_parameters,
    )
    for observer in trainer.observers:
        observer.started(event)
    yield trainer
    for observer in trainer.observers:
        observer.close()


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
        # Nothing is saved in the minutes of a measurement.
        interval, deadline = SaveInterval.parse("10h"), Deadline(None, 0.0)
        with started(comm, task, out, out / "checkpoints", interval, StopRequest(), deadline, Turn(learning.turns)) as trainer:
            versions = {"unisono": un.__version__, "how": comm.origin}
            learning.attend(versions, trainer.parts.adapter.model, trainer.train)


if __name__ == "__main__":
    main()
