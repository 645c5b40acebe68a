"""All tests in a few sessions of pytest at the same time, as ranks that wait for each other and for time limits leave cores idle.

`python -m tests.system.sessions ARGUMENTS` gives its arguments to each. All sessions go through the same files in the same order; a
session runs a file if it is the first to come to it. Each has its own leak police, fork server, ports and folders. The first is
seen while it runs, the others when all are over.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import pytest

NUM_SESSIONS = 3
NO_TESTS = int(pytest.ExitCode.NO_TESTS_COLLECTED)
"""No failure as long as another session had a test."""
ONE_SESSION = "--of-several"
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
"""Without it a file is compiled once (into __pycache__, which git ignores), with it by each of the hundreds of interpreters that
tests start."""
SHARED = {"slurm_of_the_session": "slurm"}
"""Fixtures that exist once on a machine: all files that use one are of one session."""


class Claims:
    """A plugin of one session that leaves out the files that another session has claimed in their common folder."""

    def __init__(self, folder: Path) -> None:
        self.num_run = 0
        self._folder = folder
        self._is_ours: dict[str, bool] = {}
        self._names: dict[Path, str] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            shared = next((SHARED[name] for name in getattr(item, "fixturenames", ()) if name in SHARED), None)
            if shared or item.path not in self._names:
                self._names[item.path] = shared or item.nodeid.partition("::")[0].replace("/", "+")

    def _is_claimed(self, item: pytest.Item) -> bool:
        """Whether this session runs the item, which claims its file if no other session has."""
        name = self._names[item.path]
        if name not in self._is_ours:
            self._is_ours[name] = self._claim(name)
        return self._is_ours[name]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """The loop of pytest over the items of this session. Each is told which comes next, so that fixtures end in time."""
        if session.testsfailed and not session.config.option.continue_on_collection_errors:
            raise session.Interrupted(f"{session.testsfailed} errors during collection")
        if session.config.option.collectonly:
            return True
        ours = filter(self._is_claimed, session.items)
        item = next(ours, None)
        while item is not None:
            following = next(ours, None)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            self.num_run += 1
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
            item = following
        return True

    def _claim(self, name: str) -> bool:
        try:
            (self._folder / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def main(arguments: Sequence[str]) -> int:
    """Local, blocking: until all sessions are over, whatever becomes of one. 0 if all passed, else the code of one that did not."""
    num_sessions = NUM_SESSIONS if len(os.sched_getaffinity(0)) > 1 else 1
    with ExitStack() as held:
        claims = held.enter_context(tempfile.TemporaryDirectory(prefix="unisono-tests-"))
        outputs = [held.enter_context(tempfile.TemporaryFile()) for _ in range(num_sessions - 1)]
        sessions = [_start(claims, arguments, output) for output in (None, *outputs)]
        try:
            codes = [session.wait() for session in sessions]
        except KeyboardInterrupt:  # the terminal has told them as well, and they have something to put away
            codes = [session.wait() for session in sessions]
        for output in outputs:
            output.seek(0)
            sys.stdout.write(output.read().decode(errors="replace"))
    told = [code for code in codes if code != NO_TESTS]
    return next((code for code in told if code), 0) if told else NO_TESTS


def _start(claims: str, arguments: Sequence[str], output: IO[bytes] | None) -> subprocess.Popen[bytes]:
    """Ends with this process in any case."""
    command = ["setpriv", "--pdeathsig", "TERM", sys.executable, __file__, ONE_SESSION, claims, *arguments]
    environment = {name: value for name, value in os.environ.items() if name != NO_BYTECODE}
    errors = None if output is None else subprocess.STDOUT
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=errors)


def run_session(folder: Path, arguments: Sequence[str]) -> int:
    """Local, blocking: one of several sessions, as `python -m pytest` would run it."""
    sys.path[0] = str(Path.cwd())
    claims = Claims(folder)
    # Which tests failed last is kept for a folder, not for a session: the last to end would forget what the others have found.
    code = int(pytest.main(["-p", "no:cacheprovider", *arguments], [claims]))
    return code if code or claims.num_run else NO_TESTS


if __name__ == "__main__":
    if sys.argv[1:2] == [ONE_SESSION]:
        sys.exit(run_session(Path(sys.argv[2]), sys.argv[3:]))
    sys.exit(main(sys.argv[1:]))
