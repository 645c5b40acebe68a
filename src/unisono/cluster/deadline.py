"""When to stop so that all is saved before the time is over: from the limit and from how long steps and saves took."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from time import localtime, monotonic, strftime, time

from unisono.cluster.rank_env import BEGAN
from unisono.cluster.resolve import environment
from unisono.cluster.stop_request import StopRequest
from unisono.errors import UsageError

SLURM_END = "SLURM_JOB_END_TIME"
DURATION_FORMS = "2h, 90m, 1h30m, 45s, or as SLURM writes it: minutes, minutes:seconds, [days-]hours:minutes:seconds, days-hours"
UNIT_S: Mapping[str, int] = {"d": 86400, "h": 3600, "m": 60, "s": 1}

WITH_UNITS = re.compile(r"(?=.)" + "".join(rf"(?:(?P<{unit}>\d{{1,9}}(?:\.\d{{1,9}})?){unit})?" for unit in UNIT_S), re.ASCII)
WITH_DAYS = re.compile(r"(?P<d>\d{1,9})-(?P<h>\d{1,9})(?::(?P<m>\d{1,9})(?::(?P<s>\d{1,9}))?)?", re.ASCII)
WITHOUT_DAYS = re.compile(r"(?:(?P<h>\d{1,9}):(?=\d+:))?(?P<m>\d{1,9})(?::(?P<s>\d{1,9}))?", re.ASCII)

SQUEUE_S = 10.0
"""A controller that takes longer is busy, and the training need not wait for it."""

NUM_STEPS = 3
"""Until all ranks have stopped: the one in hand, the one whose tail carries the wish, and one more where it is read a step late."""
NUM_SAVES = 2
"""The last save may have to wait for one that is under way."""
LEAST_MARGIN_S = 5.0
LEAST_MARGIN_SHARE = 0.1
"""What is left for the end of the processes and for surprises: 5 s, of a limit under 50 s a tenth."""
STEP_MEMORY = 0.999
"""The longest step counts this much less with each step, so that one slow hour does not shorten the whole day."""


def parse_duration(text: str) -> float:
    """Pure: seconds. A bare number is minutes, as in SLURM."""
    written = text.strip().lower()
    found = next((match for form in (WITH_UNITS, WITH_DAYS, WITHOUT_DAYS) if (match := form.fullmatch(written))), None)
    seconds = sum(float(value) * UNIT_S[unit] for unit, value in found.groupdict().items() if value) if found else 0.0
    if not seconds:
        raise UsageError(f"a time limit must be above 0 and written like {DURATION_FORMS}; received {text!r}")
    return seconds


def show_duration(seconds: float) -> str:
    """Pure: as `parse_duration` reads it, in whole seconds: '1h30m'."""
    left, parts = round(seconds), ""
    for unit, unit_s in UNIT_S.items():
        number, left = divmod(left, unit_s)
        parts += f"{number}{unit}" if number else ""
    return parts or "0s"


@dataclass(frozen=True)
class Allocation:
    """What a scheduler told this process about its end."""

    end_unix_s: float | None = None
    whose: str = ""
    """'SLURM job 17', for messages."""
    note: str = ""
    """What was told and cannot be right; it is not followed, as a training must not end of that."""


def allocation(env: Mapping[str, str]) -> Allocation:
    """Pure: what the environment tells. Only SLURM says when a job ends; others give at most its length, not when it began."""
    told = env.get(SLURM_END)
    if not told:
        return Allocation()
    if not re.fullmatch(r"[0-9]{9,11}", told):
        return Allocation(note=f"{SLURM_END} must be seconds since 1970; received {told!r} (environment); it is not followed")
    return Allocation(float(told), _name_of_job(env))


def ask_slurm(env: Mapping[str, str]) -> Allocation:
    """Local, blocking for up to 10 s: as `allocation`, and where the environment is silent (SLURM 22.05 is) as squeue knows it."""
    told = allocation(env)
    if told != Allocation() or not env.get("SLURM_JOB_ID"):
        return told
    squeue = shutil.which("squeue", path=env.get("PATH"))
    if squeue is None:
        return _unknown_end(env, "squeue is not on the PATH")
    command = [squeue, "--noheader", f"--jobs={env['SLURM_JOB_ID']}", "--format=%L"]
    try:
        asked = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SQUEUE_S)
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
    return f"SLURM job {env.get('SLURM_JOB_ID', '')}".rstrip()


def _unknown_end(env: Mapping[str, str], why: str) -> Allocation:
    return Allocation(note=f"the end of {_name_of_job(env)} is not known ({why}); give --time-limit to stop before it")


def of_this_process(limit_s: float | None) -> Deadline:
    """Local, blocking for up to 10 s under an old SLURM: the end of this process, from the user's limit since the command began
    and from what the scheduler tells."""
    from psutil import Process

    env = environment()
    began = env.get(BEGAN) or Process().create_time()
    return Deadline(limit_s, float(began), ask_slurm(env))


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
            ends.append((began_unix_s + limit_s, f"the limit of {show_duration(limit_s)} (--time-limit)", "time limit"))
        if given is not None and given.end_unix_s is not None:
            ends.append((given.end_unix_s, f"the end of {given.whose}", f"end of {given.whose}"))
        end_unix_s, self._what, self.why = min(ends, default=(float("inf"), "", ""))
        self.note = "" if given is None else given.note
        self._least_margin_s = min(LEAST_MARGIN_S, LEAST_MARGIN_SHARE * max(0.0, end_unix_s - began_unix_s))
        self._unix_s_ahead = now_unix_s - now
        self._end = end_unix_s - self._unix_s_ahead
        self._step_s = self._save_s = self._guess_s = 0.0
        self._evaluation_s = 0.0
        self._num_steps = 0
        self._measure()

    def step_took(self, seconds: float) -> None:
        """Local. The first is left out: it also loads and compiles."""
        self._num_steps += 1
        if self._num_steps > 1:
            self._step_s = max(seconds, self._step_s * STEP_MEMORY)
            self._measure()

    def save_took(self, seconds: float) -> None:
        """Local: from the copy of the state until it is safe on the disk."""
        self._save_s = max(seconds, self._save_s)
        self._guess_s = 0.0
        self._measure()

    def save_will_take(self, seconds: float) -> None:
        """Local: a guess that counts until the first is measured."""
        if not self._save_s:
            self._guess_s = seconds
            self._measure()

    def evaluation_took(self, seconds: float) -> None:
        """Local. No part of the margin: ask `fits_evaluation` before the next one."""
        self._evaluation_s = max(seconds, self._evaluation_s)

    @property
    def margin_s(self) -> float:
        """Local: how long before the end it is due."""
        return NUM_STEPS * self._step_s + NUM_SAVES * (self._save_s or self._guess_s) + self._least_margin_s

    def is_due(self, now: float | None = None) -> bool:
        """Local; cheap enough for every step. `now` is of the monotonic clock."""
        return (monotonic() if now is None else now) >= self._stop_at

    def fits(self, seconds: float, now: float | None = None) -> bool:
        """Local: whether what takes so long is over before it is due."""
        return (monotonic() if now is None else now) + seconds < self._stop_at

    def fits_evaluation(self, now: float | None = None, stop: StopRequest | None = None) -> bool:
        """Local: whether one more evaluation as long as the longest is over before it is due; if not, that is a reason to stop."""
        fits = self.fits(self._evaluation_s, now)
        if not fits and stop is not None:
            stop.ask(self.why)
        return fits

    def asks(self, stop: StopRequest) -> bool:
        """Local; cheap enough for every step: whether somebody asked to stop, or it is due, which then is a reason too."""
        if self.is_due():
            stop.ask(self.why)
        return stop.asked()

    def describe(self) -> str:
        """Local: one sentence for the log; empty where there is no end."""
        if not self._what:
            return ""
        moment = self._stop_at + self._unix_s_ahead
        form = "%H:%M:%S" if localtime(moment)[:3] == localtime()[:3] else "%Y-%m-%d %H:%M:%S"
        guess = f"saving may take {self._guess_s:.1f} s" if self._guess_s else "nothing was saved yet"
        saving = f"saving took at most {self._save_s:.1f} s" if self._save_s else guess
        step = f", a step {self._step_s:.2g} s" if self._step_s else ""
        return f"stops at {strftime(form, localtime(moment))}, {self.margin_s:.0f} s before {self._what} ({saving}{step})"

    def _measure(self) -> None:
        self._stop_at = self._end - self.margin_s
