"""Groups of processes, one for each contender, all alive and asleep until the conductor gives one of them its turn."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import IO, Any

import psutil

from tests.system.processes import is_running, plain_environment

ROOT = Path(__file__).resolve().parents[1]
START_LIMIT_S = 180.0
ANSWER_LIMIT_S = 300.0
LEAVE_LIMIT_S = 5.0
FOLDERS = "unisono-bench-"
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Local: a folder that goes at the end; after a run that was killed the next conductor removes it."""
    with tempfile.TemporaryDirectory(prefix=f"{FOLDERS}{os.getpid()}-", ignore_cleanup_errors=True) as name:
        yield Path(name)


class GroupFailed(Exception):
    """A group of processes did not start, did not answer or answered with an error; says all that is known."""


@dataclass(frozen=True)
class RankSlot:
    """What a group's ranks need to find the conductor: the first two arguments of their program."""

    address: str
    group: str
    folder: Path
    """For the group's own files; goes at the end."""

    @property
    def arguments(self) -> list[str]:
        return [self.address, self.group]

    def program(self, module: str, *arguments: str, python: str = sys.executable) -> list[str]:
        """Pure: the command of a rank, `python -m bench.ranks.MODULE SOCKET GROUP arguments`."""
        return [python, "-m", f"bench.ranks.{module}", *self.arguments, *arguments]

    def unisono_run(self, num_ranks: int, engine: str, module: str, *arguments: str) -> list[Launch]:
        """Pure: all ranks by one command."""
        run = [sys.executable, "-m", "unisono", "run", "-n", str(num_ranks), "--engine", engine, "--threads", "1"]
        return [Launch([*run, *self.program(module, *arguments)[1:]])]


@dataclass(frozen=True)
class Launch:
    """One command that starts one or more ranks."""

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


def one_by_one(
    program: Sequence[str], num_ranks: int, *more: str, variables: Mapping[str, str] = MappingProxyType({})
) -> list[Launch]:
    """Pure: each rank by a command of its own, `program RANK SIZE more`."""
    return [Launch([*program, str(rank), str(num_ranks), *more], variables) for rank in range(num_ranks)]


