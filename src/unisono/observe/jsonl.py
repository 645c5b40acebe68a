"""The record of a run as a file: one JSON object per line; each attempt that resumes the run adds lines."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from io import FileIO
from pathlib import Path
from time import perf_counter, time
from typing import Any

from unisono.errors import CannotWrite
from unisono.events import EpochDone, Observer, RunEnded, RunStarted, StepDone
from unisono.files.atomic import explain_os_errors

FLUSH_EVERY_S = 5.0
"""Interval of writes in long epochs: a crash loses at most the steps since the last, and a reader is at most so far behind."""
WARN_EVERY_S = 60.0
LONGEST_LINE_BYTES = 1 << 20
OF_THE_SUMMARY = ("steps", "wall_s", "metrics")
"""Entries of the summary that the last line repeats; the summary has a file of its own."""


class LineFile:
    """A file of JSON objects, one per line. Local; a line that an earlier run left unfinished is removed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None
        self._waiting: list[str] = []

    def open(self) -> None:
        """Local: makes the file, or prepares an existing one for more lines."""
        with explain_os_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = FileIO(self.path, "a+")
            size = os.fstat(self._file.fileno()).st_size
            if size:
                self._file.seek(max(0, size - LONGEST_LINE_BYTES))
                unfinished = self._file.readall().rpartition(b"\n")[2]
                self._file.truncate(size - len(unfinished))

    def keep(self, wanted: Callable[[Mapping[str, Any]], bool]) -> None:
        """Local, blocking: removes the rows for which `wanted` is false, all of them or none. Lines that are no rows stay."""
        assert self._file is not None, "not open"
        if not os.fstat(self._file.fileno()).st_size:
            return
        rows = self.path.read_bytes().splitlines(keepends=True)
        left = [row for row in rows if "event" not in (read := _row(row) or {}) or wanted(read)]
        if len(left) == len(rows):
            return
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}.draft")
        try:
            with explain_os_errors(self.path):
                draft.write_bytes(b"".join(left))
                draft.replace(self.path)
                self.close()
                self._file = FileIO(self.path, "a+")
        finally:
            draft.unlink(missing_ok=True)

    def add(self, row: Mapping[str, Any]) -> None:
        """Local: adds a row, which the next `flush` writes."""
        self._waiting.append(line_of(row))

    def flush(self) -> None:
        """Local, blocking: writes the rows that wait. Raises `CannotWrite` if that fails; the rows then wait for the next call."""
        assert self._file is not None or not self._waiting, "not open"
        rest = memoryview("".join(self._waiting).encode())
        try:
            while rest:
                assert self._file is not None
                with explain_os_errors(self.path):
                    rest = rest[self._file.write(rest) :]
        finally:
            self._waiting = [bytes(rest).decode()] if rest else []

    def drop(self) -> None:
        """Local: drops the rows that wait."""
        self._waiting.clear()

    def close(self) -> None:
        """Local: writes the rows that wait and closes the file. Idempotent."""
        if self._file is not None:
            try:
                self.flush()
            finally:
                self._file.close()
                self._file = None


class JsonLines(Observer):
    """`metrics.jsonl`: the start, every `log_every`-th step, every epoch and the end of a run."""

    def __init__(self, path: Path, log_every: int = 1, warn: Callable[[str], None] | None = None) -> None:
        """`warn`: called while the file cannot be written, e.g. on a full disk; the run continues, and its end raises. Without it
        the first failure raises."""
        self._file = LineFile(path)
        self._log_every = log_every
        self._warn = warn
        self._warned_s = -WARN_EVERY_S
        self._flushed_s = 0.0
        self._has_unwritten_lines = False
        """Whether the lines that wait could not be written."""

    def started(self, event: RunStarted) -> None:
        """Opens the file, removes the rows that a resumed run repeats, and writes the row of the start."""
        self._file.open()
        self._file.keep(lambda row: _is_before(row, event))
        self._write("started", {"unix_s": time(), **asdict(event)})

    def step(self, event: StepDone) -> None:
        """Adds a row for every `log_every`th step; writes waiting rows from time to time."""
        if event.step % self._log_every:
            return
        row = {name: part for name, part in event._asdict().items() if name != "so_far"}
        self._file.add({"event": "step", **row, "metrics": event.sums})
        if perf_counter() - self._flushed_s > FLUSH_EVERY_S:
            self._flush()

    def epoch(self, event: EpochDone) -> None:
        """Writes the row of an epoch."""
        self._write("epoch", vars(event))

    def saving(self) -> None:
        self._flush()

    def ended(self, event: RunEnded) -> None:
        """Writes the row of the end, with a few numbers of the summary. Raises if the file cannot be written."""
        self._warn = None
        found = {name: event.summary[name] for name in OF_THE_SUMMARY if name in event.summary}
        self._write("ended", {"reason": event.reason, **found})

    def close(self) -> None:
        if self._has_unwritten_lines:
            self._file.drop()
        self._file.close()

    def _write(self, event: str, row: Mapping[str, Any]) -> None:
        """Adds a row and writes all that wait."""
        self._file.add({"event": event, **row})
        self._flush()

    def _flush(self) -> None:
        """Writes the rows that wait. On failure warns and keeps them, or raises where nobody can be warned."""
        self._flushed_s = perf_counter()
        try:
            self._file.flush()
        except CannotWrite as error:
            self._has_unwritten_lines = True
            if self._warn is None:
                raise
            if self._flushed_s - self._warned_s >= WARN_EVERY_S:
                self._warned_s = self._flushed_s
                self._warn(f"warning: {error}; its lines are kept in memory, and the training continues")
        else:
            self._has_unwritten_lines = False


def _is_before(row: Mapping[str, Any], event: RunStarted) -> bool:
    """Pure: whether a row is of a step before the one from which a run resumes; rows of later steps are repeated."""
    if row["event"] == "step":
        return bool(row["step"] < event.first_step)
    return row["event"] != "epoch" or bool(row["epoch"] < event.first_epoch)


def line_of(row: Mapping[str, Any]) -> str:
    """Pure: the row as a line of valid JSON. Numbers that JSON does not know are null, and `not_finite` says which they were:
    {"loss": null, "not_finite": {"loss": "nan"}}."""
    strange: dict[str, str] = {}
    plain = {name: _plain(part, name, strange) for name, part in row.items()}
    if strange:
        plain["not_finite"] = strange
    return json.dumps(plain, allow_nan=False) + "\n"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Local, blocking: reads the rows of such a file, without a last line that is not finished and without lines that are no rows,
    as a failing machine may leave."""
    return [row for line in path.read_bytes().rpartition(b"\n")[0].splitlines() if (row := _row(line)) is not None]


def _row(line: bytes) -> dict[str, Any] | None:
    """Returns the row of a line; None if it is none."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _plain(part: Any, place: str, strange: dict[str, str]) -> Any:
    """Returns data as JSON allows it: None in place of infinities and NaN, whose places go into `strange`."""
    if isinstance(part, Mapping):
        return {str(name): _plain(inner, f"{place}.{name}", strange) for name, inner in part.items()}
    if isinstance(part, (list, tuple)):
        return [_plain(inner, f"{place}[{position}]", strange) for position, inner in enumerate(part)]
    if hasattr(part, "item"):  # a number of NumPy or PyTorch
        part = part.item()
    if isinstance(part, float) and not math.isfinite(part):
        strange[place] = str(part)
        return None
    return part
