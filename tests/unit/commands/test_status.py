"""`unisono status`: what it makes of what lies in run directories, with and without a SLURM to ask."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from unisono.cli import main
from unisono.slurm_jobs import job_log
from unisono.training.run_folder.run_status import Status

Capture = pytest.CaptureFixture[str]

SQUEUE = """#!/bin/sh
[ ! -e "$(dirname "$0")/../broken" ] || exit 1
[ -s "$(dirname "$0")/../queue" ] || { echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; }
cat "$(dirname "$0")/../queue"
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for runs, and a squeue that says what stands in the file `queue`."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "squeue").write_text(SQUEUE)
    (tmp_path / "bin" / "squeue").chmod(0o755)
    (tmp_path / "queue").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return tmp_path


@pytest.fixture
def without_slurm(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")


def begun(place: Path, name: str = "a", job: str | None = None) -> Status:
    folder = place / "runs" / name
    folder.mkdir(parents=True, exist_ok=True)
    status = Status(folder / "status.json", print)
    status.begin(10, 1, 100, 2, job)
    return status


def logged(place: Path, *lines: tuple[str, str], name: str = "a") -> None:
    folder = place / "runs" / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "jobs.log").open("a") as log:
        log.writelines(job_log.event_line(1000.0 + at, job, words) for at, (job, words) in enumerate(lines))


def change(place: Path, **values: Any) -> None:
    path = place / "runs" / "a" / "status.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def seen(capsys: Capture) -> tuple[str, str]:
    """State and note of the only run."""
    assert main(["status", "runs/a", "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)
    return run["state"], run["note"]


@pytest.fixture
def gone() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen(["/bin/true"])
    process.wait()
    return process.pid


@pytest.mark.usefixtures("without_slurm")
def test_running_and_died_without_slurm(place: Path, capsys: Capture, gone: int) -> None:
    begun(place)
    assert seen(capsys) == ("running", "")
    change(place, pid=gone, step=42)
    assert seen(capsys) == ("died", "died at step 42 without an error message; the same command resumes from the last checkpoint")
    change(place, host="elsewhere")
    assert seen(capsys) == ("running", "it runs on elsewhere; from here one cannot see whether it is still alive")


def test_running_and_died_with_slurm(place: Path, capsys: Capture) -> None:
    begun(place, job="7")
    change(place, host="elsewhere")
    (place / "queue").write_text("7 RUNNING\n")
    assert seen(capsys) == ("running", "")
    (place / "queue").write_text("")
    assert seen(capsys)[0] == "died"
    (place / "broken").touch()
    assert seen(capsys)[0] == "running", "a squeue that does not answer says nothing about a job"


def test_a_successor_waits_and_starts(place: Path, capsys: Capture) -> None:
    begun(place, job="7").end("stopped", 75, "time limit")
    logged(place, ("7", "began as number 1 on n1"), ("7", "ended with exit code 75 at step 10"), ("8", "submitted as number 2"))
    (place / "queue").write_text("8 PENDING\n")
    assert seen(capsys) == ("waiting", "job 8 is PENDING")
    (place / "queue").write_text("8 RUNNING\n")
    assert seen(capsys) == ("starting", "job 8 has started, but its training has not")
    (place / "broken").touch()
    assert seen(capsys) == ("waiting", "job 8 submitted as number 2; its state can only be seen where squeue is installed")


def test_a_run_that_is_over(place: Path, capsys: Capture) -> None:
    status = begun(place, job="7")
    status.end("stopped", 75, "stop requested by SIGTERM")
    assert seen(capsys) == ("stopped", "stop requested by SIGTERM")
    logged(place, ("7", "began as number 3 on n1"), ("7", "stopped: no progress"))
    assert seen(capsys) == ("stopped", "stopped: no progress")
    status.end("failed", 1, "the loss is not finite")
    assert seen(capsys)[0] == "failed"
    status.end("finished", 0, "all epochs")
    (place / "queue").write_text("7 RUNNING\n")
    assert seen(capsys)[0] == "finished", "its batch file has some words to say still"


def test_jobs_whose_training_never_began(place: Path, capsys: Capture) -> None:
    logged(place, ("7", "submitted as number 1"))
    assert seen(capsys) == ("died", "job 7 left the queue before it began")
    logged(place, ("7", "began as number 1 on n1"))
    assert seen(capsys) == ("died", "job 7 ended before its training began")
    (place / "broken").touch()
    assert seen(capsys) == ("unknown", "job 7 began as number 1 on n1; its state can only be seen where squeue is installed")
    logged(place, ("7", "ended with exit code 2 at step 0"), ("7", "stopped: the training failed with exit code 2"))
    assert seen(capsys) == ("failed", "stopped: the training failed with exit code 2")


def test_runs_of_versions_without_a_status(place: Path, capsys: Capture) -> None:
    (place / "runs" / "a").mkdir(parents=True)
    (place / "runs" / "a" / "config.json").write_text("{}")
    assert seen(capsys)[0] == "unknown"
    (place / "runs" / "a" / "summary.json").write_text("{}")
    assert seen(capsys)[0] == "finished"


def test_the_table_of_a_folder_and_the_chain_of_a_run(place: Path, capsys: Capture) -> None:
    begun(place, "b").end("finished", 0, "all epochs", 100, 9)
    first = begun(place, job="7")
    first.end("stopped", 75, "time limit", 60, 5)
    begun(place, job="8").end("finished", 0, "all epochs", 100, 9)
    logged(place, ("7", "began as number 1 on n1"), ("8", "began as number 2 on n1"), ("9", "began as number 3 on n1"))
    (place / "runs" / "empty").mkdir()
    assert main(["status"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["run", "state", "step", "epoch", "SLURM", "jobs", "last", "update"]
    assert sorted(row.split()[:4] for row in rows) == [
        ["runs/a", "finished", "100/100", "9"],
        ["runs/b", "finished", "100/100", "9"],
    ]
    assert main(["status", "runs/a"]) == 0
    shown = capsys.readouterr().out.splitlines()
    chain = [row.split() for row in shown[shown.index("runs/a") + 2 :]]
    assert [row[0] for row in chain] == ["9", "7", "8"], "in the order of time"
    assert [" ".join(row[-6:]) for row in chain[1:]] == ["2 10 to 60 time limit", "2 10 to 100 all epochs"]


def test_nothing_there(place: Path, capsys: Capture) -> None:
    assert main(["status"]) == 0
    assert capsys.readouterr().out == "no run in runs\n"
    (place / "runs").mkdir()
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    (place / "runs" / "digits").mkdir()
    assert main(["status", "runs/digit"]) == 2
    assert "there is no run runs/digit; did you mean runs/digits?" in capsys.readouterr().err
