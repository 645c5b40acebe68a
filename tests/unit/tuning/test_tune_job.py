"""What a job of a study is asked for: by which numbers trials are compared, and options that make no sense together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.system.studies import written_task
from tests.unit.cluster import environments as envs
from unisono.cluster.resolve import resolve
from unisono.data.fold_data import Folding
from unisono.errors import UsageError
from unisono.task.task import Range
from unisono.tuning import tune_job as jobs
from unisono.tuning.search.space import Dimension, Space
from unisono.tuning.study.study_options import NUM_TRIALS, TuneConfig, choose_num_trials, choose_search
from unisono.tuning.study.trial_plan import Objective, Part, Plan, mean_of, objectives_of, spread_of, values_of
from unisono.tuning.tune_job import run_tune_job
from unisono.tuning.workers.trial_training import TaskTrialRunner

ABOUT: Mapping[str, Any] = {
    "metrics": {"val_accuracy": True, "val_loss": False, "loss": False},
    "monitor": "val_accuracy",
    "space": {"dimensions": [], "fixed": {}},
}
ORDER: Mapping[str, Any] = {"kind": "task", "file": "task.py", "changes": {}, "space_file": None, "folding": {}}


def test_a_search_of_processes_without_a_common_secret_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its messages name files that workers load, such as that of an algorithm, so none may come from another user."""
    public = resolve(envs.srun(1))
    for lacking in (
        replace(public, no_secret="there is no home directory /home/me"),
        replace(public, secret="f00", no_secret="/home/me is on a file system of this host alone (ext4)"),
    ):
        monkeypatch.setattr(jobs, "current_topology", lambda found=lacking: found)
        monkeypatch.setattr(jobs, "supervise", lambda *_: 0)
        with pytest.raises(
            UsageError, match=f"needs a secret that all of them share.*{re.escape(lacking.no_secret)}; export UNISONO"
        ):
            run_tune_job(TuneConfig("studies/x", ORDER, quiet=True), None, None)
    monkeypatch.setattr(jobs, "current_topology", lambda: replace(public, secret="f00"))
    assert run_tune_job(TuneConfig("studies/x", ORDER, quiet=True), None, None) == 0


# ---- objectives ----------------------------------------------------------------------------------------------------------

PROPOSED: Mapping[str, tuple[list[str], list[Objective]]] = {
    "nothing: what the task is judged by": ([], [Objective("val_accuracy", True)]),
    "by name": (["val_loss"], [Objective("val_loss", False)]),
    "without val_": (["accuracy"], [Objective("val_accuracy", True)]),
    "of training, where both are": (["loss"], [Objective("loss", False)]),
    "the best epoch": (["best_val_accuracy"], [Objective("best_val_accuracy", True)]),
    "the best epoch without val_": (["best_accuracy"], [Objective("best_val_accuracy", True)]),
    "the other way round": (["val_accuracy:min", "val_loss:max"], [Objective("val_accuracy", False), Objective("val_loss", True)]),
    "time": (["val_accuracy", "time_s"], [Objective("val_accuracy", True), Objective("time_s", False)]),
    "much time": (["time_s:max"], [Objective("time_s", True)]),
}


@pytest.mark.parametrize("what", PROPOSED)
def test_metrics_that_are_asked_for(what: str) -> None:
    asked, expected = PROPOSED[what]
    assert objectives_of(asked, ABOUT) == expected


def test_trials_are_ranked_by_the_weights_that_count() -> None:
    about = {**ABOUT, "weights": "best"}
    assert objectives_of([], about) == [Objective("best_val_accuracy", True)]
    assert objectives_of(["loss:max", "best_accuracy"], about) == [
        Objective("best_loss", True),
        Objective("best_val_accuracy", True),
    ]
    assert objectives_of([], {**ABOUT, "weights": "final"}) == [Objective("val_accuracy", True)]


