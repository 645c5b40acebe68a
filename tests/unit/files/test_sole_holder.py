"""One process at a time holds a file, also where the file system knows no locks."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import pytest

from unisono.comm.exchange.zmq_keys import ServerKeyFile
from unisono.errors import InUse, UsageError
from unisono.files import sole_holder
from unisono.files.sole_holder import HeldElsewhere, SoleHolder
from unisono.training.run_folder.run_directory import RunDirectory

CONFIG = {"lr": 0.1}
HOLD = """
import errno, fcntl, os, sys
from pathlib import Path
def flock(*_): raise OSError(errno.ENOSYS, "Function not implemented")
fcntl.flock = flock
from unisono.training.run_folder.run_directory import RunDirectory
run = RunDirectory.open(sys.argv[1], "x", {"lr": 0.1})
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def no_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(_handle: int, _operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    handle = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        yield handle
    finally:
        os.close(handle)


@pytest.mark.usefixtures("no_flock")
def test_a_second_job_in_one_directory_is_refused_without_flock(tmp_path: Path) -> None:
    """And once the first was killed, the directory is free at once."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(InUse, match=rf"is in use by another run \(process {other.pid} on "):
            RunDirectory.open(tmp_path, "x", CONFIG)
        other.kill()
        other.wait()
    with RunDirectory.open(tmp_path, "x", CONFIG):
        assert (tmp_path / ".lock.holder").exists()
    assert sorted(file.name for file in tmp_path.iterdir()) == [".lock", "config.json"]


@pytest.mark.usefixtures("no_flock")
def test_the_server_of_an_elastic_run_ends_without_flock(tmp_path: Path) -> None:
    path = tmp_path / "exchange.json"
    held = ServerKeyFile(path, lambda: ("p" * 40, "s" * 40))
    with pytest.raises(UsageError, match="another server is using the keys"):
        ServerKeyFile(path, lambda: ("p" * 40, "s" * 40))
    held.close()
    held.close()
    ServerKeyFile(path, lambda: ("p" * 40, "s" * 40)).close()


@pytest.mark.usefixtures("no_flock")
def test_a_holder_on_another_machine_counts_until_it_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, mark = tmp_path / "file", tmp_path / "file.holder"
    mark.write_text(json.dumps({"pid": 1, "host": "n7", "process": "another boot 1 1", "id": "x"}))
    over = threading.Event()

    def touch() -> None:
        while not over.wait(0.02):
            os.utime(mark)

    thread = threading.Thread(target=touch)
    thread.start()
    with opened(path) as handle:
        try:
            with pytest.raises(HeldElsewhere, match="process 1 on n7"):
                SoleHolder(handle, path)
        finally:
            over.set()
            thread.join()
        monkeypatch.setattr(sole_holder, "SILENCE_S", 0.5)
        began = monotonic()
        SoleHolder(handle, path).release()
        assert monotonic() - began >= 0.5
    assert not mark.exists()


@pytest.mark.usefixtures("no_flock")
def test_of_many_that_find_a_dead_holder_one_takes_its_place(tmp_path: Path) -> None:
    path = tmp_path / "file"
    gone = f"{sole_holder._process(os.getpid()).rpartition(' ')[0]} 1"  # this number, but another process had it
    (tmp_path / "file.holder").write_text(json.dumps({"pid": os.getpid(), "host": "here", "process": gone, "id": "x"}))
    found: list[SoleHolder | None] = []

    def take() -> None:
        with opened(path) as handle:
            try:
                found.append(SoleHolder(handle, path))
            except HeldElsewhere:
                found.append(None)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    holders = [one for one in found if one is not None]
    assert (len(found), len(holders)) == (8, 1)
    holders[0].release()
    assert [file.name for file in tmp_path.iterdir()] == ["file"], "no ticket is left"
