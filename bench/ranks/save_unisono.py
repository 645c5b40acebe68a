"""Unisono's trainer with what `unisono train --checkpoint-every` gives it on rank 0: saving, background writer, clock, status."""

from __future__ import annotations

import unisono as un
from bench.ranks.saving import SavedTraining, make_model
from bench.ranks.train_unisono import EPOCHS, started
from bench.saving_case import BATCH, LR
from unisono.data.sources.arrays import Arrays
from unisono.stopping.deadline import deadline_of_this_process
from unisono.stopping.stop_request import StopRequest
from unisono.training.checkpointing.saving import SaveInterval


class StepTurns(StopRequest):
    """The trainer asks it when the batch of a step is in hand."""

    def __init__(self, training: SavedTraining) -> None:
        super().__init__()
        self._training = training

    def requested(self) -> bool:
        self._training.step_begins()
        return super().requested()


def main() -> None:
    training = SavedTraining()
    out = training.folder.with_name(f"{training.folder.name}-run")
    out.mkdir()
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
    interval, deadline = SaveInterval(steps=training.period), deadline_of_this_process(None)
    with (
        un.connect(quiet=True) as comm,
        StepTurns(training) as stop,
        started(comm, task, out, training.folder, interval, stop, deadline) as trainer,
    ):
        saving = trainer.saving
        assert saving is not None and saving.writer is not None
        writer = saving.writer

        def settle() -> None:
            writer.wait()
            if writer.failure is not None:
                raise RuntimeError(writer.failure)
            if len(saving.blocked_s) > len(training.whole_s) and writer.last_write_s is not None:
                training.own_s.append(saving.blocked_s[-1])
                training.whole_s.append(saving.blocked_s[-1] + writer.last_write_s)

        training.attend({"unisono": un.__version__}, trainer.parts.adapter.model, trainer.train, settle)


if __name__ == "__main__":
    main()
