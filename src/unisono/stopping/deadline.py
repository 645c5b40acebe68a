"""The deadline: when to stop so that everything is saved in time, from the time limit and the duration of steps and saves."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from time import localtime, monotonic, strftime, time

from unisono.cluster.resolve import environment
from unisono.errors import UsageError
from unisono.stopping.stop_request import StopRequest
from unisono.task.durations import parse_duration, show_duration

BEGAN = "UNISONO_BEGAN"
"""Variable with the time at which the launcher began (`launch/rank_env.py` sets it): seconds since 1970."""
SLURM_END = "SLURM_JOB_END_TIME"
SQUEUE_TIMEOUT_S = 10.0
"""A controller that takes longer is busy, and the training need not wait for it."""

TIME_LIMIT = "time limit"
"""The reason of a stop by the user's own limit."""
NUM_STEPS = 3
"""Until all ranks have stopped: the current step, the one that carries the request, and one more if it is read a step late."""
NUM_SAVES = 2
"""The last save may have to wait for one that is under way."""
MIN_MARGIN_S = 5.0
MIN_MARGIN_SHARE = 0.1
"""Margin for the end of the processes and unexpected delays: 5 s, of a limit under 50 s a tenth."""
STEP_DECAY = 0.999
"""The longest step counts this much less with each step, so that one slow hour does not shorten the whole day."""


@dataclass(frozen=True)
class Allocation:
    """The time at which the scheduler ends this process."""

    end_unix_s: float | None = None
    owner: str = ""
    """Text for messages, e.g. 'SLURM job 17'."""
    note: str = ""
    """A warning where the given end cannot be right; it is ignored, as a training must not fail because of it."""


def allocation_from_environment(env: Mapping[str, str]) -> Allocation:
    """Pure: reads the end from the environment. Only SLURM says when a job ends; others give at most its length, not its
    beginning."""
    end = env.get(SLURM_END)
    if not end:
        return Allocation()
    if not re.fullmatch(r"[0-9]{9,11}", end):
        return Allocation(note=f"{SLURM_END} must be seconds since 1970; received {end!r} (environment); it is ignored")
    return Allocation(float(end), _name_of_job(env))


def allocation_from_slurm(env: Mapping[str, str]) -> Allocation:
    """Local, blocking for up to 10 s: reads the end from the environment or, where it is not set (SLURM 22.05), from squeue."""
    allocation = allocation_from_environment(env)
    if allocation != Allocation() or not env.get("SLURM_JOB_ID"):
        return allocation
    squeue = shutil.which("squeue", path=env.get("PATH"))
    if squeue is None:
        return _unknown_end(env, "squeue is not on the PATH")
    command = [squeue, "--noheader", f"--jobs={env['SLURM_JOB_ID']}", "--format=%L"]
    try:
        asked = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SQUEUE_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return _unknown_end(env, str(error))
    left = asked.stdout.strip()
    if left == "UNLIMITED":
        return Allocation()
    try:
        return Allocation(time() + parse_duration(left), _name_of_job(env))
    except UsageError:
        return _unknown_end(env, f"squeue says {left or asked.stderr.strip()!r}")


def _name_of_job(env: Mapping[str, str]) -> str:
    """Returns 'SLURM job 123' for messages."""
    return f"SLURM job {env.get('SLURM_JOB_ID', '')}".rstrip()


def _unknown_end(env: Mapping[str, str], why: str) -> Allocation:
    """Returns the allocation of a job whose end is not known, with a note that says why."""
    return Allocation(
        note=f"the end of {_name_of_job(env)} is unknown ({why}); give --time-limit, so that the training stops in time"
    )


def deadline_of_this_process(limit_s: float | None, began_unix_s: float | None = None) -> Deadline:
    """Local, blocking for up to 10 s under an old SLURM: makes the deadline of this process, from the user's limit since
    `began_unix_s`, else since the command began, and from the allocation."""
    from psutil import Process

    env = environment()
    began = began_unix_s or env.get(BEGAN) or Process().create_time()
    return Deadline(limit_s, float(began), allocation_from_slurm(env))


