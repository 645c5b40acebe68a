"""Workers that come, go and die: whatever happens to them or to their server, the run ends and every sample counts once."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psutil
import pytest

pytest.importorskip("zmq", reason="workers that come and go talk through ZeroMQ; pip install 'unisono[zmq]'")

DIGITS = Path(__file__).parents[2] / "examples" / "digits.py"
NUM_SAMPLES = 1258
LIMIT_S = 90.0
NUM_EPOCHS = 150
"""More than twice as many as pass until all that is to happen has happened."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(DIGITS, "task.py")


class Elastic:
    """A server and its workers, started by one command."""

    def __init__(self, num_epochs: int, *options: str) -> None:
        self.num_epochs = num_epochs
        self.log = Path("log.txt").open("wb")  # noqa: SIM115 - closed in `close`
        self.process = self._start(
            "train", "task.py", "--elastic", "4", "--out", "run", "--epochs", str(num_epochs), "--log-every", "1", "--silence", "1",
            "--lr", "0.05", *options,
        )  # fmt: skip
        self.joined: list[subprocess.Popen[bytes]] = []

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", "unisono.cli", *arguments], stdout=self.log, stderr=self.log)

    def join(self) -> None:
        self.joined.append(self._start("join", "run", "--threads", "1"))

    def member(self, rank: int) -> psutil.Process:
        """The process of a rank; 0 is the server."""
        for child in psutil.Process(self.process.pid).children():
            if child.status() != psutil.STATUS_ZOMBIE and child.environ().get("UNISONO_RANK") == str(rank):
                return child
        raise LookupError(f"rank {rank} is not there: {self.said()}")

    def said(self) -> str:
        return Path("log.txt").read_text()

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = monotonic() + LIMIT_S
        while not condition():
            assert monotonic() < deadline, self.said()
            assert self.process.poll() is None or condition(), self.said()
            sleep(0.02)

    def until_epoch(self, epoch: int) -> None:
        self.until(lambda: self.num_ended() >= epoch)

    def until_at_work(self, *ranks: int) -> None:
        """Until these have met the server and had the time to say so: a worker that is killed before is nobody's loss."""

        def is_connected(rank: int) -> bool:
            door = re.search(r"waiting for workers at \S+:(\d+)", self.said())
            links = self.member(rank).net_connections("tcp")
            return door is not None and any(one.raddr and one.raddr.port == int(door[1]) for one in links)

        self.until_epoch(1)
        self.until(lambda: all(map(is_connected, ranks)))
        self.until_epoch(self.num_ended() + 2)

    def num_ended(self) -> int:
        return max(map(int, re.findall(r"^epoch +(\d+)/", self.said(), re.MULTILINE)), default=0)

    def end(self) -> dict[str, Any]:
        assert self.process.wait(LIMIT_S) == 0, self.said()
        for one in self.joined:
            assert one.wait(LIMIT_S) == 0, self.said()
        found: dict[str, Any] = json.loads(Path("run/summary.json").read_text())
        return found

    def close(self) -> None:
        for one in (self.process, *self.joined):
            if one.poll() is None:
                one.send_signal(signal.SIGKILL)
            one.wait()
        self.log.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Elastic]]:
    started: list[Elastic] = []

    def begin(num_epochs: int, *options: str) -> Elastic:
        started.append(Elastic(num_epochs, *options))
        return started[-1]

    yield begin
    for one in started:
        one.close()


def check(summary: dict[str, Any], num_epochs: int) -> None:
    assert summary["reason"] == "finished"
    assert summary["num_samples"] == num_epochs * NUM_SAMPLES, "every sample of every epoch was used exactly once"
    assert summary["metrics"]["val_accuracy"] > 0.9


@pytest.mark.timeout(200)
def test_workers_are_killed_or_stand_still_and_others_join(start: Callable[..., Elastic]) -> None:
    run = start(NUM_EPOCHS, "--algorithm", "gem")
    run.until_at_work(1, 2, 3, 4)
    run.member(1).kill()
    run.until(lambda: run.said().count("is gone") >= 1)
    still = run.member(2)
    still.send_signal(signal.SIGSTOP)
    run.until(lambda: run.said().count("is gone") >= 2)
    still.send_signal(signal.SIGCONT)
    run.until(lambda: "joins again" in run.said())
    first, second = run.member(3), run.member(4)
    first.kill()
    second.kill()
    run.join()
    run.join()
    run.until(lambda: run.said().count("is gone") >= 4)
    run.until(lambda: run.said().count("joined as worker") >= 2)
    summary = run.end()
    check(summary, NUM_EPOCHS)
    assert summary["weights_sha256"] == repeated(NUM_EPOCHS, "--algorithm", "gem")["weights_sha256"]


def repeated(num_epochs: int, *options: str) -> dict[str, Any]:
    """The same run from its record, by virtual workers that come and go as the real ones did."""
    changed = ("--epochs", str(num_epochs), "--lr", "0.05", "--threads", "1", *options)
    command = [
        sys.executable,
        "-m",
        "unisono.cli",
        "train",
        "task.py",
        "--elastic",
        "4",
        "--replay",
        "run",
        "--out",
        "again",
        *changed,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    found: dict[str, Any] = json.loads(Path("again/summary.json").read_text())
    return found


@pytest.mark.timeout(200)
def test_a_killed_server_restarts_and_a_stopped_run_resumes(start: Callable[..., Elastic]) -> None:
    options = ("--algorithm", "easgd", "--set", "algorithm.period=4", "--checkpoint-every", "1epochs")
    run = start(24, *options)
    run.until_epoch(3)
    run.until(lambda: any(Path("run/checkpoints").glob("step-*")))
    run.member(0).kill()
    run.until(lambda: "restarting it" in run.said() and "resumed from step" in run.said())
    run.until_epoch(8)
    os.kill(run.process.pid, signal.SIGTERM)
    assert run.process.wait(LIMIT_S) == 75, run.said()
    again = start(24, *options)
    check(again.end(), 24)
    assert "resumed from step" in again.said()


def test_there_is_nothing_to_join(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-m", "unisono.cli", "join", "nowhere"], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("unisono: error: there is no nowhere/join.json"), ended.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "task.py"]
