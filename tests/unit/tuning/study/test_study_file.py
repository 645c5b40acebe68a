"""What a study is, is written down once; whoever asks for something else in the same folder is refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from unisono.errors import CannotWrite, UsageError
from unisono.tuning.study.study_file import known_sources, make_study, read_study, space_of, weights_of

SAMPLES: Mapping[str, Any] = {"num_samples": 3, "description": "d", "order": None, "labels": "a", "values": {"[0]": [1.0, 1.0]}}
ABOUT: Mapping[str, Any] = {
    "task": "digits",
    "sources": {"digits.py": "abc"},
    "space": {"dimensions": [{"name": "lr", "low": 0.1, "high": 1.0, "log": False, "whole": False, "when": {}}], "fixed": {}},
    "fixed": {"epochs": 5},
    "samples": {"train": SAMPLES},
    "objectives": ({"metric": "val_accuracy", "higher_is_better": True},),
    "folds": 3,
    "fold_by": "stratified",
    "repeats": 1,
    "seed": 0,
    "search": "tpe",
    "prune": "none",
    "trials": 20,
}


def test_a_study_is_made_once_and_found_again(tmp_path: Path) -> None:
    folder = tmp_path / "studies" / "digits"
    made = make_study(folder, ABOUT)
    assert made == read_study(folder) == make_study(folder, ABOUT)
    assert made["objectives"] == [{"metric": "val_accuracy", "higher_is_better": True}]
    assert [one.name for one in folder.iterdir()] == ["study.json"]


def test_a_study_keeps_the_weights_by_which_it_ranks(tmp_path: Path) -> None:
    """One of an earlier version those of the last epoch, whatever the task says now."""
    assert weights_of(tmp_path / "new", {**ABOUT, "weights": "best"}) == "best"
    make_study(tmp_path / "old", ABOUT)
    assert weights_of(tmp_path / "old", {**ABOUT, "weights": "best"}) == "final"
    make_study(tmp_path / "made", {**ABOUT, "weights": "best"})
    assert weights_of(tmp_path / "made", {**ABOUT, "weights": "final"}) == "best"


def test_an_older_study_keeps_the_whole_numbers_that_it_was_made_with(tmp_path: Path) -> None:
    """Where nothing else of the task has changed: earlier versions read ranges without a type by their ends alone."""
    dimension = {"name": "model.rate", "low": 0, "high": 1, "log": False, "when": {}}
    then, now = ({**ABOUT, "space": {"dimensions": [{**dimension, "whole": one}], "fixed": {}}} for one in (True, False))
    assert space_of(tmp_path, now) == now["space"], "a new study"
    make_study(tmp_path, then)
    assert space_of(tmp_path, now) == then["space"]
    make_study(tmp_path, {**now, "space": space_of(tmp_path, now)})
    changed = {**now, "sources": {"digits.py": "other"}}
    assert space_of(tmp_path, changed) == now["space"], "the user has changed it"
    wider = {**now, "space": {"dimensions": [{**dimension, "high": 2, "whole": False}], "fixed": {}}}
    assert space_of(tmp_path, wider) == wider["space"]


def test_another_objective_of_the_same_source_is_refused_unless_it_is_accepted(tmp_path: Path) -> None:
    objective = {**ABOUT, "space": None, "sources": {"objective": "abc"}, "samples": {}}
    then, now = ({**objective, "captured": {"target": target, "scale": "1"}} for target in ("-3", "4"))
    make_study(tmp_path / "old", objective)
    assert make_study(tmp_path / "old", now) == make_study(tmp_path / "old", then), "an older version recorded nothing of it"
    folder = tmp_path / "new"
    make_study(folder, then)
    assert make_study(folder, then) == make_study(folder, objective | {"captured": then["captured"]})
    with pytest.raises(UsageError) as refused:
        make_study(folder, now)
    assert str(refused.value) == (
        f'the objective has changed since the study {folder} was made: captured.target "-3" before, "4" now. If that changes no '
        "result, add accept_changes=True to resume; else give another out"
    )
    assert make_study(folder, now, accept_changes=True)["accepted"][0]["captured"] == now["captured"]
    for known in (then, now):
        make_study(folder, known)
    with pytest.raises(UsageError, match="the objective has changed"):
        make_study(folder, {**objective, "captured": {"target": "5", "scale": "1"}})


def test_what_may_differ_from_job_to_job(tmp_path: Path) -> None:
    make_study(tmp_path, ABOUT)
    found = make_study(tmp_path, {**ABOUT, "trials": 50, "search": "gp", "prune": "asha", "workers": 4})
    assert found["trials"] == 20, "what it was made with stays"


def test_data_that_changed_are_accepted_once(tmp_path: Path) -> None:
    make_study(tmp_path, {name: value for name, value in ABOUT.items() if name != "samples"})
    assert "samples" not in make_study(tmp_path, ABOUT), "an older version recorded none"
    others = {**ABOUT, "samples": {"train": {**SAMPLES, "num_samples": 4}}}
    make_study(tmp_path / "new", ABOUT)
    make_study(tmp_path / "new", others, accept_changes=True)
    make_study(tmp_path / "new", others)


def test_a_folder_that_a_job_has_begun_to_use_is_no_obstacle(tmp_path: Path) -> None:
    for name in ("journal", "claims", "trials"):
        (tmp_path / name).mkdir()
    (tmp_path / "objective-0a.cloudpickle").touch()
    (tmp_path / ".hidden").touch()
    make_study(tmp_path, ABOUT)


DIFFERENT: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "task": ({"task": "letters"}, 'holds another task: task "digits" before, "letters" now'),
    "space": (
        {"space": {"dimensions": [], "fixed": {}}},
        r"holds a study with another space: space\.lr .*\. Trials of both cannot be compared; give another --out",
    ),
    "source": (
        {"sources": {"digits.py": "abd"}},
        r'files of the task have changed since .*: sources\.digits\.py "abc" before, "abd" now\. .*--accept-changes .*'
        "give another --out",
    ),
    "objectives": ({"objectives": [{"metric": "val_loss", "higher_is_better": False}]}, "objectives"),
    "folds": ({"folds": 5}, "folds 3 before, 5 now"),
    "seed": ({"seed": 1}, "seed 0 before, 1 now"),
    "many": ({"seed": 1, "folds": 2, "repeats": 2, "fold_by": "random", "sources": {}}, "and 1 more"),
    "data of the same files": (
        {"samples": {"train": {**SAMPLES, "labels": "b"}}},
        r"data of the task have changed since .*: samples: the training data \(labels\)\. .*--accept-changes",
    ),
    "settings of all trials": ({"fixed": {"epochs": 50}}, r"fixed\.epochs 5 before, 50 now"),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_another_study_in_the_folder_is_refused(tmp_path: Path, what: str) -> None:
    change, message = DIFFERENT[what]
    make_study(tmp_path, ABOUT)
    before = (tmp_path / "study.json").read_bytes()
    with pytest.raises(UsageError, match=message):
        make_study(tmp_path, {**ABOUT, **change})
    assert (tmp_path / "study.json").read_bytes() == before


def test_other_things_in_the_folder_are_refused(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.txt", "d.txt"):
        (tmp_path / name).touch()
    with pytest.raises(UsageError, match=r"holds other files \(a\.txt, b\.txt, c\.txt\) and no study; give another --out"):
        make_study(tmp_path, ABOUT)
    assert not (tmp_path / "study.json").exists()


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    for out in (tmp_path / "x", tmp_path / "x" / "y"):
        with pytest.raises(CannotWrite, match="a file is where a directory should be; give another place"):
            make_study(out, ABOUT)


def test_what_is_no_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no study \(study\.json is missing\); check the path"):
        read_study(tmp_path)
    for text in ("{", ""):
        (tmp_path / "study.json").write_text(text)
        with pytest.raises(UsageError, match=r"study\.json cannot be read: .*give another study"):
            read_study(tmp_path)


def test_a_study_that_is_made_by_another_just_now_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_study(tmp_path, ABOUT)
    monkeypatch.setattr(Path, "exists", lambda _: False)  # as it was when we looked
    assert make_study(tmp_path, ABOUT)["task"] == "digits"
    with pytest.raises(UsageError, match="holds another task"):
        make_study(tmp_path, {**ABOUT, "task": "letters"})


@pytest.mark.parametrize("same", [True, False])
def test_of_jobs_that_come_at_the_same_time_one_makes_it(tmp_path: Path, same: bool) -> None:
    ready = threading.Barrier(8)

    def make(number: int) -> Any:
        about = {**ABOUT, "seed": 0 if same else number}
        ready.wait(30)
        try:
            return make_study(tmp_path, about)["seed"]
        except UsageError as error:
            return str(error)

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(make, range(8)))
    winner = json.loads((tmp_path / "study.json").read_text())["seed"]
    if same:
        assert found == [0] * 8
    else:
        assert found.pop(winner) == winner
        assert all(f"seed {winner} before" in text for text in found)
    assert [one.name for one in tmp_path.iterdir()] == ["study.json"], "no draft is left"


# ---- changed files -------------------------------------------------------------------------------------------------------


def test_files_that_have_changed_may_be_accepted(tmp_path: Path) -> None:
    made = make_study(tmp_path, ABOUT)
    second = {**ABOUT, "sources": {"digits.py": "abd", "layers.py": None}}
    found = make_study(tmp_path, second, accept_changes=True)
    assert found["sources"] == made["sources"] == {"digits.py": "abc"} and found["id"] == made["id"]
    (accepted,) = found["accepted"]
    assert accepted["sources"] == second["sources"] and 'sources.digits.py "abc" before, "abd" now' in accepted["changes"]
    assert make_study(tmp_path, second) == found == make_study(tmp_path, ABOUT, accept_changes=True), "both are known from now on"
    with pytest.raises(UsageError, match="have changed since"):
        make_study(tmp_path, {**ABOUT, "sources": {"digits.py": "abe"}})
    assert known_sources(found) == [ABOUT["sources"], second["sources"]]


def test_nothing_but_files_may_change(tmp_path: Path) -> None:
    made = make_study(tmp_path, ABOUT)
    with pytest.raises(UsageError, match=r"sources\.digits\.py .*; folds 3 before, 5 now\. Trials of both cannot be compared"):
        make_study(tmp_path, {**ABOUT, "sources": {"digits.py": "abd"}, "folds": 5}, accept_changes=True)
    assert read_study(tmp_path) == made


# ---- pruning -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("then", "now"),
    [("asha", "none"), ("asha", "median"), ("median", "asha"), ("none", "asha"), ("none", "wilcoxon"), ("wilcoxon", "wilcoxon")],
)
def test_jobs_may_prune_in_ways_that_mean_the_same(tmp_path: Path, then: str, now: str) -> None:
    make_study(tmp_path, {**ABOUT, "prune": then})
    make_study(tmp_path, {**ABOUT, "prune": now})
    if now in ("none", "wilcoxon"):
        make_study(tmp_path, {**ABOUT, "prune": now, "parallel_folds": 3})


@pytest.mark.parametrize("then", ["none", "asha"])
@pytest.mark.parametrize("now", ["asha", "median"])
def test_pruning_by_epochs_trains_all_folds_at_a_time(tmp_path: Path, then: str, now: str) -> None:
    make_study(tmp_path, {**ABOUT, "prune": then, "parallel_folds": 3})
    message = rf"3 folds .* and this job 1 \(--parallel-folds\), .*--prune {now} .*; use --parallel-folds 3"
    with pytest.raises(UsageError, match=message):
        make_study(tmp_path, {**ABOUT, "prune": now, "parallel_folds": 1})


@pytest.mark.parametrize(("then", "now"), [("asha", "wilcoxon"), ("wilcoxon", "median")])
def test_epochs_and_folds_are_not_compared_with_each_other(tmp_path: Path, then: str, now: str) -> None:
    make_study(tmp_path, {**ABOUT, "prune": then})
    with pytest.raises(UsageError, match=rf"prunes with {then}, and {now} \(--prune\) .*; use --prune {then}"):
        make_study(tmp_path, {**ABOUT, "prune": now})