class Deadline:
    """The moment after which a run must stop, kept up to date with measured times. Local; nothing blocks.

    The earlier of the user's limit, counted from `began_unix_s`, and the allocation's end; with neither it is never due. The clock
    of the day is read once: later corrections of it change nothing. The margin before the end is

        3 longest step + 2 longest save + (5 s, of a limit under 50 s a tenth)
    """

    def __init__(self, limit_s: float | None, began_unix_s: float, given: Allocation | None = None) -> None:
        now, now_unix_s = monotonic(), time()
        ends: list[tuple[float, str, str]] = []
        if limit_s is not None:
            ends.append((began_unix_s + limit_s, f"the limit of {show_duration(limit_s)} (--time-limit)", TIME_LIMIT))
        if given is not None and given.end_unix_s is not None:
            ends.append((given.end_unix_s, f"the end of {given.owner}", f"end of {given.owner}"))
        end_unix_s, self._what, self.reason = min(ends, default=(float("inf"), "", ""))
        self.note = "" if given is None else given.note
        self._min_margin_s = min(MIN_MARGIN_S, MIN_MARGIN_SHARE * max(0.0, end_unix_s - began_unix_s))
        self._unix_offset_s = now_unix_s - now
        self._end = end_unix_s - self._unix_offset_s
        self._step_s = self._save_s = self._estimated_save_s = 0.0
        self._evaluation_s = 0.0
        self._num_steps = 0
        self._update_stop_time()

    def step_took(self, seconds: float) -> None:
        """Local: notes the duration of a step. The first step is left out: it also loads and compiles."""
        self._num_steps += 1
        if self._num_steps > 1:
            self._step_s = max(seconds, self._step_s * STEP_DECAY)
            self._update_stop_time()

    def save_took(self, seconds: float) -> None:
        """Local: notes the duration of a save, from the copy of the state until it is on the disk."""
        self._save_s = max(seconds, self._save_s)
        self._estimated_save_s = 0.0
        self._update_stop_time()

    def estimate_save(self, seconds: float) -> None:
        """Local: sets an estimate of the duration of a save, used until the first is measured."""
        if not self._save_s:
            self._estimated_save_s = seconds
            self._update_stop_time()

    def evaluation_took(self, seconds: float) -> None:
        """Local: notes the duration of an evaluation; the longest counts. It is no part of the margin: call `fits_evaluation`
        before the next one.
        """
        self._evaluation_s = max(seconds, self._evaluation_s)

    @property
    def margin_s(self) -> float:
        """Local: seconds before the end at which the run must stop."""
        return NUM_STEPS * self._step_s + NUM_SAVES * (self._save_s or self._estimated_save_s) + self._min_margin_s

    def is_due(self, now: float | None = None) -> bool:
        """Local; cheap enough for every step: whether the run must stop now. `now` is of the monotonic clock."""
        return (monotonic() if now is None else now) >= self._stop_at

    def fits(self, seconds: float, now: float | None = None) -> bool:
        """Local: whether something that takes `seconds` ends before it is due."""
        return (monotonic() if now is None else now) + seconds < self._stop_at

    def fits_evaluation(self, now: float | None = None, stop: StopRequest | None = None) -> bool:
        """Local: whether one more evaluation as long as the longest ends before it is due; if not, requests the stop."""
        fits = self.fits(self._evaluation_s, now)
        if not fits and stop is not None:
            stop.request(self.reason)
        return fits

    def stop_requested(self, stop: StopRequest) -> bool:
        """Local; cheap enough for every step: whether a stop was requested; requests it once this is due."""
        if self.is_due():
            stop.request(self.reason)
        return stop.requested()

    def describe(self) -> str:
        """Local: returns one sentence for the log; empty where there is no end."""
        if not self._what:
            return ""
        moment = self._stop_at + self._unix_offset_s
        form = "%H:%M:%S" if localtime(moment)[:3] == localtime()[:3] else "%Y-%m-%d %H:%M:%S"
        guess = f"saving may take {self._estimated_save_s:.1f} s" if self._estimated_save_s else "nothing was saved yet"
        saving = f"saving took at most {self._save_s:.1f} s" if self._save_s else guess
        step = f", a step {self._step_s:.2g} s" if self._step_s else ""
        return f"stops at {strftime(form, localtime(moment))}, {self.margin_s:.0f} s before {self._what} ({saving}{step})"

    def _update_stop_time(self) -> None:
        """Sets the time at which the run must stop: the end less the margin."""
        self._stop_at = self._end - self.margin_s
