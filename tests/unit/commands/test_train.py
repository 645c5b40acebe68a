"""`unisono train`: what its options say, and what is told before anything starts."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from unisono.cli import main
from unisono.commands import train
from unisono.errors import UsageError
from unisono.start_training import TRAIN_OPTIONS
from unisono.task.options import options_of
from unisono.task.train_config import TrainConfig

Capture = pytest.CaptureFixture[str]
TASK = "import unisono as un\ntask = un.Task(model=lambda: None, data=lambda: None)\n"


def configured(*words: str) -> TrainConfig:
    parser = argparse.ArgumentParser()
    train.add_arguments(parser)
    return train.configuration(parser.parse_args(["task.py", *words]), ("train", "task.py", *words))


def test_options_become_a_configuration() -> None:
    words = (
        *("--epochs", "3", "--lr", "1", "--best", "val_f1", "--set", "model.width=4", "--algorithm", "gem", "--servers", "2"),
        *("--out", "run", "--time-limit", "30", "--checkpoint-every", "500", "--keep", "1", "--silence", "5", "--monitor"),
        *("--threads", "2", "--init-from", "w.pt", "--max-steps", "7", "--hash-every", "2", "--quiet"),
    )
    found = configured(*words)
    assert found.changes == {"epochs": 3, "lr": 1, "monitor": "val_f1", "model.width": 4}
    assert (found.algorithm, found.servers, found.out, found.time_limit_s, found.checkpoint_every) == (
        "gem",
        2,
        "run",
        1800.0,
        "500",
    )
    assert (found.keep, found.silence_s, found.monitor, found.threads, found.init_from) == (1, 5.0, True, 2, "w.pt")
    assert (found.max_steps, found.hash_every, found.quiet, found.division) == (7, 2, True, None)
    assert configured("--all-data").division == {"fold": None}
    assert found.command == ("unisono", "train", "task.py", *words)


def test_without_options_all_is_as_the_task_says() -> None:
    assert configured() == TrainConfig("task.py", command=("unisono", "train", "task.py"))


SAMPLES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("time_limit",), ("2h",)),
    "set": ("model.width=3",),
    "on_nan": ("skip",),
    **dict.fromkeys(("capture", "resident"), ("off",)),
    "keep": ("7",),
}
"""What some options are given; others take a number or a text."""
ELSEWHERE = ("workers", "engine", "allreduce", "portable", "restarts")
"""Of the workers, which are started from them: see test_worker_options.py."""


def test_every_option_changes_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unisono.start_training._own_address", lambda: None)
    parser = argparse.ArgumentParser()
    train.add_arguments(parser)
    for action in parser._actions:
        if action.dest in ("help", "task", "from_study", *ELSEWHERE):
            continue
        flag, words = action.option_strings[0], () if action.nargs == 0 else SAMPLES.get(action.dest, ("3",))
        more = ("--out", "run") if action.dest == "elastic" else ()
        assert vars(configured(flag, *words, *more)) | {"command": ()} != vars(configured(*more)) | {"command": ()}, flag


def test_no_name_means_two_things() -> None:
    names = [one.name for owner in TRAIN_OPTIONS for one in options_of(owner)]
    assert {name for name in names if names.count(name) > 1} == {"threads"}, "which the run and its workers share"


def test_an_unknown_search_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no study"):
        configured("--from-study", str(tmp_path))


# ---- the metric that decides -------------------------------------------------------------------------------------------------

RECORDS = "--monitor records CPU, GPU and memory; to choose the metric that decides which epoch is best, use --best val_f1"


@pytest.mark.parametrize(
    "words",
    [["task.py", "--monitor", "val_f1"], ["--monitor", "val_f1", "task.py"], ["task.py", "--monitor=val_f1", "--epochs", "1"]],
)
@pytest.mark.parametrize("verb", ["train", "submit"])
def test_a_metric_after_monitor_is_answered_with_the_option_for_it(verb: str, words: list[str], capsys: Capture) -> None:
    assert main([verb, *words]) == 2
    assert capsys.readouterr().err == f"unisono: error: {RECORDS}\n"


def test_monitor_takes_no_task_file_for_a_metric(capsys: Capture) -> None:
    assert main(["train", "--monitor", "nowhere.py"]) == 2
    assert "the task file nowhere.py does not exist" in capsys.readouterr().err


def test_the_metric_is_given_once() -> None:
    with pytest.raises(UsageError, match="--best and --set monitor are the same setting"):
        configured("--best", "val_f1", "--set", "monitor=val_loss")
    assert configured("--best", "none").changes == {"monitor": None}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-n", "0"], "-n (workers) must be a whole number of at least 1; received 0"),
        (["--restarts", "3"], "--restarts needs several workers"),
        (["-n", "2", "--restarts", "3"], "--restarts needs --out, so that the next attempt finds the checkpoint"),
        (["--keep", "x"], "--keep must be a whole number of at least 1; received 'x'"),
        (["--elastic", "2", "--algorithm", "gem"], "--elastic needs --out and a task file"),
        (["--portable", "old"], "unknown level 'old' of --portable"),
        (["--engine", "magic", "-n", "2"], "--engine must be one of auto, single, shm, mpi, gloo, nccl; received 'magic'"),
    ],
)
def test_mistakes_are_reported_before_anything_starts(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("task.py").write_text(TASK)
    assert main(["train", "task.py", *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and message in shown.err and shown.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["task.py"]


def test_a_value_of_every_kind_is_plain(tmp_path: Path) -> None:
    found: dict[str, Any] = vars(TrainConfig("task.py", out=tmp_path))  # type: ignore[arg-type]
    assert found["out"] == str(tmp_path)
