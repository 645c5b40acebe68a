"""Child processes of tests: every one has a limit, and none outlives the test process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

STOP_LIMIT_S = 10.0

LAUNCHER_VARIABLES = re.compile(
    r"(UNISONO|SLURM|SBATCH|OMPI|PMIX?|PRTE|I_MPI|HYDRA|TORCHELASTIC|GROUP|ROLE|LOCAL|MASTER)_.*|RANK|WORLD_SIZE|TF_CONFIG"
)


@dataclass(frozen=True)
class Outcome:
    """What a finished program left: its exit code and all that it printed."""

    command: str
    code: int
    output: str

    def __str__(self) -> str:
        return f"{self.command}\nended with {self.code} and printed:\n{self.output}"


class Program:
    """A started program in a process group of its own; use it in a `with` statement, which ends the group in any case."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = " ".join(command)
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_over(self) -> bool:
        return self._process.poll() is not None

    def send(self, signum: signal.Signals) -> None:
        """To the program itself; what it started hears of it from the program or not at all."""
        self._process.send_signal(signum)

    def press_ctrl_c(self) -> None:
        """As a terminal does, which tells the whole process group."""
        os.killpg(self._process.pid, signal.SIGINT)

    def finish(self, limit_s: float) -> Outcome:
        """Blocking: until the program ends; over the limit it is ended and the outcome shows what it had printed."""
        try:
            output, _ = self._process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            output = f"{self._end()}\n[ended by the test: not done after {limit_s:g} s]"
        return Outcome(self._command, self._process.returncode, output)

    def __enter__(self) -> Program:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process.poll() is None:
            self._end()

    def _end(self) -> str:
        """All that it printed. It is asked first: a launcher that is killed cannot take down what it started elsewhere."""
        for sent in (signal.SIGTERM, signal.SIGKILL):
            os.killpg(self._process.pid, sent)
            try:
                return self._process.communicate(timeout=STOP_LIMIT_S)[0]
            except subprocess.TimeoutExpired as error:
                late = error
        raise late


def run_together(commands: Sequence[Sequence[str]], environment: Mapping[str, str], limit_s: float) -> list[Outcome]:
    """Blocking: all of them at the same time, to the end."""
    with ExitStack() as stack:
        programs = [stack.enter_context(Program(command, environment)) for command in commands]
        deadline = time.monotonic() + limit_s
        return [program.finish(max(0.0, deadline - time.monotonic())) for program in programs]


@contextmanager
def daemon(command: Sequence[str], environment: Mapping[str, str], output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A child that is asked to end at the end, made to if it does not, and that dies with this process in any case."""
    with output.open("wb") as sink:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def plain_environment() -> dict[str, str]:
    """Our environment without what a launcher of the tests themselves may have put into it."""
    return {name: value for name, value in os.environ.items() if not LAUNCHER_VARIABLES.fullmatch(name)}


def within(limit_s: float, condition: Callable[[], bool]) -> bool:
    """Blocking: whether the condition comes true before the limit."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def is_running(process_id: int) -> bool:
    """Whether the process exists and has not ended (one that nobody waits for stays listed after its end)."""
    try:
        stat = Path(f"/proc/{process_id}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # the latter, if it goes while we read
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
