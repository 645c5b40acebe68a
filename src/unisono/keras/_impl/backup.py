"""Makes `fit` resumable after a kill or a stop: it saves checkpoints, which are found again by the number of the fit."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unisono.comm.base import Communicator
from unisono.comm.on_all_ranks import on_all_ranks
from unisono.errors import UsageError
from unisono.training.checkpointing.checkpoint import Checkpoints, CheckpointStore
from unisono.training.checkpointing.saving import SaveInterval
from unisono.training.trainer_base import TrainerBase

FINISHED = "finished.json"
KEPT = 2
"""Checkpoints: where the newest is damaged there is one before."""


@dataclass(frozen=True)
class Backup:
    """The folder of one fit's checkpoints, and how often they are saved."""

    comm: Communicator
    folder: Path
    interval: SaveInterval

    def open(self) -> CheckpointStore | None:
        """Collective, blocking: opens the folder on rank 0, with the newest checkpoint of an earlier attempt; None on others."""
        return on_all_ranks(self.comm, lambda: _open_folder(self.folder) if self.comm.rank == 0 else None)

    def is_finished(self, trainer: TrainerBase) -> bool:
        """Collective: whether an earlier attempt finished this fit."""
        file = self.folder / FINISHED
        asked = json.loads(file.read_text())["epochs"] if self.comm.rank == 0 and file.exists() else 0
        is_over = trainer.progress.epoch >= trainer.goals.num_epochs or asked >= trainer.goals.num_epochs
        if self.comm.rank == 0:
            state = "finished already" if is_over else f"starting from step {trainer.progress.step}"
            print(f"unisono: {self.folder}: {state}", flush=True)
        return bool(self.comm.broadcast_object(is_over))

    def finish(self, num_epochs: int) -> None:
        """Local: records that the fit is finished, even if a callback ended it before `num_epochs` epochs."""
        if self.comm.rank == 0:
            (self.folder / FINISHED).write_text(json.dumps({"epochs": num_epochs}) + "\n")


def find_backup(comm: Communicator, folder: str | None, every: str, number: int, callbacks: list[Any]) -> Backup | None:
    """Collective: the backup of the fit with this number; None without a folder. It replaces Keras's own callback for backups."""
    from keras.callbacks import BackupAndRestore

    for one in [one for one in callbacks if isinstance(one, BackupAndRestore)]:
        folder = folder or str(one.backup_dir)
        callbacks.remove(one)
    folder = comm.broadcast_object(folder)
    return None if folder is None else Backup(comm, Path(folder) / f"fit-{number}", SaveInterval.parse(every))


def _open_folder(folder: Path) -> CheckpointStore:
    """Local, blocking: opens the folder of checkpoints."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"the backup folder {folder} cannot be created: {error.strerror}; give another folder (Strategy(backup=...))"
        ) from error
    checkpoints = Checkpoints(folder, KEPT)
    return CheckpointStore(checkpoints, loaded=checkpoints.newest())
