"""One attempt of a training: started, watched until a moment comes, killed, and seen to its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Protocol

import psutil

from tests.faults.kill_plan import ALL, COMMAND, LAUNCHER, ONE, Kill
from tests.system.fork_server import ForkServer, Group
from tests.system.processes import is_running, plain_environment

LOOK_EVERY_S = 0.0003
LIMIT_S = 90.0
"""Of one attempt that is not killed."""
END_LIMIT_S = 10.0
"""Within which all must have ended after a kill, and a process that was to end anyway."""
LAUNCHER_S = 1.5
"""Which a launcher gives to the others when one has died."""
TRAINING_S = 0.6
ENDING_S = 0.2
DRAFTS = 5
EVALUATIONS = 16
WRITE_S = 0.006
"""How late a kill comes at most: in training; after the last step; which draft of a checkpoint, which batch of evaluations in this
attempt; after the draft was seen."""


class Running(Protocol):
    """The processes of one attempt."""

    def is_over(self) -> bool: ...

    def ranks(self) -> Mapping[int, int]:
        """The process of each rank that is there."""

    def launcher(self) -> int | None: ...

    def wait(self, timeout_s: float) -> tuple[int, str]:
        """Blocking: exit code and output, when all have ended."""


class Forked:
    """From the fork server."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def is_over(self) -> bool:
        return self._group.is_over()

    def ranks(self) -> Mapping[int, int]:
        return dict(enumerate(self._group.pids))

    def launcher(self) -> int | None:
        return None

    def wait(self, timeout_s: float) -> tuple[int, str]:
        ended = self._group.wait(timeout_s)
        assert not ended.timed_out, f"the ranks had not ended after {timeout_s:g} s; they printed:\n{ended.output}"
        return ended.exit_code, ended.output


