"""`LaunchConfig(output_from="first")`: rank 0 prints for all, and draws on a terminal as if it ran there alone."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.ranks.launching import LIMIT_S, Script
from tests.system.processes import plain_environment
from unisono.errors import UsageError
from unisono.launch.launch import LaunchConfig

pytestmark = pytest.mark.timeout(60)

COLUMNS = 97
LAUNCH = """
import sys
from pathlib import Path
from unisono.launch.launch import LaunchConfig, launch
log_dir, num_local, program = sys.argv[1:]
sys.exit(launch(LaunchConfig((program,), int(num_local), output_from="first", log_dir=Path(log_dir) if log_dir else None)))
"""


def command(program: str, num_local: int, log_dir: Path | None = None) -> list[str]:
    return [sys.executable, "-c", LAUNCH, str(log_dir or ""), str(num_local), program]


class Screen:
    """A launcher on a terminal of its own, and what it has shown there."""

    def __init__(self, arguments: list[str]) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
        env = {**plain_environment(), "TERM": "xterm", "NO_COLOR": "1"}
        self.process = subprocess.Popen(arguments, env=env, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
        os.close(slave)
        self.shown = b""

    def read_until(self, wanted: bytes) -> None:
        while wanted not in self.shown:
            assert self._read(), f"{wanted!r} did not come; came: {self.shown!r}"

    def finish(self) -> int:
        while self._read():
            continue
        return self.process.wait(LIMIT_S)

    def _read(self) -> bool:
        try:
            data = os.read(self._master, 65536)
        except OSError:  # as Linux says that nobody has the terminal open any more
            return False
        self.shown += data
        return bool(data)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@contextmanager
def screen(arguments: list[str]) -> Iterator[Screen]:
    opened = Screen(arguments)
    try:
        yield opened
    finally:
        opened.close()


def test_rank_0_draws_and_lines_of_others_take_the_place_of_what_it_redraws(script: Script, tmp_path: Path) -> None:
    for rank in (0, 1):
        os.mkfifo(tmp_path / f"go-{rank}")
    body = f"""
    def wait(): open({str(tmp_path)!r} + f"/go-{{rank}}").read()
    if rank == 0:
        sys.stdout.write("start\\n" + chr(13) + "bar 1")
        sys.stdout.flush()
        wait()
        sys.stdout.write(chr(13) + "bar 2" + chr(13) + "the end\\n")
    else:
        wait()
        print("a word")
        print("an error", file=sys.stderr)
    """
    with screen(command(script(body), 2)) as seen:
        seen.read_until(b"start\r\n\rbar 1")  # it has no line end yet
        (tmp_path / "go-1").write_text("")
        seen.read_until(b"an error\r\n")
        (tmp_path / "go-0").write_text("")
        assert seen.finish() == 0
        before, _, after = seen.shown.partition(b"\r\x1b[K")
        assert before == b"start\r\n\rbar 1"
        assert after.endswith(b"\rbar 2\rthe end\r\n")
        assert sorted(after.split(b"\r\n")[:2]) == [b"[1] a word", b"[1] an error"]


def test_half_a_line_is_kept_where_another_speaks(script: Script) -> None:
    body = """
    sys.stdout.write("half")
    sys.stdout.flush()
    os._exit(3)
    """
    with screen(command(script(body), 1)) as seen:
        assert seen.finish() == 3
        assert seen.shown == b"half\r\nunisono: rank 0 exited with code 3\r\n"


def test_a_bar_that_was_left_is_erased(script: Script) -> None:
    with screen(command(script("sys.stdout.write(chr(13) + 'bar'); sys.stdout.flush()"), 1)) as seen:
        assert seen.finish() == 0
        assert seen.shown == b"\rbar\r\x1b[K"


def test_the_log_holds_lines_as_they_stood_in_the_end(script: Script, tmp_path: Path) -> None:
    body = """
    for text in ("first line\\n", "\\rbar 1\\x1b[K", "\\r\\x1b[32mbar 2\\x1b[0m", "\\r\\x1b[Kepoch 1\\nand\\r\\n", "\\rlast"):
        sys.stdout.write(text)
        sys.stdout.flush()
    """
    with screen(command(script(body), 1, tmp_path / "logs")) as seen:
        assert seen.finish() == 0
    assert (tmp_path / "logs" / "rank-0.log").read_bytes() == b"first line\nepoch 1\nand\nlast\n"


SHOW = """
from dataclasses import asdict
from unisono.cluster.terminal import terminal
if len(sys.argv) == 1:
    child = subprocess.run([sys.executable, __file__, "child"], stdout=subprocess.PIPE, text=True, check=True).stdout
    print(json.dumps([rank, asdict(terminal()), json.loads(child)]), flush=True)
else:
    print(json.dumps(asdict(terminal())))
"""
NONE = {"columns": None, "colour": False}


def test_rank_0_knows_its_terminal_and_its_children_do_not_take_it_for_theirs(script: Script) -> None:
    with screen(command(script(SHOW), 2)) as seen:
        assert seen.finish() == 0
    rows = sorted(json.loads(line.removeprefix("[1] ")) for line in seen.shown.decode().splitlines())
    assert rows == [[0, {"columns": COLUMNS, "colour": False}, NONE], [1, NONE, NONE]]


def test_without_a_terminal_there_are_whole_lines(script: Script) -> None:
    body = SHOW + "\nif len(sys.argv) == 1: sys.stdout.write('half'); print('err', file=sys.stderr)"
    done = subprocess.run(command(script(body), 2), env=plain_environment(), capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0
    assert done.stdout.splitlines() == [json.dumps([0, NONE, NONE]), "half"]
    assert sorted(done.stderr.splitlines()) == ["[1] " + json.dumps([1, NONE, NONE]), "[1] err", "[1] half", "err"]


def test_an_unknown_output_from_is_refused() -> None:
    with pytest.raises(UsageError, match="output_from must be one of all, first; received 'last'"):
        LaunchConfig(("x.py",), 1, output_from="last")
