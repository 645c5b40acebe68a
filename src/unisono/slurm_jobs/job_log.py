"""The log of a chain of jobs, written by their batch file and `unisono submit`: one line for each event. Needs no accounting.

2026-11-15T11:31:14+0000 4711 began as number 2 on n[1-2]
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

LINE = re.compile(r"(\S+) (\d+) (\w+)(.*)")


@dataclass(frozen=True)
class Event:
    """One line of the log. `kind` is its first word: submitted, began, ended, requeues, could (not be requeued) or stopped."""

    unix_s: float
    job: str
    kind: str
    words: str


@dataclass(frozen=True)
class ChainJob:
    """One start of a job and its events; the end is missing where it was killed, or still runs."""

    job: str
    submitted_unix_s: float | None = None
    began_unix_s: float | None = None
    ended_unix_s: float | None = None
    exit_code: int | None = None
    last_words: str = ""


def event_line(unix_s: float, job: str, words: str) -> str:
    """Pure: returns a line of the log as the batch file writes it with `date +%FT%T%z`."""
    return f"{datetime.fromtimestamp(unix_s).astimezone().strftime('%Y-%m-%dT%H:%M:%S%z')} {job} {words}\n"


def parse(text: str) -> list[Event]:
    """Pure: returns the events of a log. Lines that were cut off, or are no events, are left out: people read the log, and may
    write into it."""
    found = []
    for row in text.splitlines():
        if matched := LINE.fullmatch(row):
            try:
                when = datetime.fromisoformat(matched.group(1)).timestamp()
            except ValueError:
                continue
            found.append(Event(when, matched.group(2), matched.group(3), f"{matched.group(3)}{matched.group(4)}"))
    return found


def read(path: Path) -> list[ChainJob]:
    """Local: returns the jobs of a chain in their order; none where there is no log."""
    return jobs_of_chain(parse(path.read_text(errors="replace"))) if path.is_file() else []


def jobs_of_chain(events: Iterable[Event]) -> list[ChainJob]:
    """Pure: groups the events by job; a job that began twice was requeued and counts twice."""
    jobs: list[ChainJob] = []
    for event in events:
        place = next((place for place in reversed(range(len(jobs))) if jobs[place].job == event.job), None)
        if place is None or (event.kind == "began" and jobs[place].began_unix_s is not None):
            jobs.append(ChainJob(event.job))
            place = len(jobs) - 1
        jobs[place] = _with_event(jobs[place], event)
    return jobs


def _with_event(job: ChainJob, event: Event) -> ChainJob:
    """Returns the job with what this event says of it: its times, exit code and last words."""
    if event.kind == "submitted":  # it may be noted after the job has begun
        return replace(job, submitted_unix_s=event.unix_s, last_words=job.last_words or event.words)
    job = replace(job, last_words=event.words)
    if event.kind == "began":
        return replace(job, began_unix_s=event.unix_s)
    if event.kind == "ended":
        code = re.search(r"exit code (\d+)", event.words)
        return replace(job, ended_unix_s=event.unix_s, exit_code=int(code.group(1)) if code else None)
    return job
