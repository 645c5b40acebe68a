"""What a study has found comes out as it went in: as a file, as a command, as models and as a study of Optuna's."""

from __future__ import annotations

import hashlib
import math
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import optuna
import pytest

import unisono as un
from unisono.errors import UsageError
from unisono.start_training import train_config
from unisono.task.name_value import parse
from unisono.tuning.search.space import defaults_of, space_from_dict, space_of
from unisono.tuning.study.export import to_optuna
from unisono.tuning.study.result import (
    BEST,
    best_of,
    best_settings,
    command_of,
    describe_best,
    fold_models,
    is_study,
    load_study,
    settings_of,
    write_best,
)
from unisono.tuning.study.store import Store
from unisono.tuning.study.study import COMPLETE, FAILED, PRUNED, begin_record, end_record, proposal_record, report_record
from unisono.tuning.study.study_file import make_study
from unisono.tuning.study.trial_plan import Objective

NEEDS_VALIDATION = "needs validation data, which --all-data and --from-study train on"
OBJECTIVES = [Objective("val_accuracy", True), Objective("time_s", False)]


def model(
    width: Annotated[int, un.Range(16, 256, log=True)] = 64,
    act: Annotated[str, un.Choice("relu", 'odd "text"\\', "ü🎉")] = "relu",
    bias: Annotated[bool, un.Choice(True, False)] = True,
    extra: Annotated[str | None, un.Choice("a", None)] = "a",
    rest: int = 3,
) -> Any:
    return width, act, bias, extra, rest


def data(size: int = 3, shares: Any = ()) -> Any:
    return size, shares


TASK = un.Task(
    model=model,
    data=data,
    space={
        "lr": un.Range(1e-6, 1.0, log=True),
        "optimizer": un.Choice("sgd", "adam"),
        "optimizer.momentum": un.Range(0.0, 0.99, when={"optimizer": "sgd"}),
        "algorithm": un.Choice("allreduce", "local_sgd"),
    },
)
POINT = {"model.width": 33, "model.act": "relu", "model.bias": False, "lr": 1.5e-05, "optimizer": "sgd", "optimizer.momentum": 0.9}
ODD = {**POINT, "model.act": 'odd "text"\\'}
FIXED = {"epochs": 3, "data.size": 7}


def about_of(task: un.Task = TASK, **words: Any) -> dict[str, Any]:
    return {
        "task": "digits",
        "task_file": "examples/my digits.py",
        "sources": {"digits.py": hashlib.sha256(b"task = 1\n").hexdigest()},
        "space": space_of(task).to_dict(),
        "fixed": FIXED,
        "objectives": [one._asdict() for one in OBJECTIVES],
        "folds": 2,
        "trials": 9,
        "workers": 1,
        **words,
    }


def study_in(folder: Path, *records: Mapping[str, Any], about: Mapping[str, Any] | None = None) -> Path:
    known = make_study(folder, about or about_of())
    store = Store(folder, known, 9, "job", clock=lambda: 1000.0)
    store.record_join({})
    for record in records:
        store.append(record)
    store.record_leave("done")
    return folder


def of_one(folder: Path, point: Mapping[str, Any], about: Mapping[str, Any] | None = None) -> Path:
    return study_in(folder, proposal_record(0, point), end_record(0, 0, COMPLETE, [0.5, 2.0], 1.0), about=about)


def best_file(folder: Path) -> Path:
    about, best = best_of(folder)
    write_best(folder, best, about, OBJECTIVES)
    return folder / BEST


# ---- the best ------------------------------------------------------------------------------------------------------------


def test_the_best_is_that_of_the_first_objective(tmp_path: Path) -> None:
    records = [proposal_record(number, {**POINT, "model.width": 20 + number}) for number in range(5)]
    records += [
        end_record(0, 0, COMPLETE, [0.5, 1.0], 1.0),
        end_record(1, 0, COMPLETE, [0.9, 9.0], 1.0),
        end_record(2, 0, PRUNED, [], 1.0),
    ]
    records += [end_record(3, 0, COMPLETE, [math.nan, 1.0], 1.0), end_record(4, 0, COMPLETE, [0.9, 1.0], 1.0)]
    about, best = best_of(study_in(tmp_path, *records))
    assert best.number == 1 and settings_of(about, best) == {**FIXED, **POINT, "model.width": 21}
    assert is_study(tmp_path) and not is_study(tmp_path / "journal")


