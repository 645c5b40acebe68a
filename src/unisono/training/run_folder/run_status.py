"""status.json: how far a run is and what each of its attempts did, for `unisono status`, for job scripts and for people.

An attempt (in the file: a life) is one process of rank 0, from its start to its end; a run that is killed and resumed has several.
The batch file of `unisono submit` reads the lines of "step" and "epoch", so they stay as they are.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from unisono.errors import UsageError
from unisono.files.atomic import atomic_replacement, explain_os_errors

FILE = "status.json"
STATES = ("running", "stopped", "finished", "failed")
WRITE_EVERY_S = 30.0
KILLED = "killed, or its machine failed"


class Status:
    """Writes the status.json of one run, on rank 0. Methods are local; `update_progress` is cheap and does not wait for the disk.

    A failed write is reported through `say` and tried again: a full disk must not end a training that goes well.
    """

    def __init__(self, path: Path, say: Callable[[str], None], clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._say = say
        self._clock = clock
        self._known: dict[str, Any] = {}
        self._written_s = 0.0
        self._warned = ""

    def begin(self, step: int, epoch: int, num_steps: int, num_workers: int, job: str | None = None) -> None:
        """Records the begin of an attempt, with the step and epoch from which it resumes. `job` is SLURM's job id. Blocking."""
        now = self._clock()
        before = read(self.path)
        attempts = [_close_attempt(attempt, before["unix_s"]) for attempt in before["lives"]] if before else []
        attempt = {"job": job, "num_workers": num_workers, "begin_unix_s": now, "end_unix_s": None}
        self._known = {
            "state": "running",
            "exit_code": None,
            "reason": None,
            "step": step,
            "epoch": epoch,
            "num_steps": num_steps,
            "unix_s": now,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "job": job,
            "lives": [*attempts, {**attempt, "first_step": step, "last_step": step, "reason": None}],
        }
        self._write(durable=True)

    def update_progress(self, step: int, epoch: int) -> None:
        """Sets the step and epoch that are reached; written at most every 30 s."""
        self._set_progress(step, epoch)
        if self._known["unix_s"] - self._written_s >= WRITE_EVERY_S:
            self._write(durable=False)

    def end(self, state: str, exit_code: int, reason: str, step: int | None = None, epoch: int | None = None) -> None:
        """Records the end of the attempt as `state`, one of `STATES`; by default at the last step that was set. Blocking."""
        if state not in STATES:
            raise ValueError(f"state must be one of {', '.join(STATES)}; received {state!r}")
        self._set_progress(self._known["step"] if step is None else step, self._known["epoch"] if epoch is None else epoch)
        self._known |= {"state": state, "exit_code": exit_code, "reason": reason}
        self._known["lives"][-1] |= {"end_unix_s": self._known["unix_s"], "reason": reason}
        self._write(durable=True)

    def _set_progress(self, step: int, epoch: int) -> None:
        """Notes step, epoch and time, in memory only."""
        self._known |= {"step": step, "epoch": epoch, "unix_s": self._clock()}
        self._known["lives"][-1]["last_step"] = step

    def _write(self, durable: bool) -> None:
        """Writes what is known to the status file; a failure is a warning, shown once. Waits for the disk if `durable`."""
        self._written_s = self._known["unix_s"]
        text = json.dumps(self._known, indent=2) + "\n"
        try:
            if durable:
                with atomic_replacement(self.path) as draft:
                    draft.write_text(text)
            else:  # without waiting for the disk, which may take long while a checkpoint is written
                draft = self.path.with_name(f".{self.path.name}.{os.getpid()}.draft")
                try:
                    with explain_os_errors(self.path):
                        draft.write_text(text)
                        draft.replace(self.path)
                finally:
                    draft.unlink(missing_ok=True)
        except UsageError as error:
            if str(error) != self._warned:
                self._say(f"warning: {error}")
            self._warned = str(error)
        else:
            self._warned = ""


def read(path: Path) -> dict[str, Any] | None:
    """Local: the contents of a status.json; None where there is none, or where it cannot be read: a failing machine may truncate
    it."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    complete = isinstance(found, dict) and isinstance(found.get("lives"), list) and found.get("state") in STATES
    return found if complete and {"step", "epoch", "num_steps", "unix_s"} <= found.keys() else None


def is_alive(known: Mapping[str, Any], queued: Mapping[str, str] | None = None) -> bool | None:
    """Local: whether the process that wrote "running" is still alive; None where that cannot be seen from here. `queued` are the
    jobs that SLURM knows."""
    if known.get("host") != socket.gethostname():
        return known["job"] in queued if known.get("job") and queued is not None else None
    try:  # also in a job: that of salloc outlives what runs in it
        os.kill(known["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is alive, and another user's
        return True
    return True


def clock_text(unix_s: float | None) -> str:
    """Pure: returns the local date and time; empty for None."""
    return "" if unix_s is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))


def describe_unfinished(folder: Path) -> str:
    """Local: what is known of a run that has no results yet, and what to do: the end of a message that names the run."""
    known = read(folder / FILE)
    if known is None:
        return "has no results (summary.json); train it, or check the path"
    alive = is_alive(known) if known["state"] == "running" else False
    if alive is False:
        end = f"{'died' if known['state'] == 'running' else known['state']} at step {known['step']} of {known['num_steps']}"
        return f"has no results yet (no summary.json): it {end}; run its command again to resume it"
    began = clock_text(known["lives"][-1]["begin_unix_s"])
    seen = "" if alive else f", seen last {clock_text(known['unix_s'])}"
    return f"is still running (since {began}, on {known['host']}{seen}); wait for its end"


def _close_attempt(attempt: Mapping[str, Any], last_sign_unix_s: float) -> dict[str, Any]:
    """Returns the attempt with its end: one without a recorded end was killed, at the last sign of life."""
    return dict(attempt) if attempt["end_unix_s"] is not None else {**attempt, "end_unix_s": last_sign_unix_s, "reason": KILLED}
