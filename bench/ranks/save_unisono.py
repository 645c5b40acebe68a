"""Unisono's trainer with what `unisono train --checkpoint-every` gives it on rank 0: saving, background writer, clock, status."""

from __future__ import annotations

import sys

import unisono as un
from bench.ranks.saving import SavedTraining, make_model
from bench.ranks.train_unisono import EPOCHS, make_trainer, started
from bench.saving_case import BATCH, LR
from unisono.data.sources.arrays import Arrays
from unisono.observe.console import Console
from unisono.observe.jsonl import JsonLines
from unisono.stopping.deadline import deadline_of_this_process
from unisono.stopping.stop_request import StopRequest
from unisono.task.overrides import change
from unisono.task.train_config import TrainConfig
from unisono.training.checkpointing.checkpoint import Checkpoints, CheckpointStore
from unisono.training.checkpointing.saving import SaveInterval, Saving
from unisono.training.clock import Clock
from unisono.training.frontends.assemble import assemble
from unisono.training.run_folder.run_status import Status


def main() -> None:
    training, config = SavedTraining(), TrainConfig("")
    out = training.folder.with_name(f"{training.folder.name}-run")
    out.mkdir()
    with un.connect(quiet=True) as comm, StopRequest() as stop:
        task = un.Task(
            model=make_model,
            data=lambda: un.Splits(train=Arrays(training.inputs, training.targets)),
            loss="cross_entropy",
            metrics=("accuracy",),
            optimizer="Adam",
            lr=LR,
            global_batch=BATCH,
            epochs=EPOCHS,
            name="checkpoint",
        )
        parts = assemble(change(task, {}), "allreduce", comm)
        store = CheckpointStore(Checkpoints(training.folder, config.keep), {"config": {}, "num_workers": comm.size})
        interval = SaveInterval(steps=training.period)
        saving = Saving(adapter=parts.adapter, algorithm=parts.algorithm, interval=interval, store=store, say=print)
        writer = saving.writer
        assert writer is not None
        deadline, status = deadline_of_this_process(None), Status(out / "status.json", print)
        status.begin(0, 0, EPOCHS * parts.loader.plan.steps_per_epoch, comm.size)
        observers = [
            Console(sys.stdout),
            JsonLines(out / "metrics.jsonl", config.log_every),
            Clock(deadline, status, saving),
        ]
        for observer in observers:
            observer.started(started(comm, task, parts, str(out)))

        def stop_requested() -> bool:
            """The trainer asks this when the batch of a step is in hand."""
            training.step_begins()
            return deadline.stop_requested(stop)

        trainer = make_trainer(comm, task, parts, observers, saving, stop_requested)

        def settle() -> None:
            writer.wait()
            if writer.failure is not None:
                raise RuntimeError(writer.failure)
            if len(saving.blocked_s) > len(training.whole_s) and writer.last_write_s is not None:
                training.own_s.append(saving.blocked_s[-1])
                training.whole_s.append(saving.blocked_s[-1] + writer.last_write_s)

        training.attend({"unisono": un.__version__}, parts.adapter.model, trainer.train, settle)
        for observer in observers:
            observer.close()


if __name__ == "__main__":
    main()
