"""`unisono status`: the progress of runs, and of each job of a chain. Needs no accounting of SLURM, and no SLURM."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unisono.commands.text_columns import in_columns
from unisono.errors import UsageError, nearest_path
from unisono.observe.quantities import duration
from unisono.slurm_jobs import job_log, sbatch, slurm_queue
from unisono.slurm_jobs.job_log import ChainJob
from unisono.training.run_folder import run_status

DESCRIPTION = """Shows the state of runs: running, waiting, starting, stopped (the same command resumes), finished, failed, died.
For a folder of runs it shows all runs in it. For a run directory it also shows each attempt: SLURM job, steps, end."""
EPILOG = """examples:
  unisono status                       all runs in runs/
  unisono status runs/digits           one run, with the jobs of its chain
  unisono status runs/* --json         for scripts"""

MARKS = (run_status.FILE, "config.json", sbatch.LOG)
"""Files by which a run directory is recognised."""
WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "SUSPENDED"})
"""States of squeue in which a job waits."""


@dataclass(frozen=True)
class RunStatusRow:
    """One row of the table: a run with its state."""

    path: Path
    state: str
    """One of `status.STATES`, or waiting, starting, died, unknown."""
    note: str
    known: Mapping[str, Any]
    """Contents of status.json; empty where there is none."""
    jobs: Sequence[ChainJob]
    queued: Mapping[str, str]
    """The state by squeue of each job that is waiting or running."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Local: the options of the verb."""
    parser.add_argument(
        "runs", nargs="*", default=["runs"], metavar="RUN", help="run directories, or folders with runs in them (default runs)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON array instead of a table")


def main(args: argparse.Namespace, argv: Sequence[str] = ()) -> int:  # noqa: ARG001 - as every verb is called
    """Local, blocking: prints the status of runs; returns the exit code."""
    named = [Path(run) for run in args.runs]
    paths = list(dict.fromkeys(path for one in named for path in _runs(one)))
    seen = _collect_rows(paths)
    if args.json:
        print(json.dumps([_as_json(run) for run in seen], indent=2))
        return 0
    if not seen:
        print(f"no run in {', '.join(map(str, named))}")
        return 0
    print(in_columns([("run", "state", "step", "epoch", "SLURM jobs", "last update"), *(_cells(run) for run in seen)], left=(0, 1)))
    for run in seen:
        if run.note:
            print(f"{run.path}: {run.note}")
        if run.path in named and (rows := _attempts(run)):
            print(f"\n{run.path}\n{in_columns([('job', 'began', 'lasted', 'workers', 'steps', 'end'), *rows], left=(1, 4, 5))}")
    return 0


def _runs(path: Path) -> list[Path]:
    """Returns the run directories of a path: itself, or those inside it, oldest first; refuses a path that is not there."""
    if any((path / mark).is_file() for mark in MARKS):
        return [path]
    if path.is_dir():
        inside = [entry for entry in path.iterdir() if any((entry / mark).is_file() for mark in MARKS)]
        return sorted(inside, key=lambda entry: entry.stat().st_mtime)
    if path == Path("runs"):
        return []
    raise UsageError(f"there is no run {path}; {nearest_path(path)}")


def _collect_rows(paths: Sequence[Path]) -> list[RunStatusRow]:
    """Collects the rows of all runs, with one request to SLURM."""
    found = [(path, run_status.read(path / run_status.FILE), job_log.read(path / sbatch.LOG)) for path in paths]
    latest = {job for _, known, jobs in found for job in (known and known.get("job"), jobs[-1].job if jobs else None) if job}
    queued = slurm_queue.job_states(latest)
    seen = []
    for path, known, jobs in found:
        own = {job.job for job in jobs} | ({known["job"]} if known and known.get("job") else set())
        here = None if queued is None else {job: word for job, word in queued.items() if job in own}
        state, note = _state(path, known, jobs, here)
        seen.append(RunStatusRow(path, state, note, known or {}, jobs, here or {}))
    return seen


def _state(
    path: Path, known: Mapping[str, Any] | None, jobs: Sequence[ChainJob], queued: Mapping[str, str] | None
) -> tuple[str, str]:
    """The state of a run in one word, and a note on what to know or to do."""
    last = jobs[-1] if jobs else None
    waiting = [f"job {job} is {word}" for job, word in (queued or {}).items() if word in WAITING]
    starting = [job for job, word in (queued or {}).items() if word == "RUNNING" and (known is None or job != known.get("job"))]
    began = known is not None and known["state"] == "running"
    alive = run_status.is_alive(known, queued) if known is not None and began else False
    if waiting:
        return "waiting", "; ".join(waiting)
    if starting:
        return "starting", f"job {starting[0]} has started, but its training has not"
    if alive:
        return "running", ""
    if queued is None and last is not None and last.last_words.startswith(("submitted", "requeues")):
        return "waiting", f"job {last.job} {last.last_words}; its state can only be seen where squeue is installed"
    if known is not None and began:
        if alive is None:
            return "running", f"it runs on {known['host']}; from here one cannot see whether it is still alive"
        return "died", f"died at step {known['step']} without an error message; the same command resumes from the last checkpoint"
    words = last.last_words if last is not None and last.last_words.startswith("stopped") else ""
    if known is not None:
        return known["state"], words or (known["reason"] or "" if known["state"] != "finished" else "")
    if (path / "summary.json").is_file():
        return "finished", ""  # by a version that wrote no status
    if last is None:
        return "unknown", "no file shows the progress of its training"
    if queued is None and last.exit_code is None:
        return "unknown", f"job {last.job} {last.last_words}; its state can only be seen where squeue is installed"
    if last.began_unix_s is None:
        return "died", f"job {last.job} left the queue before it began"
    return ("died" if last.exit_code is None else "failed"), words or f"job {last.job} ended before its training began"


def _cells(run: RunStatusRow) -> tuple[str, ...]:
    """Returns the cells of a run's row in the table."""
    known = run.known
    jobs = len(run.jobs)
    return (
        str(run.path),
        run.state,
        f"{known['step']}/{known['num_steps']}" if known else "",
        str(known["epoch"]) if known else "",
        str(jobs) if jobs else "",
        f"{duration(max(0.0, time.time() - known['unix_s']))} ago" if known else "",
    )


def _attempts(run: RunStatusRow) -> list[tuple[str, ...]]:
    """The rows of all attempts, and of jobs that ended before training, in the order of time."""
    rows: list[tuple[float, tuple[str, ...]]] = []
    attempts: list[Mapping[str, Any]] = list(run.known.get("lives", ()))
    for attempt in attempts:
        end = attempt["end_unix_s"] or (time.time() if run.state == "running" else run.known["unix_s"])
        reason = attempt["reason"] or run.state
        steps = f"{attempt['first_step']} to {attempt['last_step']}"
        cells = (
            attempt["job"] or "",
            run_status.clock_text(attempt["begin_unix_s"]),
            duration(end - attempt["begin_unix_s"]),
            str(attempt["num_workers"]),
            steps,
        )
        rows.append((attempt["begin_unix_s"], (*cells, reason)))
    trained = [attempt["job"] for attempt in attempts]
    for job in run.jobs:
        if job.job in trained:
            trained.remove(job.job)  # a job that was requeued has as many attempts as starts
            continue
        when = job.began_unix_s or job.submitted_unix_s or 0.0
        words = run.queued.get(job.job, "") or job.last_words
        rows.append((when, (job.job, run_status.clock_text(job.began_unix_s), "", "", "", words)))
    return [cells for _, cells in sorted(rows, key=lambda row: row[0])]


def _as_json(run: RunStatusRow) -> dict[str, Any]:
    """A run for --json: the contents of status.json, with state, note and jobs."""
    return {
        "run": str(run.path),
        **run.known,
        "state": run.state,
        "note": run.note,
        "jobs": [asdict(job) for job in run.jobs],
        "queued": dict(run.queued),
    }