def test_a_study_without_a_value_has_no_best(tmp_path: Path) -> None:
    study_in(tmp_path, proposal_record(0, POINT), end_record(0, 0, FAILED, [], 1.0), proposal_record(1, POINT))
    with pytest.raises(UsageError, match=r"no trial of .* has given a value yet; continue the study first"):
        best_of(tmp_path)


# ---- best.toml -----------------------------------------------------------------------------------------------------------

POINTS = {
    "plain": POINT,
    "without a condition": {key: value for key, value in {**POINT, "optimizer": "adam"}.items() if key != "optimizer.momentum"},
    "with an algorithm": {**POINT, "algorithm": "local_sgd"},
    "odd text": ODD,
    "letters of all kinds": {**POINT, "model.act": "ü🎉"},
    "ends of ranges": {**POINT, "model.width": 256, "lr": 1.0, "optimizer.momentum": 0.0},
}


@pytest.mark.parametrize("what", POINTS)
def test_the_file_of_the_best_says_its_settings(tmp_path: Path, what: str) -> None:
    file = best_file(of_one(tmp_path, POINTS[what]))
    found = dict(_leaves(tomllib.loads(file.read_text())))
    assert found == {**FIXED, **POINTS[what]}
    assert {name: type(value) for name, value in found.items()} == {
        name: type(value) for name, value in {**FIXED, **POINTS[what]}.items()
    }


def _leaves(table: Mapping[str, Any], above: str = "") -> list[tuple[str, Any]]:
    found = [(above.rstrip("."), table["fixed"])] if "fixed" in table else []
    for key, value in table.items():
        if key != "fixed":
            found += _leaves(value, f"{above}{key}.")
    return found


def test_the_file_of_the_best_is_taken_as_a_space_with_the_rest_to_search(tmp_path: Path) -> None:
    file = best_file(of_one(tmp_path, POINT))
    space = space_of(TASK, file)
    assert space.fixed == {**FIXED, **POINT}
    assert {one.name for one in space.dimensions} == {"model.extra", "algorithm"}, "what the study did not say"


def test_the_file_of_the_best_is_taken_as_a_space_where_nothing_is_left_to_search(tmp_path: Path) -> None:
    """E.g. to measure the best once more, on more folds."""
    file = best_file(of_one(tmp_path, {**POINT, "model.extra": "a", "algorithm": "allreduce"}))
    space = space_of(TASK, file)
    assert not space.dimensions and space.fixed["lr"] == POINT["lr"]


def test_a_setting_that_is_none_comes_back_from_the_file_of_the_best(tmp_path: Path) -> None:
    """TOML has no null, so the file has a word of its own for it."""
    point = {**POINT, "model.extra": None, "algorithm": "allreduce"}
    file = best_file(of_one(tmp_path, point))
    assert tomllib.loads(file.read_text())["model"]["extra"] == {"none": True}
    space = space_of(TASK, file)
    assert space.fixed == {**FIXED, **point} and not space.dimensions, "nothing is left to search"
    assert "trial 0" in file.read_text() and "val_accuracy 0.5" in file.read_text()


def named(größe: Annotated[int, un.Range(1, 9)] = 2) -> Any:
    return größe


def test_arguments_may_have_characters_of_other_languages(tmp_path: Path) -> None:
    task = un.Task(model=named, data=data, space={"lr": un.Range(0.1, 1.0)})
    file = best_file(of_one(tmp_path, {"model.größe": 5}, about_of(task)))
    assert space_of(task, file).fixed == {**FIXED, "model.größe": 5}


def keyed(log: Annotated[bool, un.Choice(True, False)] = True, low: Annotated[int, un.Range(1, 9)] = 2) -> Any:
    return log, low


def test_arguments_may_be_called_like_the_keys_of_a_space(tmp_path: Path) -> None:
    task = un.Task(model=keyed, data=data, space={"lr": un.Range(0.1, 1.0)})
    file = best_file(of_one(tmp_path, {"model.log": False, "model.low": 5}, about_of(task)))
    assert space_of(task, file).fixed == {**FIXED, "model.log": False, "model.low": 5}


