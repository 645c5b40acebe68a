"""The directory of everything that a run produces. One run, one directory: it holds nothing of another run, and only one process
writes it."""

from __future__ import annotations

import json
import math
import os
import re
import socket
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any

from unisono.data.data_differences import describe_changed_values
from unisono.errors import AnotherRun, InUse, UsageError
from unisono.files.atomic import atomic_replacement, explain_os_errors
from unisono.files.sole_holder import HeldElsewhere, SoleHolder, describe_holder

CHECKPOINTS = "checkpoints"
IGNORED_IN_COMPARISON = ("task_file", "num_workers")
"""Parts of the configuration that may change from attempt to attempt: the place of the task file (its contents count) and the
number of workers."""
SAMPLES, VALUES = "samples", "values"
"""Where the configuration records the data, and in it sums of their values."""
RUN_FILES = (
    "config.json",
    CHECKPOINTS,
    "metrics.jsonl",
    "hashes.jsonl",
    "weights.safetensors",
    "best.safetensors",
    "summary.json",
    "status.json",
    "curves.png",
    "timeline.json",
    "monitor",
    "tensorboard",
)
"""Files that belong to one run, the configuration first: files that are left without it are seen to be no whole run. Others, e.g.
the file of a job, belong to the directory."""
SHOWN = 6
"""Most differences that a message names."""


