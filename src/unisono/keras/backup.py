"""A fit that was killed or stopped goes on: its state is saved by the way, and found again by the number of the fit."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unisono.comm.base import Communicator
from unisono.comm.together import together
from unisono.errors import UsageError
from unisono.training.assemble import Assembled
from unisono.training.background import BackgroundWriter
from unisono.training.checkpoint import Checkpoints, Loaded
from unisono.training.saving import Best, Every, Saving
from unisono.training.state import Restored, share_state
from unisono.training.trainer import Trainer

FINISHED = "finished.json"
KEPT = 2
"""Checkpoints: where the newest is damaged there is one before."""


@dataclass(frozen=True)
class Backup:
    """Where one fit is saved, and how often."""

    comm: Communicator
    folder: Path
    every: str

    def take_up(self, trainer: Trainer, parts: Assembled) -> bool:
        """Collective, blocking: let the trainer save its state here, and go on with what an earlier life has left;
        whether there was something."""
        comm, every = self.comm, Every.parse(self.every)
        trainer.saving = Saving(comm, parts.adapter, parts.algorithm, every, None, Best(), print)
        checkpoints = Checkpoints(self.folder, KEPT)
        loaded = together(comm, lambda: _opened(self.folder, checkpoints) if comm.rank == 0 else None)
        if comm.rank == 0:
            trainer.saving.writer = BackgroundWriter(checkpoints, {})
        held = None if loaded is None else (dict(loaded.snapshot.progress), dict(loaded.snapshot.tensors))
        state = share_state(comm, held, parts.algorithm)
        if state is None:
            return False
        together(comm, lambda: trainer.go_on_from(Restored(state)))
        return True

    def is_finished(self, trainer: Trainer) -> bool:
        """Collective: whether an earlier life of this fit came to its end."""
        file = self.folder / FINISHED
        asked = json.loads(file.read_text())["epochs"] if self.comm.rank == 0 and file.exists() else 0
        is_over = trainer.progress.epoch >= trainer.goals.num_epochs or asked >= trainer.goals.num_epochs
        if self.comm.rank == 0:
            print(f"unisono: {self.folder} is {'finished' if is_over else f'taken up at step {trainer.progress.step}'}", flush=True)
        return bool(self.comm.broadcast_object(is_over))

    def finish(self, num_epochs: int) -> None:
        """Local: it is over, though a callback may have ended it before so many epochs."""
        if self.comm.rank == 0:
            (self.folder / FINISHED).write_text(json.dumps({"epochs": num_epochs}) + "\n")


def find_backup(comm: Communicator, folder: str | None, every: str, number: int, callbacks: list[Any]) -> Backup | None:
    """Collective: of the fit with this number; takes the place of Keras's own callback for it."""
    from keras.callbacks import BackupAndRestore

    for one in [one for one in callbacks if isinstance(one, BackupAndRestore)]:
        folder = folder or str(one.backup_dir)
        callbacks.remove(one)
    folder = comm.broadcast_object(folder)
    return None if folder is None else Backup(comm, Path(folder) / f"fit-{number}", every)


def _opened(folder: Path, checkpoints: Checkpoints) -> Loaded | None:
    """Local, blocking: what an earlier life has left there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"the backup {folder} cannot be made: {error.strerror}; give another folder (Strategy(backup=...))"
        ) from error
    return checkpoints.newest()