# ---- as a command --------------------------------------------------------------------------------------------------------


def options_of(command: str) -> tuple[list[str], dict[str, Any]]:
    """All words but those of --set, and what --set says."""
    words = shlex.split(command)
    changes = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
    plain = [word for place, word in enumerate(words) if word != "--set" and (not place or words[place - 1] != "--set")]
    return plain, parse(changes)


@pytest.mark.parametrize("what", POINTS)
def test_the_command_says_the_same(tmp_path: Path, what: str) -> None:
    about, best = best_of(of_one(tmp_path, POINTS[what], about_of(workers=3)))
    words, changes = options_of(command_of(about, best))
    algorithm = ["--algorithm", "local_sgd"] if "algorithm" in POINTS[what] else []
    assert words == ["unisono", "train", "examples/my digits.py", "-n", "3", *algorithm]
    assert changes == {name: value for name, value in {**FIXED, **POINTS[what]}.items() if name != "algorithm"}


def test_text_that_reads_as_a_number_stays_text(tmp_path: Path) -> None:
    about, best = best_of(of_one(tmp_path, {"model.act": "10", "model.extra": None, "model.bias": True}))
    assert options_of(command_of(about, best))[1] == {**FIXED, "model.act": "10", "model.extra": None, "model.bias": True}


def test_the_closing_message_has_the_result_and_the_next_command(tmp_path: Path) -> None:
    study_in(tmp_path, proposal_record(0, POINT), end_record(0, 0, COMPLETE, [0.5, 2.0], 1.0, details={"spread": 0.0123}))
    about, best = best_of(tmp_path)
    lines = describe_best(tmp_path, best, about, OBJECTIVES, 6).splitlines()
    assert lines[0] == "best: trial 0, val_accuracy 0.5 ± 0.012, time_s 2 over 6 trainings", "of the first objective"
    assert lines[1] == f"to train with its settings: {command_of(about, best)}"
    assert lines[2] == f"on training and validation data together: unisono train 'examples/my digits.py' --from-study {tmp_path}"
    of_objective = describe_best(tmp_path, best, {**about, "task_file": None}, OBJECTIVES, 1)
    assert of_objective.count("\n") == 0 and "model.width=33" in of_objective


# ---- for `train --from-study` --------------------------------------------------------------------------------------------


def test_the_best_settings_are_for_the_same_task_only(tmp_path: Path) -> None:
    folder = of_one(tmp_path / "study", {**POINT, "algorithm": "local_sgd"})
    file = tmp_path / "digits.py"
    file.write_bytes(b"task = 1\n")
    found = best_settings(folder, file, accept_changes=False)
    assert found.algorithm == "local_sgd" and found.changes == {**FIXED, **POINT}
    file.write_bytes(b"task = 2\n")
    with pytest.raises(UsageError, match=r"digits\.py has changed since .*--accept-changes"):
        best_settings(folder, file, accept_changes=False)
    assert best_settings(folder, file, accept_changes=True) == found


def test_the_best_settings_of_an_older_study_are_with_the_defaults_that_it_had(tmp_path: Path) -> None:
    file = tmp_path / "digits.py"
    file.write_bytes(b"task = 1\n")
    older = best_settings(of_one(tmp_path / "older", {**POINT, "algorithm": "downpour"}), file, accept_changes=False)
    assert older.changes == {"algorithm.optimizer_on": "server", "algorithm.damping": "off", **FIXED, **POINT}
    about = about_of(defaults={"algorithm.optimizer_on": "worker"})
    records = (proposal_record(0, {**POINT, "algorithm": "downpour"}), end_record(0, 0, COMPLETE, [0.5, 1.0], 1.0))
    study_in(tmp_path / "study", *records, about=about)
    assert best_settings(tmp_path / "study", file, accept_changes=False).changes == {**FIXED, **POINT}


def test_what_accepts_changes_does(tmp_path: Path) -> None:
    folder = of_one(tmp_path / "study", POINT)
    other = tmp_path / "renamed.py"
    other.write_bytes(b"task = 1\n")
    with pytest.raises(UsageError, match=r"renamed\.py is not that of the study .*--accept-changes"):
        best_settings(folder, other, accept_changes=False)
    assert best_settings(folder, other, accept_changes=True).changes == {**FIXED, **POINT}


