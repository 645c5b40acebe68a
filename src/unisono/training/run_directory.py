"""The place of all that a run produces. One run, one directory: it holds nothing of another run, and only one process writes it."""

from __future__ import annotations

import errno
import fcntl
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

from unisono.errors import UsageError
from unisono.training.atomic import explained, replacing

NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
"""What file systems answer that know no locks, e.g. Lustre mounted without them."""
SHOWN = 6
"""Differences named in a message."""


class RunDirectory:
    """One run's directory, held by this process until `close`. Only rank 0 has one. Its methods are local and blocking."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_locked = False
        """Whether a second run here would be refused while this one goes on; False where the file system knows no locks."""
        self._lock: int | None = None

    @classmethod
    def open(cls, out: str | Path | None, name: str, config: Mapping[str, Any], parent: str | Path = "runs") -> RunDirectory:
        """Make and hold the directory `out`, or by default a new one, parent/name, parent/name-2, ..., and write config.json.

        Refuses a directory that another process holds, that holds another run (what differs is named) or this same run.
        """
        directory = cls(_made(Path(out)) if out is not None else _made_anew(Path(parent), name))
        try:
            directory._hold()
            directory._refuse_used(config)
            directory.write_json("config.json", config)
        except BaseException:
            directory.close()
            raise
        return directory

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def weights(self) -> Path:
        return self.path / "weights.safetensors"

    @property
    def best(self) -> Path:
        return self.path / "best.safetensors"

    @property
    def curves(self) -> Path:
        return self.path / "curves.png"

    @property
    def timeline(self) -> Path:
        return self.path / "timeline.json"

    @property
    def monitor(self) -> Path:
        """A folder; whoever writes there makes it."""
        return self.path / "monitor"

    def write_json(self, name: str, value: Any) -> None:
        """Write a file wholly or not at all. Numbers that are not finite become null, as JSON has none."""
        path = self.path / name
        with replacing(path) as draft:
            draft.write_text(json.dumps(as_json(value), indent=2) + "\n")

    def append_json(self, name: str, value: Any) -> None:
        """Add one line. A line that a killed process left unfinished stays alone on its own."""
        path = self.path / name
        line = json.dumps(as_json(value)).encode() + b"\n"
        with explained(path), path.open("ab+") as file:
            if file.tell() > 0:
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else b"\n" + line
            file.write(line)

    def close(self) -> None:
        """Let others have it. Idempotent."""
        if self._lock is not None:
            os.ftruncate(self._lock, 0)
            if self.is_locked:
                fcntl.flock(self._lock, fcntl.LOCK_UN)  # for all forked processes that share the lock
            os.close(self._lock)
            self._lock, self.is_locked = None, False

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _hold(self) -> None:
        path = self.path / ".lock"
        with explained(path):
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.is_locked = True
        except BlockingIOError:
            holder = _holder(os.pread(lock, 4096, 0))
            os.close(lock)
            raise UsageError(f"{self.path} is in use by another run ({holder}); wait for it, or give another --out") from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                os.close(lock)
                raise
        self._lock = lock
        with explained(path):
            os.ftruncate(lock, 0)
            os.pwrite(lock, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)

    def _refuse_used(self, config: Mapping[str, Any]) -> None:
        state = "finished" if self.summary.exists() else "unfinished"
        if not self.config.exists():
            files = (self.metrics, self.summary, self.weights, self.best)
            if found := [file.name for file in files if file.exists()]:
                raise UsageError(f"{self.path} holds {', '.join(found)} of a run without its config.json; give another --out")
            return
        try:
            there = json.loads(self.config.read_text())
        except ValueError as error:
            raise UsageError(f"{self.config} is no JSON ({error}); give another --out") from error
        if found := list(differences(there, as_json(config))):
            more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
            raise UsageError(
                f"{self.path} holds another run ({state}): {'; '.join(found[:SHOWN])}{more}. Give another --out, or remove that one"
            )
        kept = ", ".join(sorted(entry.name for entry in self.path.iterdir() if not entry.name.startswith(".")))
        raise UsageError(f"{self.path} holds this same run, {state} ({kept}). Give another --out, or remove that one")


def differences(there: Any, here: Any, place: str = "") -> Iterator[str]:
    """Pure: what differs between two values of JSON, key by key: "lr 0.1 there, 0.2 here"."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in [*there, *(key for key in here if key not in there)]:
            yield from differences(there.get(key), here.get(key), f"{place}.{key}" if place else key)
    elif there != here:
        yield f"{place} {_short(there)} there, {_short(here)} here"


def as_json(value: Any) -> Any:
    """Pure: the value as JSON keeps it: NumPy numbers and paths as plain ones, not-finite numbers as None."""
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


def _made(path: Path) -> Path:
    with explained(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


def _made_anew(parent: Path, name: str) -> Path:
    """The first of parent/name, parent/name-2, ... that is not there; making it is what claims it."""
    base = re.sub(r"[^\w.+-]+", "_", name).strip(".") or "run"
    _made(parent)
    for number in count(1):
        path = parent / (base if number == 1 else f"{base}-{number}")
        try:
            with explained(path):
                path.mkdir()
        except UsageError as error:
            if isinstance(error.__cause__, FileExistsError):
                continue
            raise
        return path
    raise AssertionError("counting has no end")


def _holder(text: bytes) -> str:
    try:
        known = json.loads(text)
        return f"process {known['pid']} on {known['host']}"
    except (ValueError, KeyError, TypeError):
        return "a process that has not said who it is"


def _short(value: Any) -> str:
    text = "nothing" if value is None else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
