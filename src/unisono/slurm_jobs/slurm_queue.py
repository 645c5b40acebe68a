"""Commands of SLURM's queue: submit a batch file, and query the states of jobs. Local, blocking."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from unisono.errors import UsageError

SLURM_TIMEOUT_S = 60.0
"""A busy controller may take this long."""
ENDED_STATES = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"}
)


def require_sbatch() -> None:
    """Raises `UsageError` on a machine without sbatch, from which no job can be submitted."""
    if shutil.which("sbatch") is None:
        raise UsageError(
            "sbatch is not on the PATH, so no job can be submitted here (unisono submit); submit on a login node, outside of "
            "containers, or print the batch file with --dry-run"
        )


def submit(file: Path, options: Sequence[str], env: Mapping[str, str]) -> str:
    """Submits a batch file and returns the number of the job. `options` override those in the file. What sbatch refuses is a
    `UsageError`."""
    require_sbatch()
    done = _run_command(["sbatch", "--parsable", *options, str(file)], environment_outside_job(env))
    if done.returncode:
        raise UsageError(f"sbatch refused {file}: {_one_line(done.stderr)}; correct the options (unisono submit --help)")
    return done.stdout.strip().split(";")[0]


def environment_outside_job(env: Mapping[str, str]) -> dict[str, str]:
    """Pure: returns the environment as it would be outside of a job: a new job would take the variables of the old one for its
    own."""
    if not env.get("SLURM_JOB_ID"):
        return dict(env)
    return {name: value for name, value in env.items() if not name.startswith("SLURM_") or name == "SLURM_CONF"}


def job_states(jobs: Iterable[str]) -> Mapping[str, str] | None:
    """Returns job -> state of the jobs that wait or run; None where squeue fails."""
    asked = sorted(set(jobs))
    if not asked or shutil.which("squeue") is None:
        return None
    done = _run_command(["squeue", "--noheader", f"--jobs={','.join(asked)}", "--format=%i %T"])
    if done.returncode:
        return {} if "Invalid job id" in done.stderr else None  # how squeue says that it has forgotten the only one asked for
    rows = (row.split() for row in done.stdout.splitlines())
    return {row[0]: row[1] for row in rows if len(row) == 2 and row[1] not in ENDED_STATES}


def _run_command(command: Sequence[str], env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Blocking: runs a command of SLURM and returns its result; after the time limit one with exit code 1."""
    try:
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=SLURM_TIMEOUT_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(list(command), 1, "", f"{command[0]} did not answer within {SLURM_TIMEOUT_S:g} s")


def _one_line(text: str) -> str:
    """Returns a message of several lines on one line; 'it gives no reason' for an empty one."""
    return "; ".join(row.strip() for row in text.splitlines() if row.strip()) or "it gives no reason"