def test_files_that_the_study_has_accepted_are_those_of_the_study(tmp_path: Path) -> None:
    folder, file = of_one(tmp_path / "study", POINT), tmp_path / "digits.py"
    file.write_bytes(b"task = 2\n")
    sources = {"digits.py": hashlib.sha256(b"task = 2\n").hexdigest()}
    make_study(folder, about_of(sources=sources), accept_changes=True)
    assert best_settings(folder, file, accept_changes=False).changes == {**FIXED, **POINT}


@pytest.mark.parametrize(
    ("metric", "parts", "expected"),
    [
        ("best_val_loss", [{"epochs": 9, "best_epoch": 5}, {"epochs": 6, "best_epoch": 2}, {"epochs": 5, "best_epoch": 0}], 3),
        ("best_val_loss", [{"epochs": 6}, {"epochs": 9}], 8),
        ("val_loss", [{"epochs": 6, "best_epoch": 0}, {"epochs": 6, "best_epoch": 3}], 6),
        ("val_loss", [{}], None),
    ],
    ids=["weights of the best epoch", "a study of an earlier version", "final weights", "nothing is known"],
)
def test_the_last_training_has_the_mean_epochs_of_the_best_trials_parts(
    tmp_path: Path, metric: str, parts: list[dict[str, int]], expected: int | None
) -> None:
    """And does not stop early, as it has no validation data; what the user gives goes before."""
    file = tmp_path / "digits.py"
    file.write_bytes(b"task = 1\n")
    about = about_of(objectives=[{"metric": metric, "higher_is_better": False}], fixed={"epochs": 60, "patience": 3})
    point = {"lr": 0.5}
    study_in(
        tmp_path / "study", proposal_record(0, point), end_record(0, 0, COMPLETE, [0.5], 1.0, details={"parts": parts}), about=about
    )
    assert best_settings(tmp_path / "study", file, accept_changes=False).epochs == expected
    given = {"from_study": str(tmp_path / "study")}
    assert train_config(str(file), given).changes == {**point, "patience": 3, "epochs": expected or 60}
    assert train_config(str(file), {**given, "epochs": 4}).changes["epochs"] == 4
    for name, shown in (("patience", "--patience 3"), ("target", "--target 3"), ("monitor", "--best 3")):
        with pytest.raises(UsageError, match=f"{shown} {NEEDS_VALIDATION}"):
            train_config(str(file), {**given, "set": {name: 3}})


@pytest.mark.parametrize(("name", "shown"), [("patience", "--patience 3"), ("target", "--target 3"), ("monitor", "--best 3")])
def test_goals_that_need_validation_data_are_refused_where_these_are_trained_on(name: str, shown: str) -> None:
    with pytest.raises(UsageError, match=f"{shown} {NEEDS_VALIDATION}"):
        train_config("task.py", {"all_data": True, "set": {name: 3}})


# ---- models --------------------------------------------------------------------------------------------------------------


def test_without_models_the_message_has_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no models of its best trial, 0; train one .* --from-study"):
        fold_models(of_one(tmp_path, POINT))


# ---- as a study of Optuna's ----------------------------------------------------------------------------------------------

PARTS = [{"fold": 0, "repeat": 0, "values": [0.4, 1.0]}, {"fold": 1, "repeat": 0, "values": [0.6, 3.0]}]


def exported(folder: Path) -> Path:
    adam = POINTS["without a condition"]
    return study_in(
        folder,
        *(proposal_record(0, POINT), begin_record(0, 0, "job/0", 5000.0), report_record(0, 1, 0.3), report_record(0, 2, 0.5)),
        end_record(0, 0, COMPLETE, [0.5, 2.0], 30.0, details={"parts": PARTS, "spread": 0.14}),
        *(proposal_record(1, adam), report_record(1, 1, 0.1), end_record(1, 0, PRUNED, [], 3.0)),
        *(proposal_record(2, POINT), end_record(2, 0, FAILED, [], 1.0, "out of memory")),
        *(proposal_record(3, POINT), begin_record(3, 0, "job/0", 1.0)),
        *(proposal_record(4, {**POINT, "model.extra": None}), end_record(4, 1, COMPLETE, [0.7, 9.0], 1.0)),
        end_record(5, 0, FAILED, [], 1.0, "its point is lost"),
    )


