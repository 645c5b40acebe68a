"""Ranks that cannot open each other's memory, as in containers with process name spaces of their own: gloo, with the reason."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.processes import Outcome, plain_environment, run_together

BIN = Path(sys.executable).parent
HELLO = Path(__file__).resolve().parents[2] / "examples" / "hello.py"
LIMIT_S = 60.0
NEW_NAME_SPACE = ("unshare", "--pid", "--fork", "--kill-child")


def why_not() -> str:
    if os.geteuid() != 0 or not shutil.which("unshare"):
        return "process name spaces need root and util-linux; run the tests as root"
    tried = subprocess.run([*NEW_NAME_SPACE, "--mount-proc", "true"], capture_output=True, text=True, timeout=30)
    return f"no process name space can be made here ({tried.stderr.strip()})" if tried.returncode else ""


def run_apart(*options: str, own_proc: bool) -> Outcome:
    """The example on two ranks, the second in another name space: with a /proc that shows only it, or with ours, where its own
    process number is somebody else's."""
    if reason := why_not():
        pytest.skip(reason)
    program = shlex.join([sys.executable, str(HELLO)])
    apart = shlex.join([*NEW_NAME_SPACE, *(["--mount-proc"] if own_proc else []), sys.executable, str(HELLO)])
    script = f'if [ "$UNISONO_RANK" = 1 ]; then exec {apart}; else exec {program}; fi'
    command = [str(BIN / "unisono"), "run", "-n", "2", *options, "sh", "-c", script]
    return run_together([command], plain_environment(), LIMIT_S)[0]


@pytest.mark.parametrize("own_proc", [True, False])
def test_gloo_is_taken_and_the_reason_is_printed(own_proc: bool) -> None:
    outcome = run_apart(own_proc=own_proc)
    assert outcome.code == 0, str(outcome)
    (origin,) = re.findall(r"unisono: (2 processes.*)", outcome.output)
    assert re.search(r"engine gloo \(.*/proc/\d+/fd/\d+.*one PID namespace", origin), str(outcome)
    assert outcome.output.count("pi is about 3.1415905") == 1, str(outcome)


def test_shared_memory_that_was_asked_for_is_refused() -> None:
    outcome = run_apart("--engine", "shm", own_proc=True)
    assert outcome.code == 2, str(outcome)
    for rank in (0, 1):
        (told,) = re.findall(rf"\[{rank}\] unisono: error: (.*)", outcome.output)
        assert "one PID namespace, or use --engine gloo" in told, str(outcome)
    assert "Traceback" not in outcome.output, str(outcome)
