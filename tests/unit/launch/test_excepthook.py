"""How a program ends when nobody catches our errors, seen from outside the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.system.processes import plain_environment

HEAD = """
import sys
from unisono.errors import ReportedElsewhere, CollectiveTimeout, CommError, PeerLost, TrainingFailed, UsageError
from unisono.launch.excepthook import install_excepthook
install_excepthook()
"""


def run(folder: Path, body: str) -> tuple[int, str, str]:
    """Exit code and errors of a program, and the path of its file."""
    program = folder / "program.py"
    program.write_text(HEAD + dedent(body))
    done = subprocess.run([sys.executable, program], env=plain_environment(), capture_output=True, text=True, timeout=60)
    assert done.stdout == ""
    return done.returncode, done.stderr, str(program)


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        ("UsageError('n is wrong; give 2')", 2, "n is wrong; give 2"),
        ("PeerLost([1], 'rank 1 died')", 1, "rank 1 died"),
        ("TrainingFailed('no number')", 1, "no number"),
    ],
)
def test_a_mistake_and_a_lost_peer_are_one_line(tmp_path: Path, error: str, code: int, text: str) -> None:
    ended, shown, program = run(tmp_path, f"def step():\n    raise {error}\nstep()\n")
    assert (ended, shown) == (code, f"unisono: error: {text} ({program}, line 7)\n")


def test_an_error_that_another_rank_reports_is_not_repeated(tmp_path: Path) -> None:
    assert run(tmp_path, "raise ReportedElsewhere(2)\n")[:2] == (2, "")


def test_what_dataclasses_write_is_no_place(tmp_path: Path) -> None:
    body = """
    from dataclasses import replace
    from unisono.task.task import Task
    replace(Task(print, print), epochs=0)
    """
    code, shown, program = run(tmp_path, body)
    assert code == 2 and shown.endswith(f"received 0 ({program}, line 9)\n"), shown


def test_the_place_is_that_of_the_users_code(tmp_path: Path) -> None:
    """The innermost line that is not ours: our own frames say nothing to a user."""
    body = """
    from unisono.cluster.rendezvous import host_port
    def meet(): host_port("nowhere", "here")
    meet()
    """
    code, shown, program = run(tmp_path, body)
    assert code == 2
    assert shown.startswith("unisono: error: here must be host:port") and shown.endswith(f"({program}, line 8)\n"), shown


@pytest.mark.parametrize("error", ["ValueError('theirs')", "CommError('ours')", "CollectiveTimeout([1], 'late')"])
def test_other_errors_keep_their_traceback(tmp_path: Path, error: str) -> None:
    code, shown, program = run(tmp_path, f"raise {error}\n")
    assert code == 1
    assert shown.startswith(f'Traceback (most recent call last):\n  File "{program}", line 6, in <module>\n'), shown
    assert "unisono: error" not in shown


def test_an_error_raised_because_of_another_is_one_line_too(tmp_path: Path) -> None:
    body = """
    try:
        {}["key"]
    except KeyError as error:
        raise UsageError("no key") from error
    """
    code, shown, program = run(tmp_path, body)
    assert (code, shown) == (2, f"unisono: error: no key ({program}, line 10)\n")


def test_a_hook_of_somebody_else_stays(tmp_path: Path) -> None:
    body = """
    sys.excepthook = lambda kind, error, trace: print("theirs:", error, file=sys.stderr)
    install_excepthook()
    raise UsageError("a mistake")
    """
    assert run(tmp_path, body)[:2] == (1, "theirs: a mistake\n")


def test_exits_and_interrupts_are_left_alone(tmp_path: Path) -> None:
    assert run(tmp_path, "sys.exit(5)\n")[:2] == (5, "")
    code, shown, _ = run(tmp_path, "raise KeyboardInterrupt\n")
    assert code in (-2, 130) and "KeyboardInterrupt" in shown


def test_connect_installs_it(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import unisono\nunisono.connect(engine='tcp')\n")
    done = subprocess.run([sys.executable, program], env=plain_environment(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith("unisono: error: engine must be one of") and done.stderr.endswith(f"({program}, line 2)\n")