REFUSED: Mapping[str, tuple[list[str], str]] = {
    "unknown": (
        ["val_f1"],
        r"the task does not report 'val_f1' \(--metric\); it reports val_accuracy, val_loss, loss, time_s, each also as best_",
    ),
    "unknown best": (["best_f1"], "the task does not report 'best_f1'"),
    "the best time": (["best_time_s"], "the task does not report 'best_time_s'"),
    "direction": (["val_loss:up"], "--metric val_loss:up must end in :max or :min; received 'up'"),
    "no direction": (["val_loss:"], "must end in :max or :min; received ''"),
    "direction of time": (["time_s:less"], "must end in :max or :min; received 'less'"),
    "twice": (["val_loss", "val_loss"], "--metric val_loss is given twice; give it once"),
    "twice under two names": (["val_accuracy", "accuracy:min"], "--metric val_accuracy is given twice"),
    "time twice": (["time_s", "val_loss", "time_s:max"], "--metric time_s is given twice"),
    "empty": ([""], "the task does not report ''"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_metrics_that_cannot_be(what: str) -> None:
    asked, message = REFUSED[what]
    with pytest.raises(UsageError, match=message):
        objectives_of(asked, ABOUT)


def test_a_metric_of_unknown_direction_is_no_objective_until_it_is_said() -> None:
    about = {**ABOUT, "metrics": {"val_brier": None, "val_loss": False}, "monitor": "val_loss"}
    assert objectives_of([], about) == [Objective("val_loss", False)]
    for asked in ("val_brier", "brier", "best_brier"):
        with pytest.raises(UsageError, match=f"whether a higher or a lower {asked} is better is not known.*--metric {asked}:min"):
            objectives_of([asked], about)
    assert objectives_of(["brier:min", "loss"], about) == [Objective("val_brier", False), Objective("val_loss", False)]


def test_a_task_that_reports_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="the task reports no metric that compares trials; name metrics of the task"):
        objectives_of([], {**ABOUT, "metrics": {}, "monitor": None})


def test_an_objective_gives_what_it_gives() -> None:
    found = objectives_of(["value_0:min", "value_1:max"], {"space": None, "metrics": {}, "monitor": None})
    assert found == [Objective("value_0", False), Objective("value_1", True)]


# ---- options -------------------------------------------------------------------------------------------------------------

OPTIONS: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "trials": ({"trials": 0}, "--trials must be a whole number of at least 1; received 0"),
    "repeats": ({"repeats": 0}, "--repeats must be a whole number of at least 1; received 0"),
    "attempts": ({"attempts": -1}, "--attempts must be a whole number of at least 1; received -1"),
    "folds": ({"folds": 0}, "--folds must be a whole number of at least 1; received 0"),
    "threads": ({"threads": 0}, "--threads must be a whole number of at least 1; received 0"),
    "too many at a time": (
        {"folds": 2, "repeats": 2, "parallel_folds": 5},
        r"--parallel-folds 5 is more than the 4 trainings of a trial \(folds times repeats\); use at most 4",
    ),
    "seed": ({"seed": -1}, "--seed must be a whole number from 0 to 4294967295; received -1"),
}


@pytest.mark.parametrize("what", OPTIONS)
def test_options_that_cannot_be(what: str) -> None:
    options, message = OPTIONS[what]
    with pytest.raises(UsageError, match=message):
        TuneConfig(**{"out": "studies/x", "work_spec": ORDER, **options})


def test_starts_may_be_at_the_same_time_too() -> None:
    assert TuneConfig("studies/x", ORDER, folds=2, repeats=3, parallel_folds=6).parallel_folds == 6


@pytest.mark.parametrize("num_ranks", [0, -1])
def test_a_job_without_ranks_is_refused(monkeypatch: pytest.MonkeyPatch, num_ranks: int) -> None:
    def started(*_: Any) -> None:
        raise AssertionError(f"-n {num_ranks} became something else")

    monkeypatch.setattr(jobs, "WorkerSlots", started)
    with pytest.raises(UsageError, match=f"-n must be at least 1; received {num_ranks}"):
        run_tune_job(TuneConfig("studies/x", ORDER, quiet=True), num_ranks, None)


# ---- how many trials -----------------------------------------------------------------------------------------------------

