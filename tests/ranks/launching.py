"""`unisono run` as tests start it: a process in a session of its own, read while it runs."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from time import monotonic
from types import TracebackType
from typing import IO

from tests.system.processes import plain_environment

LIMIT_S = 30.0

PATCHED = """
import sys
from unisono.launch import output_sink, world
from unisono.cli import main
world.FAILURE_GRACE_S = world.TERM_GRACE_S = world.LEFTOVER_GRACE_S = {grace_s}
output_sink.MAX_PENDING_BYTES = {max_pending_bytes}
sys.exit(main())
"""
"""The command with other constants, so that tests need not wait for them."""
SHORT_S = 0.4
PATIENT_S = 1000.0
"""For tests in which one rank fails and the others have something to say, however late they are."""

HEAD = """
import json, os, signal, subprocess, sys
rank = int(os.environ["UNISONO_RANK"])
restart = int(os.environ["UNISONO_RESTART"])
def pid(): print(f"pid {os.getpid()}", flush=True)
def wait_for_ever():
    # Not signal.pause(): it would sleep through a signal that came just before it.
    while True: signal.sigtimedwait((), 1)
"""


class Script:
    """Writes the program of a test, behind a few lines that all of them need, and gives its path."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, body: str) -> str:
        self._path.write_text(HEAD + dedent(body))
        return str(self._path)


class Launcher:
    """A running `unisono run`; use it in a `with` statement, which kills it in any case (and so shows what survives that)."""

    def __init__(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        grace_s: float | None = None,
        max_pending_bytes: int = 1 << 20,
        stdin: int | IO[bytes] = subprocess.DEVNULL,
        verb: str = "run",
    ) -> None:
        """`grace_s` of None takes the command as it is, with its own constants."""
        patched = PATCHED.format(grace_s=grace_s, max_pending_bytes=max_pending_bytes)
        start = ["-m", "unisono"] if grace_s is None else ["-c", patched]
        self.process = subprocess.Popen(
            [sys.executable, *start, verb, *arguments],
            env={**plain_environment(), **(env or {})},
            cwd=cwd,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.lines: list[str] = []
        """What was read of both outputs, each line marked by where it came from: 'out: [0] hello'."""
        self._arriving: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def reading(self) -> Launcher:
        """Start to read; a launcher that nobody reads is tested too."""
        for name, stream in (("out", self.process.stdout), ("err", self.process.stderr)):
            assert stream is not None
            thread = threading.Thread(target=self._read, args=(name, stream))
            thread.start()
            self._threads.append(thread)
        return self

    def wait_for(self, *texts: str, limit_s: float = LIMIT_S) -> None:
        """Blocking: until each text was in some line."""
        missing = set(texts) - {text for text in texts for line in self.lines if text in line}
        deadline = monotonic() + limit_s
        while missing:
            try:
                line = self._arriving.get(timeout=max(0.0, deadline - monotonic()))
            except queue.Empty:
                raise AssertionError(f"{missing} did not come within {limit_s:g} s; came:\n{self.shown()}") from None
            if line is None:
                raise AssertionError(f"the output ended without {missing}; came:\n{self.shown()}")
            missing -= {text for text in missing if text in line}

    def finish(self, limit_s: float = LIMIT_S) -> int:
        """Blocking: until the launcher ends and all its output was read."""
        code = self.process.wait(limit_s)
        for thread in self._threads:
            thread.join(LIMIT_S)
        return code

    def shown(self) -> str:
        return "\n".join(self.lines)

    def printed(self, name: str) -> list[str]:
        return [line.partition(": ")[2] for line in self.lines if line.startswith(f"{name}: ")]

    def pids(self, num_ranks: int) -> list[int]:
        """Blocking: the process numbers that ranks print as 'pid N'."""
        self.wait_for(*(f"[{rank}] pid " for rank in range(num_ranks)))
        starts = [f"out: [{rank}] pid " for rank in range(num_ranks)]
        return [next(int(line.split()[-1]) for line in self.lines if line.startswith(start)) for start in starts]

    def _read(self, name: str, stream: IO[bytes]) -> None:
        for line in stream:
            text = f"{name}: {line.decode(errors='replace').removesuffix(chr(10))}"
            self.lines.append(text)
            self._arriving.put(text)
        self._arriving.put(None)

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for thread in self._threads:
            thread.join(LIMIT_S)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


def run(
    *arguments: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    grace_s: float = SHORT_S,
    verb: str = "run",
) -> Launcher:
    """Blocking: a launcher from its start to its end; `process.returncode` and `lines` say what became of it."""
    with Launcher(*arguments, env=env, cwd=cwd, grace_s=grace_s, verb=verb) as launcher:
        launcher.reading().finish()
        return launcher
