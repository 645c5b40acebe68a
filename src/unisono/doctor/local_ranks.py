"""Starts local ranks of doctor through `unisono run`, for a process that was started alone."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from unisono.doctor.facts import Facts, Measurement, with_unit
from unisono.doctor.finding import FAIL, Finding
from unisono.launch.orphans import preexec_of_rank

LIMIT_S = 400.0
"""Limit for all local ranks; each has shorter limits of its own."""
STOP_S = 10.0
RANK_0 = "[0] "
"""The prefix that `unisono run` puts before each line of rank 0."""


@dataclass(frozen=True)
class Answer:
    """The results of the local ranks."""

    ranks: tuple[Facts, ...] = ()
    origin: str = ""
    measurements: tuple[Measurement, ...] = ()
    problems: tuple[Finding, ...] = ()


class LocalRanks:
    """Local ranks of doctor, which run while this process does other work. Local."""

    def __init__(self, number: int, process: subprocess.Popen[str]) -> None:
        self._number = number
        self._process = process

    def answer(self) -> Answer:
        """Blocking: waits until the ranks have ended and returns their results."""
        started = f"{with_unit(self._number, 'rank')} that doctor started with `unisono run -n {self._number}`"
        try:
            printed, complaints = self._process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            return _failure(f"{started} did not end within {LIMIT_S:g} s")
        lines = [line.removeprefix(RANK_0) for line in printed.splitlines() if line.startswith(RANK_0)]
        try:
            whole = json.loads("\n".join(lines))
        except ValueError:
            last = [line for line in complaints.splitlines() if line.strip()][-1:] or ["no output"]
            return _failure(f"{started} gave no report (code {self._process.returncode}): {last[0]}")
        return _read(whole)


@contextmanager
def local_ranks(number: int, bandwidth: bool, engine: str | None = None) -> Iterator[LocalRanks]:
    """Context manager: starts local ranks and ends them in any case. Only from the main thread. `engine` is that of the environment
    unless given."""
    doctor = ["-m", "unisono", "doctor", "--json", "-n", str(number), *([] if bandwidth else ["--no-bandwidth"])]
    wish = [] if engine is None else ["--engine", engine]
    process = subprocess.Popen(
        [sys.executable, "-m", "unisono", "run", "-n", str(number), *wish, *doctor],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        preexec_fn=preexec_of_rank(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    )
    with process:
        try:
            yield LocalRanks(number, process)
        finally:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """Ends a process: by SIGTERM, then by SIGKILL if it does not end in time."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()


def _read(whole: dict[str, Any]) -> Answer:
    """Makes the answer from the JSON report of the local ranks."""
    findings = [Finding(**finding) for finding in whole["findings"]]
    return Answer(
        ranks=tuple(Facts.from_plain(facts) for facts in whole["ranks"]),
        origin=str(whole["origin"]),
        measurements=tuple(Measurement.from_plain(one) for one in whole["measurements"]),
        problems=tuple(finding for finding in findings if finding.check == "meeting"),
    )


def _failure(fact: str) -> Answer:
    """Returns an answer whose only finding is this failure."""
    return Answer(problems=(Finding(FAIL, "meeting", fact, "see their output: unisono run -n 2 -m unisono doctor"),))
