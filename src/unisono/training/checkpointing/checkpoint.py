"""Checkpoints on the disk: the state of a training at one step, complete or absent.

checkpoints/step-00001200/state.safetensors    tensors by name
                          progress.json        plain values
                          best.safetensors     the best weights so far, where there are some
                          manifest.json        size and hash of every file, what made them, and its own hash
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from unisono.errors import UsageError
from unisono.files.manifest import DamagedFolder, read_manifest, write_manifest
from unisono.files.step_folders import StepFolders
from unisono.files.tensor_file import FileDigest, write_pieces, write_tensors
from unisono.training.run_folder.weights import load_weights

FORMAT = 2
STATE = "state.safetensors"
PROGRESS = "progress.json"
BEST = "best.safetensors"


class OtherFormat(UsageError):
    """Error: a good checkpoint that another version has written; to skip it would lose its state."""


@dataclass(frozen=True)
class Snapshot:
    """The whole state of a training after one step, in host memory; it is never changed."""

    step: int
    tensors: Mapping[str, Tensor]
    progress: Mapping[str, Any]
    """Plain values as JSON has them, with names for keys. Numbers come back bit for bit, inf and nan too."""
    best: Mapping[str, Tensor] | None = None
    """The best weights so far."""
    best_version: str | int | None = None
    """Another one whenever `best` is another one."""

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Pure: the state without the best weights: plain values, and the tensors that they name."""
        return dict(self.progress), dict(self.tensors)


@dataclass(frozen=True)
class Loaded:
    """A checkpoint that was read and whose every byte is as it was written."""

    path: Path
    snapshot: Snapshot
    made_by: Mapping[str, Any]
    damaged: tuple[str, ...]
    """A sentence for each newer one that was passed over."""


@dataclass(frozen=True)
class _Best:
    """Best weights that are on the disk."""

    step: int
    version: str | int | None
    file: Path
    written: FileDigest


class Checkpoints:
    """Reads and writes the checkpoints of one run. One process at a time writes them, in one thread; methods are local and
    blocking."""

    def __init__(self, folder: Path, keep: int) -> None:
        if keep < 1:
            raise UsageError(f"cannot keep {keep} checkpoints (--keep); keep at least 1")
        self.folder = folder
        self.keep = keep
        self._steps = StepFolders(folder)
        self.not_removed = ""
        """Why a checkpoint beyond the newest `keep` is still there after the last write."""
        self._bests: tuple[_Best, ...] = ()
        self._damaged = frozenset[int]()

    def write(self, snapshot: Snapshot, made_by: Mapping[str, Any]) -> Path:
        """Writes a snapshot, then removes checkpoints beyond the newest `keep`. If that fails, the earlier ones are unchanged;
        one that cannot be removed is no failure, and `not_removed` says why.

        Checkpoints of later steps are removed too: they were found damaged, or the run would have resumed from them.
        """
        path = self._steps.path(snapshot.step)
        with self._steps.new_folder(snapshot.step) as draft:
            files = {
                STATE: write_tensors(draft / STATE, snapshot.tensors),
                PROGRESS: write_pieces(draft / PROGRESS, iter([json.dumps(snapshot.progress, indent=2).encode()])),
            }
            if snapshot.best is not None:
                files[BEST] = self._write_best(draft / BEST, snapshot, snapshot.best)
            about = {"format": FORMAT, "step": snapshot.step, "best_version": snapshot.best_version, "made_by": dict(made_by)}
            write_manifest(draft, files, about)
        if BEST in files:
            best = _Best(snapshot.step, snapshot.best_version, path / BEST, files[BEST])
            self._bests = (*[other for other in self._bests if other.step != snapshot.step][-1:], best)
        self._damaged -= {snapshot.step}
        self._prune(snapshot.step)
        return path

    def newest(self) -> Loaded | None:
        """The newest checkpoint that is as it was written; None where there is none at all. Refuses if none of them is good."""
        damaged: list[str] = []
        for step, path in self._steps.list_steps():
            try:
                snapshot, made_by, best = _load_checkpoint(path, step)
            except OtherFormat:
                raise
            except (DamagedFolder, UsageError) as error:
                damaged.append(f"{path} is damaged: {error}")
                self._damaged |= {step}
                continue
            self._bests = () if best is None else (_Best(step, snapshot.best_version, path / BEST, best),)
            return Loaded(path, snapshot, made_by, tuple(damaged))
        if damaged:
            remedy = "Put an undamaged copy there, or start over with --fresh, which moves this run aside"
            raise UsageError(f"no checkpoint in {self.folder} is usable: {'; '.join(damaged)}. {remedy}")
        return None

    def _write_best(self, file: Path, snapshot: Snapshot, best: Mapping[str, Tensor]) -> FileDigest:
        """Writes the best weights to `file` and returns their digest. Where the same weights are on the disk already it only makes
        a link, though never to the checkpoint just before this one: that one must be good when this one is damaged."""
        before = max((other.step for other in self._bests if other.step < snapshot.step), default=None)
        for other in self._bests:
            if other.version == snapshot.best_version and other.step != before:
                try:
                    os.link(other.file, file)
                except OSError:  # no links on this file system, or the file is gone; a full disk raises below
                    break
                return other.written
        return write_tensors(file, best)

    def _prune(self, newest: int) -> None:
        """Removes all checkpoints but the newest `keep` that are sound and not after step `newest`."""
        found = self._steps.list_steps()
        kept = [step for step, _ in found if step <= newest and step not in self._damaged][: self.keep]
        self.not_removed = ""
        for step, path in found:
            if step not in kept:
                try:
                    self._steps.remove(path)
                except UsageError as error:
                    self.not_removed = f"an old checkpoint cannot be removed: {error}"


@dataclass(frozen=True)
class CheckpointStore:
    """The checkpoints of a run on rank 0, with the newest one of an earlier attempt."""

    checkpoints: Checkpoints
    made_by: Mapping[str, Any] = field(default_factory=dict)
    """Versions and provenance that each checkpoint records."""
    loaded: Loaded | None = None


def _load_checkpoint(path: Path, step: int) -> tuple[Snapshot, Mapping[str, Any], FileDigest | None]:
    """Returns the snapshot of this checkpoint, what wrote it, and the digest of its best weights, if it has any."""
    manifest = read_manifest(path)
    if manifest["format"] != FORMAT:
        raise OtherFormat(
            f"{path} has format {manifest['format']}, and this version of Unisono reads only {FORMAT}; use the version that "
            f"wrote it ({manifest['made_by'].get('versions', {}).get('unisono', 'not known')}), or start over with --fresh"
        )
    if manifest["step"] != step:
        raise DamagedFolder(f"it is of step {manifest['step']}, but its name says step {step}")
    best = manifest["files"].get(BEST)
    snapshot = Snapshot(
        step,
        _read_tensors(path / STATE),
        json.loads((path / PROGRESS).read_text()),
        None if best is None else _read_tensors(path / BEST),
        manifest["best_version"],
    )
    return snapshot, manifest["made_by"], None if best is None else FileDigest(best["sha256"], best["bytes"])


def _read_tensors(file: Path) -> dict[str, Tensor]:
    """Returns the tensors of a file in memory of their own, as the file may be removed while they are in use."""
    return {name: tensor.clone() for name, tensor in load_weights(file)[0].items()}
