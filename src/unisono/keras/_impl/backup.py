"""Makes `fit` resumable after a kill or a stop: it saves checkpoints, which are found again by the number of the fit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unisono.comm.base import Communicator
from unisono.comm.on_all_ranks import on_all_ranks
from unisono.errors import UsageError
from unisono.files.atomic import atomic_replacement
from unisono.training.checkpointing.checkpoint import Checkpoints, CheckpointStore
from unisono.training.checkpointing.resume import TRAINER
from unisono.training.checkpointing.saving import SaveInterval
from unisono.training.run_folder.provenance import versions
from unisono.training.run_folder.run_directory import SHOWN, differences
from unisono.training.trainer_base import TrainerBase

FINISHED = "finished.json"
RECORD = "fit.json"
KEPT = 2
"""Checkpoints: where the newest is damaged there is one before."""


@dataclass(frozen=True)
class Backup:
    """The folder of one fit's checkpoints, and how often they are saved."""

    comm: Communicator
    folder: Path
    interval: SaveInterval

    def begin(self, fit: Mapping[str, Any], seed: int, adopts_seed: bool) -> int:
        """Collective, blocking: compares the record of the fit with that of an earlier attempt, refuses another fit, and records
        this one. Returns the seed of the earlier attempt, or for the first one `seed`."""

        def compare() -> int:
            found, notes = _begin(self.folder, fit, {"num_workers": self.comm.size, "versions": versions()}, seed, adopts_seed)
            self.show(notes)
            return found

        return int(self.comm.broadcast_object(on_all_ranks(self.comm, lambda: compare() if self.comm.rank == 0 else 0)))

    def open(self) -> CheckpointStore | None:
        """Collective, blocking: opens the folder on rank 0, with the newest checkpoint of an earlier attempt; None on others."""
        store = on_all_ranks(self.comm, lambda: _open_folder(self.folder) if self.comm.rank == 0 else None)
        if store is not None and store.loaded is not None:
            self.show(f"warning: {one}; the checkpoint before it is used" for one in store.loaded.damaged)
        return store

    def show(self, notes: Iterable[str]) -> None:
        """Local: prints what a user should know about a resumed fit, on rank 0."""
        for note in notes if self.comm.rank == 0 else ():
            print(f"unisono: {self.folder}: {note}", flush=True)

    def is_finished(self, trainer: TrainerBase) -> bool:
        """Collective: whether an earlier attempt finished this fit."""
        file = self.folder / FINISHED
        ended = json.loads(file.read_text()) if self.comm.rank == 0 and file.exists() else {"epochs": 0}
        done, num_epochs = trainer.progress, trainer.goals.num_epochs
        is_at_end = done.step >= ended.get("step", 0)  # not where the last checkpoint is damaged
        is_over = done.epoch >= num_epochs or (ended["epochs"] >= num_epochs and is_at_end)
        self.show(["finished already" if is_over else f"starting from step {trainer.progress.step}"])
        return bool(self.comm.broadcast_object(is_over))

    def finish(self, num_epochs: int, step: int) -> None:
        """Local: records that the fit is finished at this step, even if a callback ended it before `num_epochs` epochs."""
        if self.comm.rank == 0:
            (self.folder / FINISHED).write_text(json.dumps({"epochs": num_epochs, "step": step}) + "\n")


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
    checkpoints = Checkpoints(folder, KEPT)
    return CheckpointStore(checkpoints, loaded=checkpoints.newest())


def _make_folder(folder: Path) -> None:
    """Local: makes the folder where there is none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"the backup folder {folder} cannot be created: {error.strerror}; give another folder (Strategy(backup=...))"
        ) from error


def _begin(folder: Path, fit: Mapping[str, Any], about: Mapping[str, Any], seed: int, adopts_seed: bool) -> tuple[int, list[str]]:
    """Local, blocking, on rank 0: the seed to use and what to tell the user; writes the record."""
    file, notes = folder / RECORD, list[str]()
    _make_folder(folder)
    if any(path.name != RECORD and not path.name.startswith(".") for path in folder.iterdir()):
        if file.exists():
            there = json.loads(file.read_text())
            _refuse_another(folder, there["fit"], fit)
            notes = [
                f"warning: {one}; the result will be the same only up to rounding"
                for name in about
                for one in differences(_common(there[name], about[name]), _common(about[name], there[name]), name)
            ]
            seed = there["seed"]
        else:
            notes = ["an earlier version of Unisono left it without a record of data and settings, so they are not compared"]
            seed = _seed_without_record(folder, seed) if adopts_seed else seed
    with atomic_replacement(file) as draft:
        draft.write_text(json.dumps({"fit": fit, "seed": seed, **about}, indent=2) + "\n")
    return seed, notes


def _refuse_another(folder: Path, there: Any, here: Any) -> None:
    """Refuses a fit that differs from the one in the backup."""
    if found := list(differences(there, json.loads(json.dumps(here)))):
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        raise UsageError(
            f"the backup {folder} is of another fit: {'; '.join(found[:SHOWN])}{more}. Undo the change, remove the folder to "
            "start over, or give another one (Strategy(backup=...))"
        )


def _common(value: Any, other: Any) -> Any:
    """Pure: of two dicts the entries that both have; a package that one attempt did not load is not compared."""
    return {name: part for name, part in value.items() if name in other} if isinstance(value, dict) else value


def _seed_without_record(folder: Path, seed: int) -> int:
    """Local, blocking: the seed of an attempt of an earlier version, from its checkpoint or its run directory; else `seed`."""
    config = folder / "config.json"
    if config.exists():
        return int(json.loads(config.read_text())["settings"]["seed"])
    loaded = Checkpoints(folder, KEPT).newest()
    return seed if loaded is None else int(loaded.snapshot.progress[TRAINER]["plan"][2])
