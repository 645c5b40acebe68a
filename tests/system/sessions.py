"""All tests in a few sessions of pytest at the same time, as ranks that wait for each other and for time limits leave cores idle.

`python -m tests.system.sessions ARGUMENTS` gives its arguments to each: one has tests/ranks, one the contracts and faults, one all
the rest of tests/. Each has its own leak police, fork server, ports and folders. The first is seen while it runs, the others when
all are over.
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

APART = (("tests/ranks",), ("tests/contracts", "tests/faults"))
"""Each about as long as all the rest. What uses SLURM and test hosts is in the first, so that one session makes them."""
NO_TESTS = 5
"""What pytest says where the arguments choose nothing, which is no failure as long as another session had something."""


def main(arguments: Sequence[str]) -> int:
    """Local, blocking: until all are over, whatever becomes of one. 0 if all passed, else the code of one that did not."""
    apart = [[folder for folder in folders if Path(folder).is_dir()] for folders in APART]
    rest = ["tests", *(f"--ignore={folder}" for folders in apart for folder in folders)]
    chosen = [*filter(None, apart), rest]
    one_by_one = len(os.sched_getaffinity(0)) < 2
    with ExitStack() as held:
        outputs = [None, *(held.enter_context(tempfile.TemporaryFile()) for _ in chosen[1:])]
        sessions = []
        for folders, output in zip(chosen, outputs, strict=True):
            sessions.append(_start([*folders, *arguments], output))
            if one_by_one:
                sessions[-1].wait()
        try:
            codes = [session.wait() for session in sessions]
        except KeyboardInterrupt:  # the terminal has told them as well, and they have something to put away
            codes = [session.wait() for session in sessions]
        for output in filter(None, outputs):
            output.seek(0)
            sys.stdout.write(output.read().decode(errors="replace"))
    told = [code for code in codes if code != NO_TESTS]
    return next((code for code in told if code), 0) if told else NO_TESTS


def _start(arguments: Sequence[str], output: IO[bytes] | None) -> subprocess.Popen[bytes]:
    """Ends with this process in any case."""
    # Which tests failed last is kept for a folder, not for a session: the last to end would forget what the others have found.
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    command = ["setpriv", "--pdeathsig", "TERM", *pytest]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=None if output is None else subprocess.STDOUT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
