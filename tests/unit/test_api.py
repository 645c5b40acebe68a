"""`un.train` and `un.tune`: what they take, refuse and hand on. (What they do is in tests/ranks.)"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import unisono as un
from unisono import api
from unisono.errors import UsageError
from unisono.launch import launch as launching
from unisono.launch.launch import LaunchConfig
from unisono.launch.worker_options import WorkerOptions
from unisono.run import RunResult
from unisono.start_training import TRAIN_OPTIONS
from unisono.task.options import keywords_of
from unisono.task.task_file import read_pickled
from unisono.task.train_config import TrainConfig
from unisono.tuning import tune_job
from unisono.tuning.study.study_file import ABOUT
from unisono.tuning.study.study_options import TuneConfig
from unisono.tuning.workers import objective as objectives

TASK = un.Task(model=lambda: None, data=lambda: None, name="nothing")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[TrainConfig, WorkerOptions]]:
    """What trainings would have begun."""
    found: list[tuple[TrainConfig, WorkerOptions]] = []

    def note(config: TrainConfig, start: WorkerOptions) -> RunResult:
        found.append((config, start))
        return RunResult(Path("run"), {})

    monkeypatch.setattr(api, "work", lambda configure, start, _: note(configure(), start))
    monkeypatch.setattr(api, "_launch_call", lambda _, config, start: note(config, start))
    monkeypatch.setattr("sys.excepthook", lambda *_: None)
    return found


def test_options_are_keywords(asked: list[tuple[TrainConfig, WorkerOptions]]) -> None:
    un.train(TASK, out="run", epochs=2, best="val_f1", metrics=("f1",), time_limit="2h", monitor=True, set={"model.width": 3})
    un.train("task.py", 2, "run", engine="shm", restarts=3, silence=4, show=False)
    (first, alone), (second, two) = asked
    assert first.changes == {"model.width": 3, "epochs": 2, "monitor": "val_f1", "metrics": ("f1",)}
    assert (first.task_file, first.out, first.time_limit_s, first.monitor, first.quiet) == ("", "run", 7200.0, True, False)
    assert alone == WorkerOptions()
    assert (second.task_file, second.silence_s, second.quiet) == ("task.py", 4.0, True)
    assert two == WorkerOptions(workers=2, engine="shm", restarts=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"monitor": "val_f1"}, "--monitor records CPU, GPU and memory; .* use --best val_f1"),
        ({"epoch": 1}, "unknown argument 'epoch' of un.train; did you mean 'epochs'"),
        ({"quiet": True}, "unknown argument 'quiet' of un.train; known: "),
        ({"lr": 1, "set": {"lr": 2}}, "--lr and --set lr are the same setting"),
        ({"workers": 0}, r"-n \(workers\) must be a whole number of at least 1; received 0"),
        ({"log_every": "often"}, "--log-every must be a whole number of at least 1; received 'often'"),
        ({"time_limit": "soon"}, "--time-limit must be above 0"),
        ({"from_study": "studies/x"}, "--from-study compares the task file"),
        ({"restarts": 2}, "--restarts needs several workers"),
    ],
)
def test_mistakes(asked: list[tuple[TrainConfig, WorkerOptions]], options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        un.train(TASK, **options)
    assert not asked


STOPS: Mapping[str, type[BaseException] | None] = {"Ctrl-C": KeyboardInterrupt, "SIGTERM": SystemExit, "time limit": None}


@pytest.mark.parametrize("reason", STOPS)
def test_started_workers_tell_the_caller_that_they_were_stopped(
    reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have saved everything by then, and a loop over seeds must not go on."""
    (tmp_path / "summary.json").write_text(json.dumps({"reason": "interrupted"}))

    def launch(config: LaunchConfig) -> int:
        result_file = Path(read_pickled(Path(config.program[-1])).result_file)
        result_file.write_text(json.dumps({"out": str(tmp_path), "stop_reason": reason}))
        return 75

    monkeypatch.setattr(launching, "launch", launch)
    monkeypatch.setattr("sys.excepthook", lambda *_: None)
    raised = STOPS[reason]
    with nullcontext() if raised is None else pytest.raises(raised):
        assert un.train("task.py", 2, tmp_path).summary["reason"] == "interrupted"


def test_both_functions_list_their_options() -> None:
    for function, owners in ((un.train, TRAIN_OPTIONS), (un.tune, (TuneConfig,))):
        names = set(inspect.signature(function).parameters)
        assert set(keywords_of(*owners)) <= names and "options" not in names
        assert function.__doc__ is not None and all(f"        {name}: " in function.__doc__ or name in names for name in names)


def test_options_of_a_search_are_keywords(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[TuneConfig, int | None]] = []

    def note(config: TuneConfig, num_ranks: int | None, columns: int | None) -> int:
        found.append((config, num_ranks))
        return 75

    monkeypatch.setattr(tune_job, "run_tune_job", note)
    monkeypatch.setattr(objectives, "write_objective", lambda _, folder: folder / "objective.cloudpickle")
    monkeypatch.setattr("sys.excepthook", lambda *_: None)
    with pytest.raises(un.UnisonoError, match="make the same call again to resume"):
        un.tune(lambda _: 0.0, 7, 3, tmp_path, direction=("minimize", "maximize"), search="tpe", trial_limit="1m", show=False)
    ((config, blocks),) = found
    assert (config.trials, blocks, config.search, config.trial_limit_s, config.quiet) == (7, 3, "tpe", 60.0, True)
    assert config.metrics == ("value_0:min", "value_1:max") and config.prune == "none", "several values cannot be compared"
    for prune, expected in ((None, "median"), ("asha", "asha"), ("none", "none")):
        with pytest.raises(un.UnisonoError):
            un.tune(lambda _: 0.0, out=tmp_path, prune=prune, show=False)
        assert found[-1][0].prune == expected
    (tmp_path / ABOUT).write_text('{"prune": "none"}')
    with pytest.raises(un.UnisonoError):
        un.tune(lambda _: 0.0, out=tmp_path, show=False)
    assert found[-1][0].prune == "none", "an existing study continues as it was made"
    for options, message in (({"folds": 3}, "unknown argument 'folds' of un.tune"), ({"direction": "up"}, "direction must be")):
        with pytest.raises(UsageError, match=message):
            un.tune(lambda _: 0.0, **options)
