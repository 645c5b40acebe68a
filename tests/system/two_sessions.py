"""All tests in two sessions of pytest at the same time, as ranks that wait for each other and for time limits leave cores idle.

`python -m tests.system.two_sessions ARGUMENTS` gives its arguments to both: one has tests/ranks, the other all the rest of tests/.
Each has its own leak police, fork server, ports and folders. The first is seen while it runs, the second when both are over.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import IO

ALONE = "tests/ranks"
"""About as long as all the rest; what uses SLURM and test hosts is here, so that one session makes them."""
NO_TESTS = 5
"""What pytest says where the arguments choose nothing, which is no failure as long as the other session had something."""


def main(arguments: Sequence[str]) -> int:
    """Local, blocking: until both are over, whatever becomes of one. 0 if both passed, else the code of one that did not."""
    with tempfile.TemporaryFile() as output:
        first = _start([ALONE, *arguments], None)
        if len(os.sched_getaffinity(0)) < 2:
            first.wait()
        second = _start(["tests", f"--ignore={ALONE}", *arguments], output)
        try:
            codes = [first.wait(), second.wait()]
        except KeyboardInterrupt:  # the terminal has told them as well, and they have something to put away
            codes = [first.wait(), second.wait()]
        output.seek(0)
        sys.stdout.write(output.read().decode(errors="replace"))
    told = [code for code in codes if code != NO_TESTS]
    return next((code for code in told if code), 0) if told else NO_TESTS


def _start(arguments: Sequence[str], output: IO[bytes] | None) -> subprocess.Popen[bytes]:
    """Ends with this process in any case."""
    # Which tests failed last is kept for a folder, not for a session: the second to end would forget what the first has found.
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    command = ["setpriv", "--pdeathsig", "TERM", *pytest]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=None if output is None else subprocess.STDOUT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
