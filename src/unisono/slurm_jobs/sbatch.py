"""The batch file of a training under SLURM that resubmits itself until the training is done. Pure: values in, text out.

The file is for people too: they read it, keep it, change it and hand it to sbatch again.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from unisono.errors import STOPPED_CODE, UsageError
from unisono.task.durations import parse_duration

FILE = "job.sh"
LOG = "jobs.log"
"""Name of the log beside it in the run directory, into which each job of the chain writes its events; see `job_log`."""
MAX_JOBS = 100
START_ALLOWANCE_S = 10
"""Time between the start of a job and that of its training, beside what the batch file measures itself."""
SIGNAL_S = 60
MIN_LIMIT_FOR_SIGNAL_S = 600
"""In a job shorter than this SLURM's signal could come while the ranks still start, and end them: it may be a minute early."""

Options = Mapping[str, str | None]
"""Options of sbatch: long name without dashes -> value; None for an option without a value."""


@dataclass(frozen=True)
class Job:
    """The values of a batch file. Paths are absolute, as the job may be submitted from anywhere."""

    name: str
    out: Path
    workdir: Path
    command: Sequence[str]
    """`unisono train ...` with all its options but --time-limit."""
    limit_s: int
    """Time limit that SLURM gives one job."""
    options: Options = field(default_factory=dict)
    modules: Sequence[str] = ()
    preamble: str = ""
    container: str = ""
    """Text in front of the command, as it is typed into a shell; empty without a container."""
    requeue: bool = False
    """Whether the same job is started again instead of submitting a successor."""
    max_jobs: int = MAX_JOBS


def batch_file(job: Job) -> str:
    """Pure: returns the text of the batch file."""
    parts = (_header(job), _settings(job), _preamble(job), _training(job), _afterwards(job))
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def limit_s(time: str) -> int:
    """Pure: returns the time limit of --time in seconds; it reads all forms of SLURM, and 2h or 1h30m."""
    found = round(parse_duration(time, "--time"))
    if found <= START_ALLOWANCE_S:
        raise UsageError(f"--time {time} leaves no time to train: a job needs {START_ALLOWANCE_S} s to start; give a longer --time")
    return found


def sbatch_time(limit_s: int) -> str:
    """Pure: returns a time limit in the form of sbatch: days-hours:minutes:seconds."""
    minutes, seconds = divmod(limit_s, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days}-{hours:02}:{minutes:02}:{seconds:02}" if days else f"{hours:02}:{minutes:02}:{seconds:02}"


def _header(job: Job) -> str:
    """Returns the head of the batch file: the #SBATCH options, where the user's own replace ours, each with its reason."""
    rows: list[tuple[str, str | None, str]] = [
        ("job-name", job.name, ""),
        ("time", sbatch_time(job.limit_s), "limit of one job"),
        ("chdir", str(job.workdir), "relative paths below start here, wherever the file is submitted"),
        ("output", f"{str(job.out).replace('%', '%%')}/slurm-%j.out", "output of the training"),
        ("open-mode", "append", "a restarted job appends to its output"),
        ("requeue", None, "SLURM may restart the job after a node has failed"),
    ]
    if job.limit_s >= MIN_LIMIT_FOR_SIGNAL_S:
        why = "stops every rank, in case the training's own clock fails"
        rows.append(("signal", f"USR1@{SIGNAL_S}", why))
    meant = {name: (value, why) for name, value, why in rows}
    lines = []
    for name, (value, why) in (meant | {name: (value, "") for name, value in job.options.items()}).items():
        option = f"#SBATCH --{name}" + ("" if value is None else f"={_quoted(value)}")
        lines.append(f"{option:<42}  # {why}" if why else option)
    return "\n".join(
        (
            "#!/bin/bash",
            f"# Trains in {_in_comment(job.out)}, in as many jobs as it takes: each resumes where the one before stopped.",
            "# Written by `unisono submit`; by hand: sbatch " + _in_comment(_quoted(str(job.out / FILE))),
            *lines,
        )
    )


