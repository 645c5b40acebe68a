"""A study on disk, shared by any number of jobs without a server and without locks: a journal for each job, and a file for each
claim.

studies/x/study.json          what is searched, and how; written once
         /journal/JOB.journal one for each job
         /claims/000007.0     who has attempt 0 of trial 7
         /trials/000007/      runs of its folds
"""

from __future__ import annotations

import heapq
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, time
from typing import Any
from uuid import uuid4

from unisono.files.claims import Claims
from unisono.files.journal import SUFFIX, Reader, Record, Writer
from unisono.tuning.study.database import Database, DatabaseClaims, DatabaseReader, DatabaseWriter
from unisono.tuning.study.study import ALIVE, ENDED, JOB, LEFT, Study, Trial, begin_record, give_back_record, proposal_record

ALIVE_EVERY_S = 15.0
READ_EVERY_S = 1.0
SYNC_EVERY_S = 0.2
"""A disk may take milliseconds for it, in which blocks would wait."""
DEAD_AFTER_S = 90.0
"""A job on another machine that has written nothing for so long, by our clock, is gone."""


@dataclass(frozen=True)
class PendingTrial:
    """A trial that has been claimed and must be run."""

    number: int
    attempt: int
    values: Mapping[str, Any] | None
    """None where new values must be proposed."""
    is_new: bool = False
    """Whether its values have not been recorded yet."""


@dataclass
class Store:
    """The study as one job sees it. Local; methods block for as long as the file system takes."""

    folder: Path
    about: Mapping[str, Any]
    num_trials: int
    job: str
    clock: Callable[[], float] = time
    read_every_s: float = 0.0
    """How often at most what other jobs have written is read: a network file system need not be asked after every message."""
    study: Study = field(default_factory=Study)

    def __post_init__(self) -> None:
        database = database_of(self.folder, self.about)
        self.claims: Claims | DatabaseClaims = Claims(self.folder / "claims")
        self._reader: Reader | DatabaseReader = Reader(self.folder / "journal", self.job)
        self._writer: Writer | DatabaseWriter
        if database is None:
            self._writer = Writer(self.folder / "journal", self.job)
        else:
            self.claims, self._reader = DatabaseClaims(database), DatabaseReader(database, self.job)
            self._writer = DatabaseWriter(database, self.job)
        self._last_heard: dict[str, float] = {}
        """Job -> when it last gave a sign of life, by our clock."""
        self._heartbeat_at = self._flush_at = self._check_others_at = self._read_at = 0.0
        self._num_written = 0
        self._changed: dict[int, Trial] = {}
        """Trials that have changed since the last call of `refresh`."""
        self._ended: set[int] = set()
        self._next = 0
        """The first trial that was not examined yet."""
        self._free: list[int] = []
        """Trials that were examined and that no job is running."""
        self._others: set[int] = set()
        """Trials that other jobs are running, as far as we know."""

    # ---- writing ---------------------------------------------------------------------------------------------------

    def record_join(self, about: Mapping[str, Any]) -> None:
        """Records that this job works on the study."""
        self.append({"event": JOB, "job": self.job, "at_s": self.clock(), **identity(), **about})

    def record_leave(self, reason: str) -> None:
        """Records that this job leaves the study; other jobs may then run its unfinished trials."""
        self.append({"event": LEFT, "job": self.job, "at_s": self.clock(), "reason": reason})
        self._writer.flush_to_disk()
        self._writer.close()

    def append(self, value: Mapping[str, Any]) -> None:
        """Writes a record and applies it to `study`. The record survives the death of this process at once, and that of the machine
        after the journal is flushed to disk."""
        self._writer.append(value, later=True)
        self._apply(Record(self.job, self._num_written, value))
        self._num_written += 1

    def sync(self) -> None:
        """Flushes the journal to disk and gives a sign of life to other jobs, each at most every so many seconds."""
        now = monotonic()
        if now >= self._heartbeat_at:
            self._heartbeat_at = now + ALIVE_EVERY_S
            self.append({"event": ALIVE, "job": self.job, "at_s": self.clock(), **identity()})
        if now >= self._flush_at:
            self._flush_at = now + SYNC_EVERY_S
            self._writer.flush_to_disk()

    def record_values(self, pending: PendingTrial, distributions: Mapping[str, str] | None = None) -> None:
        """Records the values of a trial from `claim_next`, with their ranges where no space has them."""
        if pending.is_new and pending.values is not None:
            self.append(proposal_record(pending.number, pending.values, distributions))

    def record_begin(self, pending: PendingTrial, block: int) -> None:
        """Records that a block of this job runs a trial."""
        self.append(begin_record(pending.number, pending.attempt, f"{self.job}/{block}", self.clock()))

    def give_back(self, number: int, attempt: int, reason: str, died: bool = False) -> None:
        """Records that this job no longer runs a trial, so that any job may."""
        self.append(give_back_record(number, attempt, reason, self.clock(), died))
        heapq.heappush(self._free, number)

    # ---- reading ---------------------------------------------------------------------------------------------------

    def refresh(self) -> list[Trial]:
        """Returns all trials that have changed since the last call: those of this job at once, those of others after the next
        read."""
        if monotonic() >= self._read_at:
            self._read()
        found, self._changed = list(self._changed.values()), {}
        return found

    def _read(self) -> None:
        """Applies the new records of other jobs, and notes that these jobs are alive."""
        self._read_at = monotonic() + self.read_every_s
        for record in self._reader.read():
            self._last_heard[record.writer] = monotonic()
            self._apply(record)

    def _apply(self, record: Record) -> None:
        """Applies a record to `study`, and notes which trial changed or ended."""
        self.study.apply(record)
        number = record.value.get("trial")
        if number is not None and number in self.study.trials:
            self._changed[number] = self.study.trials[number]
            if record.value["event"] == ENDED and number < self.num_trials:
                self._ended.add(number)

    @property
    def losses(self) -> list[str]:
        """Descriptions of what could not be read of the journal so far."""
        if isinstance(self._reader, DatabaseReader):
            return [str(one) for one in self._reader.damages]
        cut = [path for path in self._reader.unfinished() if not self._is_job_alive(path.name.removesuffix(SUFFIX))]
        return [
            *map(str, self._reader.damages),
            *(f"{path}: its end cannot be read; at most one record is lost there" for path in cut),
        ]

    def num_open(self) -> int:
        """Number of trials without a result."""
        return self.num_trials - len(self._ended)

    def claim_next(self) -> PendingTrial | None:
        """Claims and returns the first trial that no job is running: one that was given back or whose job died, else a new one.
        None where there is none."""
        self._reclaim_from_others()
        while self._free or self._next < self.num_trials:
            if self._free:
                number = heapq.heappop(self._free)
            else:
                number, self._next = self._next, self._next + 1
            if self._has_result(number):
                continue
            attempt = self._next_attempt(number)
            if attempt:
                self._read()  # another job may have ended it before it died
                if self._has_result(number):
                    continue
            if attempt is not None and self.claims.claim(number, attempt, self.job):
                trial = self.study.trials.get(number)
                return PendingTrial(number, attempt, None if trial is None else trial.values)
            self._others.add(number)
        return None

    def _reclaim_from_others(self) -> None:
        """Marks trials as free whose jobs gave them back or died."""
        if not self._others or monotonic() < self._check_others_at:
            return
        self._check_others_at = monotonic() + READ_EVERY_S
        for number in tuple(self._others):
            if self._has_result(number) or self._next_attempt(number) is not None:
                self._others.discard(number)
                heapq.heappush(self._free, number)

    def _has_result(self, number: int) -> bool:
        """Whether a trial of this number exists and has a result."""
        return number in self.study.trials and self.study.trials[number].result is not None

    def _next_attempt(self, number: int) -> int | None:
        """The number of a new attempt at a trial that no job is running; None where another job is running it."""
        trial = self.study.trials.get(number)
        attempt = 0 if trial is None else trial.next_attempt
        while self.claims.owner(number, attempt) is not None:  # claimed, and the record of it is lost or on its way
            attempt += 1
        if not attempt or (trial is not None and attempt - 1 in trial.given_back):
            return attempt
        owner = self.claims.owner(number, attempt - 1)
        if owner is None and trial is not None and attempt - 1 in trial.attempts:
            owner = trial.attempts[attempt - 1].block_id.partition("/")[0]
        return attempt if owner is None or owner == self.job or not self._is_job_alive(owner) else None

    def _is_job_alive(self, name: str) -> bool:
        """Whether a job works on the study: by its process on this machine, else by when it was last heard of."""
        if name in self.study.left_at:
            return False
        job = self.study.jobs.get(name)
        if job is not None and job.about.get("machine") == machine():
            return is_alive(job.about)
        return monotonic() - self._last_heard.setdefault(name, monotonic()) < DEAD_AFTER_S