class RunDirectory:
    """One run's directory, held by this process until `close`. Only rank 0 has one. Its methods are local and blocking."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.changes: tuple[str, ...] = ()
        """Accepted differences from the run that was there."""
        self._lock: int | None = None
        self._holder: SoleHolder | None = None

    @classmethod
    def open(
        cls,
        out: str | Path | None,
        name: str,
        config: Mapping[str, Any],
        parent: str | Path = "runs",
        *,
        fresh: bool = False,
        accept_changes: bool = False,
        launch: str | None = None,
    ) -> RunDirectory:
        """Makes and locks the directory `out`, or by default a new one, parent/name, parent/name-2, ..., and writes config.json.

        A directory that holds this same run is resumed, whatever the number of workers. Refuses one that another process holds, or
        that holds another run: what differs is named. `fresh` puts aside what is there, once for each command `launch`, whose
        later attempts resume what the first began; `accept_changes` resumes another run, whose changes are in `changes`; its
        config.json stays until the caller knows that it can be resumed so.
        """
        directory = cls(_make_directory(Path(out)) if out is not None else make_new_directory(Path(parent), name))
        try:
            directory._lock_directory()
            directory._remove_drafts()
            if fresh:
                directory._start_fresh(launch)
            directory._refuse_another(config, accept_changes)
            if not directory.changes:
                directory.write_json("config.json", directory._as_recorded(config))
        except BaseException:
            directory.close()
            raise
        return directory

    @property
    def config(self) -> Path:
        """Path of the file that records what the run is: its task and settings."""
        return self.path / "config.json"

    @property
    def metrics(self) -> Path:
        """Path of the file with one line of metrics for each epoch."""
        return self.path / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        """Path of the file with the result of the run."""
        return self.path / "summary.json"

    @property
    def weights(self) -> Path:
        """Path of the file with the last weights."""
        return self.path / "weights.safetensors"

    @property
    def best(self) -> Path:
        """Path of the file with the weights of the best epoch."""
        return self.path / "best.safetensors"

    @property
    def curves(self) -> Path:
        """Path of the picture of the learning curves."""
        return self.path / "curves.png"

    @property
    def timeline(self) -> Path:
        """Path of the trace of what each rank did when (--profile)."""
        return self.path / "timeline.json"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints, which may not exist yet."""
        return self.path / CHECKPOINTS

    @property
    def status(self) -> Path:
        """Path of the file that shows how far the run is, and its attempts."""
        return self.path / "status.json"

    def write_json(self, name: str, value: Any) -> None:
        """Writes a file wholly or not at all. Numbers that are not finite become null, as JSON has none."""
        path = self.path / name
        with atomic_replacement(path) as draft:
            draft.write_text(json.dumps(as_json(value), indent=2) + "\n")

    def close(self) -> None:
        """Releases the directory for other processes. Idempotent."""
        if self._lock is not None:
            os.ftruncate(self._lock, 0)
            if self._holder is not None:
                self._holder.release()
            os.close(self._lock)
            self._lock = self._holder = None

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _lock_directory(self) -> None:
        """Locks the folder until this process ends; raises InUse if another process has locked it."""
        path = self.path / ".lock"
        with explain_os_errors(path):
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            with explain_os_errors(path):
                self._holder = SoleHolder(lock, path)
        except HeldElsewhere as held:
            holder = str(held) or describe_holder(os.pread(lock, 4096, 0))
            os.close(lock)
            raise InUse(f"{self.path} is in use by another run ({holder}); wait for it, or give another --out") from None
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock
        with explain_os_errors(path):
            os.ftruncate(lock, 0)
            os.pwrite(lock, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)

    def _remove_drafts(self) -> None:
        """Removes the drafts of killed processes."""
        with explain_os_errors(self.path):
            for draft in self.path.glob(".*.draft"):
                draft.unlink(missing_ok=True)

    def _refuse_another(self, config: Mapping[str, Any], accept_changes: bool) -> None:
        """Raises AnotherRun if the folder holds another run than `config`; more epochs, or accepted changes, are no other run."""
        if not self.config.exists():
            files = (self.metrics, self.summary, self.weights, self.best, self.checkpoints)
            if found := [file.name for file in files if file.exists()]:
                raise AnotherRun(
                    f"{self.path} holds {', '.join(found)} of a run without its config.json; give another --out, or --fresh"
                )
            return
        try:
            there = json.loads(self.config.read_text())
        except ValueError as error:
            raise AnotherRun(f"{self.config} is not valid JSON ({error}); give another --out, or --fresh to start over") from error
        here = as_json(config)
        found = list(differences(_comparable_part(there), _comparable_part(here)))
        found += [f"the values of {one} have changed" for one in describe_changed_values(_values(there), _values(here))]
        if _num_epochs(there) < _num_epochs(config):  # more of the same
            found = [one for one in found if not one.startswith("settings.epochs ")]
        if found and not accept_changes:
            more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
            raise AnotherRun(
                f"{self.path} holds another run: {'; '.join(found[:SHOWN])}{more}. Give another --out, or --fresh to put that run "
                "aside and start over, or --accept-changes to resume it all the same"
            )
        self.changes = tuple(found)

    def _as_recorded(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the configuration, without values of the data where the run that is here was recorded without them."""
        if self.config.exists() and not _values(json.loads(self.config.read_text())):
            return {**config, **{name: _without_values(config[name]) for name in (SAMPLES,) if name in config}}
        return config

    def _start_fresh(self, launch: str | None) -> None:
        """Puts the run in the folder aside; for one `launch` only once, as its attempts resume each other."""
        mark = self.path / ".fresh"
        if launch is None:
            self._put_aside()
        elif not mark.exists() or mark.read_text() != launch:
            self._put_aside()
            with atomic_replacement(mark) as draft:
                draft.write_text(launch)

    def _put_aside(self) -> None:
        """Moves the files of the run into a folder earlier-N. If that is interrupted, the rest is refused, and can be put aside
        too."""
        present = [path for name in RUN_FILES if (path := self.path / name).exists()]
        if not present:
            return
        with explain_os_errors(self.path):
            aside = next(path for number in count(1) if not (path := self.path / f"earlier-{number}").exists())
            aside.mkdir()
            for path in present:
                path.rename(aside / path.name)


def _comparable_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """Pure: the configuration without what may differ between attempts of a run: the task file's place, the number of workers, and
    values of the data, which may be rounded."""
    found = {name: value for name, value in config.items() if name not in IGNORED_IN_COMPARISON}
    return found | {name: _without_values(found[name]) for name in (SAMPLES,) if name in found}


def _without_values(samples: Mapping[str, Any]) -> dict[str, Any]:
    """Pure: the record of the data without the sums of their values."""
    return {name: value for name, value in samples.items() if name != VALUES}


def _values(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the sums of the values of the data in a record of a run; none in those of older versions."""
    found: Mapping[str, Any] = (config.get(SAMPLES) or {}).get(VALUES) or {}
    return found


def _num_epochs(config: Mapping[str, Any]) -> int:
    """Returns the number of epochs in a record of a run; 0 if it names none."""
    return int(config.get("settings", {}).get("epochs", 0))


def differences(there: Any, here: Any, place: str = "", words: tuple[str, str] = ("before", "now")) -> Iterator[str]:
    """Pure: describes the differences between two values of JSON, key by key: "lr 0.1 before, 0.2 now". `words` say which value is
    whose."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in [*there, *(key for key in here if key not in there)]:
            yield from differences(there.get(key), here.get(key), f"{place}.{key}" if place else key, words)
    elif there != here:
        yield f"{place} {_shorten(there)} {words[0]}, {_shorten(here)} {words[1]}"


def as_json(value: Any) -> Any:
    """Pure: a value as JSON keeps it: NumPy numbers and paths as plain values, numbers that are not finite as None."""
    if isinstance(value, Mapping):
        return {str(key): as_json(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [as_json(part) for part in value]
    if isinstance(value, (set, frozenset)):
        return sorted(as_json(part) for part in value)
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # arrays, tensors and their numbers
        return as_json(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _make_directory(path: Path) -> Path:
    with explain_os_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


def new_names(parent: Path, name: str) -> Iterator[Path]:
    """Pure: candidates for a new directory: parent/name, parent/name-2, ..., without end. The name is made valid for file
    systems."""
    base = re.sub(r"[^\w.+-]+", "_", name).strip(".") or "run"
    yield from (parent / (base if number == 1 else f"{base}-{number}") for number in count(1))


def make_new_directory(parent: Path, name: str) -> Path:
    """Local: makes and returns the first of `new_names` that does not exist; no other process can then make the same one."""
    _make_directory(parent)
    for path in new_names(parent, name):
        try:
            with explain_os_errors(path):
                path.mkdir()
        except UsageError as error:
            if isinstance(error.__cause__, FileExistsError):
                continue
            raise
        return path
    raise AssertionError("counting has no end")


def _shorten(value: Any) -> str:
    """Returns the value as JSON of at most 60 characters; "nothing" for None."""
    text = "nothing" if value is None else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