@pytest.mark.parametrize("in_file", [False, True])
def test_a_study_is_exported_with_all_that_has_ended(tmp_path: Path, in_file: bool) -> None:
    folder = exported(tmp_path / "digits")
    url = f"sqlite:///{tmp_path / 'study.db'}"
    found = to_optuna(folder, url if in_file else None)
    if in_file:
        found = optuna.load_study(study_name="digits", storage=url)
    assert [one.name for one in found.directions] == ["MAXIMIZE", "MINIMIZE"]
    assert found.metric_names == ["val_accuracy", "time_s"]
    trials = found.get_trials()
    assert [one.state.name for one in trials] == ["COMPLETE", "PRUNED", "FAIL", "COMPLETE", "FAIL"]
    assert [one.user_attrs["number"] for one in trials] == [0, 1, 2, 4, 5]
    first = trials[0]
    assert first.values == [0.5, 2.0] and first.params == POINT and first.intermediate_values == {1: 0.3, 2: 0.5}
    assert first.user_attrs["parts"] == PARTS and first.user_attrs["spread"] == 0.14
    assert first.datetime_start is not None and first.datetime_start.timestamp() == pytest.approx(5000.0)
    assert first.duration is not None and first.duration.total_seconds() == pytest.approx(30.0)
    assert trials[1].params == POINTS["without a condition"] and trials[1].intermediate_values == {1: 0.1}
    assert trials[2].user_attrs["reason"] == "out of memory" and trials[2].values is None
    assert trials[3].params["model.extra"] is None and trials[4].params == {}
    assert [one.number for one in found.best_trials] == [0, 3]


def test_an_objective_is_exported_with_what_it_asked_for(tmp_path: Path) -> None:
    distribution = optuna.distributions.distribution_to_json(optuna.distributions.FloatDistribution(0.0, 1.0))
    details = {"asked": {"x": 0.25}, "distributions": {"x": distribution}, "parts": []}
    about = about_of(space=None, objectives=[{"metric": "value", "higher_is_better": False}], fixed={})
    study_in(tmp_path, proposal_record(0, {}), end_record(0, 0, COMPLETE, [3.0], 1.0, details=details), about=about)
    found = to_optuna(tmp_path)
    assert found.best_params == {"x": 0.25} and found.best_value == 3.0


def test_a_value_without_end_is_exported(tmp_path: Path) -> None:
    about = about_of(objectives=[OBJECTIVES[0]._asdict()])
    study_in(
        tmp_path, proposal_record(0, POINT), report_record(0, 1, math.nan), end_record(0, 0, COMPLETE, [math.inf], 1.0), about=about
    )
    (trial,) = to_optuna(tmp_path).get_trials()
    assert math.isnan(trial.intermediate_values[1]) and trial.state.name == "COMPLETE" and trial.values == [math.inf]


def test_an_export_that_is_there_already_is_refused(tmp_path: Path) -> None:
    folder, url = exported(tmp_path / "digits"), f"sqlite:///{tmp_path / 'study.db'}"
    to_optuna(folder, url)
    with pytest.raises(UsageError, match=r"has a study 'digits' already; give another database"):
        to_optuna(folder, url)


@pytest.mark.parametrize("url", ["sqlite:////nowhere/at/all/study.db", "nonsense", "nonsense://x"])
def test_a_database_that_cannot_be_opened_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(UsageError, match=r"cannot be opened: .*") as refused:
        to_optuna(exported(tmp_path / "digits"), url)
    assert str(refused.value).endswith("; give e.g. sqlite:///study.db") and "\n" not in str(refused.value), "one line"


def test_what_is_read_back_is_the_same_space(tmp_path: Path) -> None:
    about, _ = load_study(of_one(tmp_path, POINT))
    space = space_from_dict(about["space"])
    assert space.to_dict() == space_of(TASK).to_dict()
    assert defaults_of(TASK, space, {})["model.width"] == 64
