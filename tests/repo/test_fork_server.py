"""A forked rank ends as a program of its own would: its code, what it prints, its threads, and what it asked for at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.fork_server import ForkServer

PROGRAM = """
import atexit, sys, threading
atexit.register(print, "at the end")
threading.Thread(target=lambda: threading.main_thread().join() or print("a thread")).start()
def hook(*error):
    print("told")
    sys.exit(2)
def fail():
    raise RuntimeError("fails")
def fail_told():
    sys.excepthook = hook
    fail()
sys.stdout.write("unfinished line, ")
{end}
"""


@pytest.mark.parametrize(
    ("end", "code", "told"),
    [
        ("pass", 0, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(259)", 3, ""),
        ("sys.exit('words')", 1, "words"),
        ("fail()", 1, "RuntimeError: fails"),
        ("fail_told()", 2, "told"),
    ],
)
def test_a_rank_ends_as_a_program_does(fork_server: ForkServer, tmp_path: Path, end: str, code: int, told: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(end=end))
    ended = fork_server.run([str(program)], 1, "single")
    assert ended.exit_code == code, str(ended)
    assert all(text in ended.output for text in ("unfinished line, ", "a thread\nat the end\n", told)), str(ended)
