"""Loops of `bench.ranks.jets_plain`: started, warmed up, and let go at the same moment."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from threading import Timer
from types import TracebackType
from typing import Any

from bench.groups import ONE_THREAD, ROOT, GroupFailed
from tests.system.processes import plain_environment

PROGRAM = (sys.executable, "-m", "bench.ranks.jets_plain")


class Loop:
    """One process. Local; use it in a `with` statement, which ends it in any case."""

    def __init__(self, command: Sequence[str], limit_s: float) -> None:
        self._command, self._limit_s = command, limit_s

    def __enter__(self) -> Loop:
        self._errors = tempfile.TemporaryFile("w+", errors="replace")
        self._process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            env={**plain_environment(), **ONE_THREAD},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,  # Ctrl-C is for us; we end it
        )
        self._timer = Timer(self._limit_s, self._process.kill)
        self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._timer.cancel()
        self._timer.join()
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def hear(self) -> str:
        """Blocking: the next line that it prints. Raises `GroupFailed` where it ends without, by itself or after its time."""
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            return line
        code = self._process.wait()
        self._errors.seek(0)
        printed = "\n".join(self._errors.read().splitlines()[-15:])
        raise GroupFailed(f"{' '.join(self._command)} ended with {code} (its limit is {self._limit_s:g} s) and printed:\n{printed}")

    def go(self) -> None:
        """Local: it is warm, and may begin."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()


def run_loops(arguments: Sequence[str], num_loops: int, limit_s: float, program: Sequence[str] = PROGRAM) -> list[dict[str, Any]]:
    """Local, blocking: so many loops at the same time, each with its part of every batch; what each of them says."""
    with ExitStack() as stack:
        commands = [[*program, *arguments, str(part), str(num_loops)] for part in range(num_loops)]
        loops = [stack.enter_context(Loop(command, limit_s)) for command in commands]
        for loop in loops:
            loop.hear()
        for loop in loops:
            loop.go()
        return [json.loads(loop.hear()) for loop in loops]