def database_of(folder: Path, about: Mapping[str, Any]) -> Database | None:
    """Returns the database that holds the journal of a study; None where the journal is in files. Local, blocking."""
    url = about.get("storage")
    return None if url is None else Database(url, about.get("id") or folder.resolve().name, about)


def records_of(folder: Path, about: Mapping[str, Any]) -> list[Record]:
    """Returns all records of a study that can be read. Local, blocking."""
    database = database_of(folder, about)
    reader = Reader(folder / "journal") if database is None else DatabaseReader(database)
    return reader.read(is_over=True)


def new_job(hint: str = "") -> str:
    """Returns a name that no other job has. Local."""
    return f"{hint or socket.gethostname().split('.')[0]}-{uuid4().hex[:8]}"


def machine() -> str:
    """Returns a text that identifies this machine since its last start, and the container on it. Local."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def identity() -> dict[str, Any]:
    """Returns what other processes need to find out whether this process is alive. Local."""
    return {"host": socket.gethostname(), "machine": machine(), "pid": os.getpid(), "started": _start_time(os.getpid())}


def is_alive(about: Mapping[str, Any]) -> bool:
    """Whether the process with this `identity` on this machine is alive; its process number may have gone to another. Local."""
    try:
        os.kill(about["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return bool(_start_time(about["pid"]) == about["started"])


def _start_time(pid: int) -> str | None:
    """When a process began, in ticks since the machine started; None for a process that has ended, a zombie too."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else fields[19]
