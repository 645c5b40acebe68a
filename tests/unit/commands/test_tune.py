"""`unisono tune`: every option is read, and what makes no sense is refused in one line."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unisono.cli import main
from unisono.commands import tune
from unisono.errors import UsageError
from unisono.tuning import tune_job as jobs
from unisono.tuning.study.study_file import make_study
from unisono.tuning.study.study_options import TuneConfig

KNOWN: Mapping[str, Any] = {
    "task": "digits",
    "order": {"kind": "task", "file": "digits.py", "changes": {"epochs": 2}, "space_file": None, "folding": {"folds": 3}},
    "objectives": [{"metric": "val_accuracy", "higher_is_better": True}, {"metric": "time_s", "higher_is_better": False}],
    "space": {"dimensions": [], "fixed": {}},
    "search": "gp",
    "prune": "none",
    "trials": 40,
    "folds": 3,
    "repeats": 2,
    "workers": 2,
    "parallel_folds": 3,
    "seed": 9,
    "storage": None,
}


def parsed(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    tune.add_arguments(parser)
    return parser.parse_args(argv)


def configured(*argv: str) -> TuneConfig:
    found = tune.configuration(parsed(*argv), ("tune", *argv))
    assert isinstance(found, TuneConfig)
    return found


def test_options_become_a_job() -> None:
    argv = (
        *("my/digits.py", "--trials", "7", "--seed", "3", "--space", "s.toml", "--search", "gp", "--metric", "val_loss"),
        *("--metric", "time_s:min", "--prune", "asha", "--set", "model.width=64", "--set", "data.fast=true", "--epochs", "5"),
        *("--lr", "0.5", "--algorithm", "local_sgd", "--folds", "4", "--fold-by", "group", "--repeats", "2", "--workers", "3"),
        *("--parallel-folds", "2", "--threads", "2", "--device", "cpu", "--time-limit", "1h", "--trial-limit", "90s"),
        *("--attempts", "2", "--quiet", "--accept-changes"),
    )
    found = configured(*argv)
    assert (found.out, found.trials, found.seed, found.search, found.prune) == ("studies/digits", 7, 3, "gp", "asha")
    assert (found.folds, found.repeats, found.workers, found.parallel_folds) == (4, 2, 3, 2)
    assert found.metrics == ("val_loss", "time_s:min") and found.command == ("unisono", "tune", *argv)
    assert (found.time_limit_s, found.trial_limit_s, found.attempts, found.threads, found.quiet) == (3600.0, 90.0, 2, 2, True)
    assert found.options == {"device": "cpu"} and not found.joins and found.accept_changes
    assert found.work_spec == {
        "kind": "task",
        "file": str(Path("my/digits.py").absolute()),
        "typed": "my/digits.py",
        "changes": {"model.width": 64, "data.fast": True, "epochs": 5, "lr": 0.5, "algorithm": "local_sgd"},
        "space_file": str(Path("s.toml").absolute()),
        "folding": {"folds": 4, "by": "group", "seed": 3, "block_size": None},
    }


def test_without_options_it_is_plain() -> None:
    found = configured("digits.py")
    assert (found.trials, found.search, found.prune, found.folds, found.workers) == (None, "auto", "none", 1, 1)
    assert found.metrics == () and found.options == {} and found.time_limit_s is None and found.trial_limit_s is None
    assert found.work_spec["changes"] == {}


WRONG: Mapping[str, tuple[Sequence[str], str]] = {
    "no task": ((), "the task file is missing; give TASK.py, or --join DIR"),
    "a change without a value": (("x.py", "--set", "lr"), "--set needs NAME=VALUE"),
    "a change twice": (("x.py", "--set", "lr=1", "--set", "lr=2"), "--set lr is given twice; give it once"),
    "a change and its option": (("x.py", "--set", "lr=1", "--lr", "2"), "--lr and --set lr are the same setting"),
    "an algorithm twice": (("x.py", "--set", "algorithm=local_sgd", "--algorithm", "allreduce"), "--algorithm"),
    "trials": (("x.py", "--trials", "0"), "--trials must be a whole number of at least 1; received 0"),
    "folds": (("x.py", "--folds", "0"), "--folds must be a whole number of at least 1; received 0"),
    "repeats": (("x.py", "--repeats", "-1"), "--repeats must be a whole number of at least 1; received -1"),
    "attempts": (("x.py", "--attempts", "0"), "--attempts must be a whole number of at least 1; received 0"),
    "parallel folds": (("x.py", "--parallel-folds", "2"), "--parallel-folds 2 is more than the 1 trainings of a trial"),
    "a time": (("x.py", "--time-limit", "soon"), "--time-limit must be above 0 and written like .*; received 'soon'"),
    "no time": (("x.py", "--trial-limit", "0"), "--trial-limit must be above 0 and written like .*; received '0'"),
    "seed": (("x.py", "--seed", "-4"), r"--seed must be a whole number from 0 to 4294967295; received -4"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_is_refused(what: str) -> None:
    argv, message = WRONG[what]
    with pytest.raises(UsageError, match=message):
        configured(*argv)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["tune"], "the task file is missing"),
        (["tune", "missing.py"], "missing.py"),
        (["tune", "x.py", "--trails", "3"], "unisono tune does not know '--trails'"),
        (["tune", "x.py", "--folds", "many"], "--folds"),
        (["tune", "--join", "nowhere"], r"nowhere holds no study (study.json is missing); check the path"),
        (["tune", "--report", "nowhere"], "nowhere holds no study"),
        (["tune", "--export", "nowhere", "sqlite:///x.db"], "nowhere holds no study"),
    ],
)
def test_a_mistake_is_one_line(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and message in shown.err
    assert shown.err.startswith("unisono: error: ") and shown.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [], "nothing was begun"


# ---- helping with a study ------------------------------------------------------------------------------------------------


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[TuneConfig, int | None]]:
    """The jobs that would have begun."""
    found: list[tuple[TuneConfig, int | None]] = []

    def note(config: TuneConfig, num_ranks: int | None, columns: int | None) -> int:
        found.append((config, num_ranks))
        return 0

    monkeypatch.setattr(jobs, "run_tune_job", note)
    monkeypatch.setattr(tune, "check_file", lambda _: None)
    return found


def test_a_joining_job_takes_its_settings_from_the_study(tmp_path: Path, started: list[tuple[TuneConfig, int | None]]) -> None:
    make_study(tmp_path, KNOWN)
    assert main(["tune", "--join", str(tmp_path), "-n", "6", "--attempts", "3", "--time-limit", "2h"]) == 0
    ((config, num_ranks),) = started
    assert num_ranks == 6 and config.joins and config.out == str(tmp_path)
    assert (config.search, config.prune, config.trials, config.seed) == ("gp", "none", None, 9), "the trials are those of the study"
    assert (config.folds, config.repeats, config.workers, config.parallel_folds) == (3, 2, 2, 3)
    assert config.metrics == ("val_accuracy:max", "time_s:min") and config.work_spec == KNOWN["order"]
    assert (config.attempts, config.time_limit_s) == (3, 7200.0)
    assert main(["tune", "--join", str(tmp_path), "--trials", "99"]) == 0
    assert started[-1][0].trials == 99 and not started[-1][0].accept_changes
    assert main(["tune", "--join", str(tmp_path), "--accept-changes"]) == 0
    assert started[-1][0].accept_changes


@pytest.mark.parametrize("argv", [["x.py"], ["--out", "y"]])
def test_a_joining_job_cannot_give_another_task(
    tmp_path: Path, started: list[tuple[TuneConfig, int | None]], argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    make_study(tmp_path, KNOWN)
    assert main(["tune", *argv, "--join", str(tmp_path)]) == 2 and not started
    assert "--join takes the task and its settings from the study; leave out TASK.py and --out" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        *(["--search", "random"], ["--folds", "5"], ["--set", "lr=1"], ["--metric", "val_loss"], ["--workers", "4"]),
        *(["--space", "s.toml"], ["--prune", "asha"], ["--repeats", "5"], ["--epochs", "9"], ["--seed", "5"]),
        *(["--storage", "sqlite:///x.db"], ["--parallel-folds", "2"], ["--algorithm", "local_sgd"], ["--fold-by", "group"]),
    ],
    ids=lambda argv: argv[0],
)
def test_a_joining_job_learns_which_options_have_no_effect(
    tmp_path: Path, started: list[tuple[TuneConfig, int | None]], argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    make_study(tmp_path, KNOWN)
    assert main(["tune", "--join", str(tmp_path), *argv]) == 2, f"{argv[0]} is given, and nothing reads it"
    assert not started and argv[0] in capsys.readouterr().err


SAMPLES: Mapping[str, tuple[str, ...]] = {
    "n": ("3",),
    **dict.fromkeys(("report", "join"), ("nowhere",)),
    "export": ("nowhere", "sqlite:///x.db"),
    **dict.fromkeys(("trial_limit", "time_limit"), ("2h",)),
    "set": ("model.width=3",),
}
"""What some options are given; others take a number or a text."""


def test_every_option_changes_what_is_done(started: list[tuple[TuneConfig, int | None]]) -> None:
    parser = argparse.ArgumentParser()
    tune.add_arguments(parser)
    assert main(["tune", "digits.py"]) == 0
    plain = started[0][0], started[0][1]
    for action in parser._actions:
        if action.dest in ("help", "task"):
            continue
        flag, words = action.option_strings[0], () if action.nargs == 0 else SAMPLES.get(action.dest, ("3",))
        more = ("--folds", "4") if action.dest == "parallel_folds" else ()  # which it needs
        code = main(["tune", "digits.py", flag, *words, *more])
        if action.dest in ("report", "export", "join"):
            assert code == 2, "there is no study nowhere"
            continue
        assert code == 0, flag
        config, num_ranks = started[-1]
        assert (replace(config, command=plain[0].command), num_ranks) != plain, f"{flag} is given, and nothing reads it"