class Typed:
    """By the command that a user types."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path, workers: int) -> None:
        self._process = process
        self._output = output
        self._workers = workers

    def is_over(self) -> bool:
        return self._process.poll() is not None

    def ranks(self) -> Mapping[int, int]:
        if self._workers == 1:
            return {0: self._process.pid}
        found = {}
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self._process.pid).children():
                with suppress(psutil.NoSuchProcess):
                    rank = child.environ().get("UNISONO_RANK")
                    if rank is not None:
                        found[int(rank)] = child.pid
        return found

    def launcher(self) -> int | None:
        return None if self._workers == 1 else self._process.pid

    def wait(self, timeout_s: float) -> tuple[int, str]:
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"it had not ended after {timeout_s:g} s; it printed:\n{self._output.read_text()}") from error
        return code if code >= 0 else 128 - code, self._output.read_text()


@dataclass(frozen=True)
class Command:
    """What is run again and again."""

    task: Path
    out: Path
    options: Sequence[str]
    trace: Path
    """Where the task says what it is doing."""

    def arguments(self, workers: int, every: str) -> list[str]:
        given = ["-n", str(workers), "--out", str(self.out), "--checkpoint-every", every, "--log-every", "1", *self.options]
        return ["train", str(self.task), *given]

    @contextmanager
    def started(self, by: str, workers: int, fork_server: ForkServer, every: str) -> Iterator[Running]:
        """What still runs at the end is killed."""
        self.trace.write_bytes(b"")
        traced = {"KILL_FUZZ_TRACE": str(self.trace)}
        arguments = self.arguments(workers, every)
        if by != COMMAND:
            with fork_server.start(["-m", "unisono.cli", *arguments], workers, "auto", traced) as group:
                yield Forked(group)
            return
        with tempfile.NamedTemporaryFile() as output:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "unisono.cli", *arguments],
                env={**plain_environment(), **traced},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                yield Typed(process, Path(output.name), workers)
            finally:
                process.kill()
                process.wait(END_LIMIT_S)


@dataclass
class Watch:
    """What an attempt is doing, seen from outside."""

    command: Command
    kill: Kill
    running: Running
    usual_start_s: float
    """How long it takes to the first step."""
    last_step: int
    left_before: set[str]
    """Drafts of checkpoints that earlier attempts left."""
    began: float = field(default_factory=monotonic)
    first_step_s: float | None = None
    drafts: set[str] = field(default_factory=set)
    """Of checkpoints, seen so far. Each attempt has names of its own for them."""

    def reached(self) -> Callable[[], bool]:
        """Whether the moment has come, to be asked often."""
        return {
            "starting": self._starting,
            "training": self._training,
            "saving": self._saving,
            "evaluating": self._evaluating,
            "ending": self._ending,
        }[self.kill.moment]

    def traced(self) -> bytes:
        trace = self.command.trace.read_bytes()
        if self.first_step_s is None and b"t" in trace:
            self.first_step_s = monotonic() - self.began
        return trace

    def _starting(self) -> bool:
        return monotonic() - self.began >= self.kill.share * self.usual_start_s or bool(self.traced())

    def _training(self) -> bool:
        return b"t" in self.traced() and monotonic() - self.began - (self.first_step_s or 0.0) >= self.kill.share * TRAINING_S

    def _saving(self) -> bool:
        self.drafts |= drafts_in(self.command.out)
        if len(self.drafts - self.left_before) <= int(self.kill.share * DRAFTS):
            return False
        sleep(self.kill.finely * WRITE_S)
        return True

    def _evaluating(self) -> bool:
        return self.traced().count(b"e") > int(self.kill.share * EVALUATIONS)

    def _ending(self) -> bool:
        if f"step-{self.last_step:08d}" not in listed(self.command.out / "checkpoints"):
            return False
        sleep(self.kill.share * ENDING_S)
        return True


@dataclass(frozen=True)
class Attempt:
    """What became of it."""

    was_killed: bool
    code: int
    output: str
    after_s: float
    """From the start to the kill, or to the end."""
    to_end_s: float
    """From the kill until all had ended."""
    trace: bytes
    first_step_s: float | None


def run_attempt(
    command: Command,
    kill: Kill,
    fork_server: ForkServer,
    every: str,
    usual_start_s: float,
    last_step: int,
    end_limit_s: float = END_LIMIT_S,
) -> Attempt:
    """Blocking: one attempt, killed as drawn, or not if it ends before that moment comes."""
    left_before = drafts_in(command.out)
    with command.started(kill.started_by, kill.workers, fork_server, every) as running:
        watch = Watch(command, kill, running, usual_start_s, last_step, left_before)
        reached = watch.reached()
        while not (reached() and (kill.victim != ONE or kill.rank in running.ranks())):
            if running.is_over():
                code, output = running.wait(END_LIMIT_S)
                return Attempt(False, code, output, monotonic() - watch.began, 0.0, watch.traced(), watch.first_step_s)
            assert monotonic() - watch.began < LIMIT_S, f"no moment '{kill.moment}' came in {LIMIT_S:g} s"
            sleep(LOOK_EVERY_S)
        pids = victims(kill, running)
        members = [*running.ranks().values()]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed = monotonic()
        if kill.moment == "starting" and running.launcher() is None:
            _end_as_a_launcher(running, members)
        try:
            code, output = running.wait(end_limit_s)
        except AssertionError as error:
            raise AssertionError(f"{kill} in {command.out} after {killed - watch.began:.3f} s: {error}") from error
        while any(is_running(pid) for pid in members):  # those of a killed launcher are nobody's children
            assert monotonic() - killed < end_limit_s, f"ranks {members} outlive their launcher; it printed:\n{output}"
            sleep(0.01)
        trace = watch.traced()
        return Attempt(code != 0, code, output, killed - watch.began, monotonic() - killed, trace, watch.first_step_s)


def _end_as_a_launcher(running: Running, members: Sequence[int]) -> None:
    """Blocking: before ranks have met they cannot know of each other's death; who started them ends the others."""
    patience = monotonic() + LAUNCHER_S
    while not running.is_over() and monotonic() < patience:
        sleep(0.01)
    for pid in () if running.is_over() else members:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def run_undisturbed(command: Command, by: str, workers: int, fork_server: ForkServer, every: str) -> tuple[int, str]:
    """Blocking: one attempt to its natural end; exit code and output."""
    with command.started(by, workers, fork_server, every) as running:
        return running.wait(LIMIT_S)


def victims(kill: Kill, running: Running) -> list[int]:
    """Local: the processes to kill, in a drawn order. Where a launcher was to die that there is not, all do."""
    ranks, launcher = running.ranks(), running.launcher()
    if kill.victim == ONE:
        return [ranks[kill.rank]]
    if kill.victim == LAUNCHER and launcher is not None:
        return [launcher]
    assert kill.victim in (ALL, LAUNCHER)
    pids = [*ranks.values(), *([launcher] if launcher is not None else [])]
    return pids if kill.finely < 0.5 else pids[::-1]


def drafts_in(out: Path) -> set[str]:
    """Local: the names of checkpoints of a run that are being written, or were when a rank was killed."""
    return {name for name in listed(out / "checkpoints") if name.endswith(".draft")}


def listed(folder: Path) -> list[str]:
    """Local: names in a folder that may not be there yet."""
    try:
        return os.listdir(folder)  # noqa: PTH208  (asked thousands of times a second)
    except FileNotFoundError:
        return []