class Group:
    """The started processes of one contender, seen from the conductor."""

    def __init__(self, name: str, launchers: list[subprocess.Popen[bytes]], log: Path) -> None:
        self.name = name
        self.versions: dict[str, str] = {}
        self._launchers = launchers
        self._log = log
        self._lines: list[socket.socket] = []
        self._unread: list[bytes] = []
        self._ranks: list[psutil.Process] = []

    @property
    def size(self) -> int:
        return len(self._lines)

    def attach(self, lines: list[socket.socket], processes: list[psutil.Process], versions: dict[str, str]) -> None:
        """Local: the ranks have come; `lines` and `processes` are in their order."""
        self._lines, self._ranks, self.versions = lines, processes, versions
        self._unread = [b""] * len(lines)

    def ask(self, what: str, limit_s: float = ANSWER_LIMIT_S, **arguments: Any) -> list[Any]:
        """Blocking: let all ranks do it, and give their results by rank."""
        text = json.dumps({"do": what, "with": arguments}).encode() + b"\n"
        for rank, line in enumerate(self._lines):
            try:
                line.sendall(text)
            except ConnectionError as error:
                raise GroupFailed(f"{self.name}: rank {rank} had ended before {what}; {self.said()}") from error
        deadline = time.monotonic() + limit_s
        answers = [self._answer(rank, what, deadline) for rank in range(self.size)]
        errors = [f"rank {rank}: {answer['error']}" for rank, answer in enumerate(answers) if "error" in answer]
        if errors:
            raise GroupFailed(f"{self.name}: {what} failed on {len(errors)} of {self.size} ranks; {errors[0]}")
        return [answer["result"] for answer in answers]

    def cpu_s(self) -> float:
        """Local: CPU time that the ranks have used since they started."""
        return float(sum(sum(process.cpu_times()[:2]) for process in self._ranks))

    def failed_start(self) -> str | None:
        """Local: why the ranks will not come, if a launcher has ended already."""
        codes = [launcher.poll() for launcher in self._launchers]
        if all(code is None for code in codes):
            return None
        return f"{self.name}: the start ended with {[code for code in codes if code is not None]}; {self.said()}"

    def said(self) -> str:
        """Local: the last that the processes printed."""
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return "it printed: " + "\n  ".join(["", *lines[-15:]]) if lines else "it printed nothing"

    def hang_up(self) -> None:
        """Local: the ranks will leave by themselves when they have finished what they are doing. Idempotent."""
        for line in self._lines:
            line.close()
        self._lines = []

    def close(self, limit_s: float = LEAVE_LIMIT_S) -> None:
        """Blocking: hang up, and end what is left after the limit. Idempotent."""
        self.hang_up()
        # Ranks that never came are not listening, so there is nothing to wait for.
        deadline = time.monotonic() + (limit_s if self._ranks else 0.0)
        for launcher in self._launchers:
            try:
                launcher.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                end(launcher)
        for process in self._ranks:
            if process.is_running():  # the same process, not another one with its number
                process.kill()
        self._ranks = []

    def _answer(self, rank: int, what: str, deadline: float) -> dict[str, Any]:
        line = self._lines[rank]
        while b"\n" not in self._unread[rank]:
            # Not a time-out of the socket: that would set it non-blocking, and a turn is short.
            ready, _, _ = select.select([line], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise GroupFailed(f"{self.name}: rank {rank} did not finish {what!r} within its time limit; {self.said()}")
            try:
                data = line.recv(1 << 16)
            except ConnectionError:
                data = b""
            if not data:
                raise GroupFailed(f"{self.name}: rank {rank} ended during {what}; {self.said()}")
            self._unread[rank] += data
        text, _, self._unread[rank] = self._unread[rank].partition(b"\n")
        answer: dict[str, Any] = json.loads(text)
        return answer


class Conductor:
    """A context that starts groups and ends them all when it is left, however it is left."""

    def __init__(self) -> None:
        self._groups: list[Group] = []

    def __enter__(self) -> Conductor:
        _remove_what_killed_runs_left()
        self._folder = Path(tempfile.mkdtemp(prefix=f"{FOLDERS}{os.getpid()}-"))
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # A name in the file system, as ranks in other network namespaces must find it too.
        self._listener.bind(str(self._folder / "conductor"))
        self._listener.listen(256)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        patient = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave processes behind
        try:
            groups, self._groups = self._groups, []
            for group in groups:  # all at once, so that they leave at the same time
                group.hang_up()
            for group in groups:
                group.close()
        finally:
            self._listener.close()
            shutil.rmtree(self._folder, ignore_errors=True)
            signal.signal(signal.SIGINT, patient)

    def start(self, name: str, num_ranks: int, launches: Callable[[int, RankSlot], list[Launch]]) -> Group:
        """Blocking: start a contender's ranks and wait until all of them sit. Raises `GroupFailed` if they are not one world."""
        folder = self._folder / f"group{len(self._groups)}"
        folder.mkdir()
        log = folder / "log"
        processes: list[subprocess.Popen[bytes]] = []
        group = Group(name, processes, log)
        self._groups.append(group)
        with log.open("ab") as sink:
            for launch in launches(num_ranks, RankSlot(str(self._folder / "conductor"), name, folder)):
                try:
                    processes.append(started(replace(launch, environment={**ONE_THREAD, **launch.environment}), sink))
                except OSError as error:
                    raise GroupFailed(f"{name}: {launch.command[0]} cannot be started: {error.strerror}") from error
        try:
            self._seat(group, num_ranks)
        except GroupFailed:
            group.close()
            raise
        return group

    def _seat(self, group: Group, num_ranks: int) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        hellos: list[tuple[dict[str, Any], socket.socket]] = []
        while len(hellos) < num_ranks:
            ready, _, _ = select.select([self._listener], [], [], 0.2)
            if ready:
                line, _ = self._listener.accept()
                hello = json.loads(line.makefile("r", encoding="utf-8").readline() or "{}")
                if hello.get("group") == group.name:
                    hellos.append((hello, line))
                else:  # of a group that was given up
                    line.close()
            elif reason := group.failed_start():
                raise GroupFailed(reason)
            elif time.monotonic() > deadline:
                raise GroupFailed(f"{group.name}: {len(hellos)} of {num_ranks} ranks came in {START_LIMIT_S:g} s; {group.said()}")
        hellos.sort(key=lambda pair: int(pair[0]["rank"]))
        lines = [line for _, line in hellos]
        group.attach(lines, [psutil.Process(hello["pid"]) for hello, _ in hellos], hellos[0][0]["versions"])
        seen = [(hello["rank"], hello["size"]) for hello, _ in hellos]
        if seen != [(rank, num_ranks) for rank in range(num_ranks)]:
            raise GroupFailed(f"{group.name}: not one world of {num_ranks} ranks; (rank, size) are {seen}")


def _remove_what_killed_runs_left() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDERS}*"):
        maker = folder.name.removeprefix(FOLDERS).partition("-")[0]
        if maker.isdigit() and not is_running(int(maker)):
            shutil.rmtree(folder, ignore_errors=True)


def started(launch: Launch, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Local: its processes, in a group of their own, as Ctrl-C is for us and we end them; all that they print goes into `log`."""
    return subprocess.Popen(
        launch.command,
        cwd=ROOT,
        env={**plain_environment(), **launch.environment},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """Blocking: end what `started` has started. Idempotent."""
    for signum in (signal.SIGTERM, signal.SIGKILL):  # mpirun ends its ranks, which may lead groups of their own
        if process.poll() is None:
            _signal_group(process.pid, signum)
            with suppress(subprocess.TimeoutExpired):
                process.wait(LEAVE_LIMIT_S)


def _signal_group(leader: int, signum: int) -> None:
    try:
        os.killpg(leader, signum)
    except ProcessLookupError:
        return
