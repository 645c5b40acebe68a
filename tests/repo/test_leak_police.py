"""A test of the fixture in tests/conftest.py: it catches each kind of leak, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CONFTEST = Path(__file__).parents[1] / "conftest.py"

LEAKS = {
    "child process": (
        "process *sleep 1000*",
        """
        import subprocess
        def test_leaks(keep):
            keep.append(subprocess.Popen(["sleep", "1000"]))
        """,
    ),
    "orphan": (
        "process *sleep 1000*",
        """
        import subprocess
        def test_leaks():
            subprocess.run(["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & exit 0"], check=True)
        """,
    ),
    "zombie": (
        "process * (zombie*",
        """
        import os
        def test_leaks():
            if os.fork() == 0:
                os._exit(0)
        """,
    ),
    "thread": (
        "thread forgotten",
        """
        import threading
        from types import SimpleNamespace
        def test_leaks(keep):
            end = threading.Event()
            threading.Thread(target=end.wait, name="forgotten").start()
            keep.append(SimpleNamespace(close=end.set))
        """,
    ),
    "daemon thread of ours": (
        "thread unisono-world (daemon)",
        """
        import threading
        def test_leaks(keep):
            threading.Thread(target=threading.Event().wait, name="unisono-world", daemon=True).start()
        """,
    ),
    "port": (
        "listening port *",
        """
        import socket
        def test_leaks(keep):
            keep.append(socket.create_server(("127.0.0.1", 0)))
        """,
    ),
    "variable set": (
        "environment variable FORGOTTEN: was None, is 'yes'",
        """
        import os
        def test_leaks():
            os.environ["FORGOTTEN"] = "yes"
        """,
    ),
    "variable removed": (
        "environment variable HOME: was *, is None",
        """
        import os
        def test_leaks():
            del os.environ["HOME"]
        """,
    ),
    "shared memory": (
        "shared-memory file /dev/shm/unisono-police-*",
        """
        import os
        from pathlib import Path
        def test_leaks():
            Path(f"/dev/shm/unisono-police-{os.getpid()}").write_bytes(b"1")
        """,
    ),
}

KEEP = """
import pytest
@pytest.fixture(scope="session")
def keep():
    kept = []
    yield kept
    for thing in kept:
        getattr(thing, "wait", getattr(thing, "close", None))()
"""

CLEAN = """
import os, socket, subprocess, sys, threading
from pathlib import Path
def test_clean(monkeypatch):
    monkeypatch.setenv("SET", "and restored")
    monkeypatch.delenv("HOME")
    subprocess.run(["true"], check=True)
    subprocess.run(["sh", "-c", "setsid sleep 0.2 >/dev/null 2>&1 & exit 0"], check=True)
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    threading.Thread(target=threading.Event().wait, name="of a library", daemon=True).start()
    socket.create_server(("127.0.0.1", 0)).close()
    file = Path(f"/dev/shm/unisono-police-{os.getpid()}")
    file.write_bytes(b"1")
    file.unlink()
"""


def test_each_leak_is_caught(pytester: pytest.Pytester) -> None:
    """One session for all kinds: each test must fail alone, so the next one starts clean."""
    # A short grace keeps the tests of real leaks short; how leaks are found is the same.
    pytester.makeconftest(CONFTEST.read_text().replace("GRACE_S = 5.0", "GRACE_S = 0.3"))
    for position, (_, code) in enumerate(LEAKS.values()):
        (pytester.path / f"test_{position}.py").write_text(KEEP + "\n".join(line[8:] for line in code.splitlines()))
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=len(LEAKS), errors=len(LEAKS))
    result.stdout.fnmatch_lines_random([f"*{shown}*" for shown, _ in LEAKS.values()])
    assert result.outlines.count("the test left behind:") == len(LEAKS)


def test_what_is_given_back_is_no_leak(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makepyfile(CLEAN)
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