LINE = Space([Dimension("x", Range(-1.0, 1.0))])
FIVE = "the grid has 5 points"
TRIALS: Mapping[str, tuple[Mapping[str, Any], int | None, int, list[str]]] = {
    "a new study": ({}, None, NUM_TRIALS, []),
    "a new study of so many": ({"trials": 7}, None, 7, []),
    "as the study has": ({}, 30, 30, []),
    "the same again": ({"trials": 30}, 30, 30, []),
    "more": ({"trials": 40}, 30, 40, ["the study grows from 30 to 40 trials"]),
    "fewer": ({"trials": 10}, 30, 10, ["this job works on the first 10 of 30 trials"]),
    "a grid": ({"search": "grid"}, None, 5, [f"{FIVE}, fewer than --trials {NUM_TRIALS}; all are tried"]),
    "a part of a grid": ({"search": "grid", "trials": 2}, None, 2, [f"{FIVE}; the first 2 of them are tried (--trials)"]),
    "more of a grid": (
        {"search": "grid", "trials": 9},
        2,
        5,
        [f"{FIVE}, fewer than --trials 9; all are tried", "the study grows from 2 to 5 trials"],
    ),
    "a grid again": ({"search": "grid"}, 5, 5, [f"{FIVE}; all are tried"]),
}


@pytest.mark.parametrize("what", TRIALS)
def test_how_many_trials_there_are_for_a_job(what: str) -> None:
    options, there, expected, said = TRIALS[what]
    assert choose_num_trials(TuneConfig("studies/x", ORDER, **options), LINE, there) == (expected, said)


# ---- what trials consist of ----------------------------------------------------------------------------------------------


def test_parts_are_all_folds_from_every_start_in_waves() -> None:
    plan = Plan([Objective("a", True)], folds=3, repeats=2, parallel=4, epochs=5)
    assert plan.waves == [[Part(0, 0), Part(1, 0), Part(2, 0), Part(0, 1)], [Part(1, 1), Part(2, 1)]]
    assert (plan.num_parts, plan.num_steps) == (6, 10)
    assert Plan([Objective("a", True)], folds=3, repeats=2, parallel=4, epochs=5, prune="wilcoxon").num_steps == 6


def test_steps_are_numbered_by_the_most_epochs_that_a_trial_may_have(tmp_path: Path) -> None:
    """So that the last epochs of one wave and the first of the next never have one number, by which trials are compared."""
    (tmp_path / "space.toml").write_text("[epochs]\nlow = 1\nhigh = 9\n")
    work = TaskTrialRunner(written_task(tmp_path), {}, str(tmp_path / "space.toml"), Folding())
    assert work.describe()["epochs"] == 9, "the task itself has 2"


def test_numbers_of_a_training_and_of_a_trial() -> None:
    objectives = [Objective("a", True), Objective("time_s", False), Objective("missing", True)]
    values = values_of(objectives, {"a": 1, "b": 2.0, "missing": None}, 7.5)
    assert values[:2] == [1.0, 7.5] and values[2] != values[2]
    assert mean_of([[1.0, 4.0], [2.0, 6.0]]) == [1.5, 5.0]
    assert spread_of([[1.0, 9.0], [3.0, 9.0]]) == pytest.approx(2**0.5) and spread_of([[1.0, 9.0]]) == 0.0


PLAIN = Space([Dimension("x", Range(-1.0, 1.0))])
CONDITIONAL = Space([Dimension("x", Range(-1.0, 1.0)), Dimension("y", Range(0.0, 1.0), when={"x": [0.5]})])


@pytest.mark.parametrize(
    "given, space, num_trials, num_blocks, expected",
    [
        ({}, PLAIN, 60, 4, "gp"),
        ({"search": "tpe"}, PLAIN, 60, 4, "tpe"),
        ({"metrics": ("a",)}, PLAIN, 200, 32, "gp"),
        ({"metrics": ("a", "b")}, PLAIN, 60, 4, "tpe"),
        ({"prune": "asha"}, PLAIN, 60, 4, "tpe"),
        ({}, PLAIN, 201, 4, "tpe"),
        ({}, PLAIN, 60, 33, "tpe"),
        ({}, CONDITIONAL, 60, 4, "tpe"),
        ({}, None, 60, 4, "tpe"),
    ],
)
def test_the_search_that_is_meant(given: Any, space: Space | None, num_trials: int, num_blocks: int, expected: str) -> None:
    assert choose_search(TuneConfig("out", {}, **given), space, num_trials, num_blocks) == expected