def _settings(job: Job) -> str:
    """Returns the part of the batch file that sets its variables, defines its functions and logs the beginning of the job."""
    return f"""
run={_quoted(str(job.out))}
limit_s={job.limit_s}  # the --time of one job
max_jobs={job.max_jobs}  # so that an error does not submit jobs for ever

# A log for people and for `unisono status`, which therefore needs no SLURM accounting.
note() {{ printf '%s %s %s\\n' "$(date +%FT%T%z)" "$1" "$2" >> "$run/{LOG}"; }}
# The step or the epoch that the training has reached; empty before the first one.
reached() {{ sed -n 's/^  "'"$1"'": \\([0-9][0-9]*\\).*/\\1/p' "$run/status.json" 2> /dev/null || true; }}
stop() {{ note "$SLURM_JOB_ID" "stopped: $1"; echo "{FILE}: $1" >&2; exit "$2"; }}

# The number of this job in the chain: each job passes the next number to its successor, and each restart counts too.
number=$(( ${{1:-1}} + ${{SLURM_RESTART_COUNT:-0}} ))
before=$(reached step)/$(reached epoch)
note "$SLURM_JOB_ID" "began as number $number on $SLURM_JOB_NODELIST"
"""


def _preamble(job: Job) -> str:
    """Returns the part of the batch file that loads modules and runs the commands of the site file; empty where there are none."""
    names = " ".join(map(_quoted, job.modules))
    load = f"""for module in {names}; do module load "$module" || stop "cannot load the module $module (site file)" 1; done"""
    lines = ([load] if names else []) + ([job.preamble.strip("\n")] if job.preamble.strip() else [])
    return "\n".join(("# From the site file.", *lines)) if lines else ""


def _training(job: Job) -> str:
    """Returns the part of the batch file that runs the training by srun and logs how it ended."""
    return f"""
# Since SLURM 22.05 srun does not inherit --cpus-per-task.
[ -z "${{SLURM_CPUS_PER_TASK:-}}" ] || export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"

# The training stops itself early enough to save: its limit is the rest of the job, less some seconds for srun to start it.
# srun returns the highest exit code of all ranks. It must not kill the others when the first one ends, or a clean stop is lost.
code=0
srun --kill-on-bad-exit=0 \\
  {f"{job.container} ".lstrip()}{shlex.join(job.command)} \\
  --time-limit "$(( limit_s - SECONDS - {START_ALLOWANCE_S} ))s" || code=$?
after=$(reached step)
note "$SLURM_JOB_ID" "ended with exit code $code at step ${{after:-0}}"
"""


def _afterwards(job: Job) -> str:
    """Returns the part of the batch file that decides by the exit code whether to end, requeue the job or submit a successor."""
    by_hand = f"to resume: sbatch '$run/{FILE}'"
    requeue = """
# Requeues this job; SLURM holds it for about two minutes. If scontrol is missing or the site forbids it, a successor is submitted.
note "$SLURM_JOB_ID" "requeues itself"
if scontrol requeue "$SLURM_JOB_ID"; then exit 0; fi
note "$SLURM_JOB_ID" "could not be requeued"
"""
    return f"""
case $code in
  0) exit 0 ;;  # done
  {STOPPED_CODE}) ;;  # stopped, checkpoint saved: continue below
  *) stop "the training failed with exit code $code; no further job follows" "$code" ;;
esac
[ "$after/$(reached epoch)" != "$before" ] ||
  stop "two jobs in a row ended at step ${{after:-0}}: no progress; give each job more time (--time)" 1
[ "$number" -lt "$max_jobs" ] || stop "this was job $number of at most $max_jobs (--max-jobs); {by_hand}" {STOPPED_CODE}
{requeue if job.requeue else ""}
# The successor is submitted only now, at the end of this job: so scancel, which ends this script, ends the chain too.
# This script runs on the host, so a container needs no SLURM. The controller may be busy: try several times.
for pause_s in 0 5 15; do
  sleep "$pause_s"
  next=$(env -u SLURM_RESTART_COUNT sbatch --parsable "$run/{FILE}" "$(( number + 1 ))") || continue
  note "${{next%%;*}}" "submitted as number $(( number + 1 ))"
  exit 0
done
stop "sbatch failed, so no further job follows; the checkpoint is saved; {by_hand}" {STOPPED_CODE}
"""


def _quoted(value: str) -> str:
    """Returns a value in quotes for bash and for sbatch, which reads quotes in the same way."""
    if "\n" in value or "\r" in value:
        raise UsageError(f"{value!r} has a line break, which a batch file cannot hold; remove it")
    return shlex.quote(value)


def _in_comment(value: object) -> str:
    """Returns a value as text on one line, for a comment of the batch file."""
    return str(value).replace("\n", " ")
