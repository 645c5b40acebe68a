"""A study in a database (`--storage`) is the same as one in files: claims are exclusive, records come back, studies stay apart; and
Optuna's own tools see its trials."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import optuna
import pytest

from unisono.errors import UsageError
from unisono.files.journal import Record
from unisono.task.task import Choice, Range
from unisono.tuning.report.document import html_of
from unisono.tuning.search.space import Dimension, Space
from unisono.tuning.study.database import Database, DatabaseClaims, DatabaseReader, DatabaseWriter
from unisono.tuning.study.export import to_optuna
from unisono.tuning.study.result import best_of, load_study
from unisono.tuning.study.store import Store
from unisono.tuning.study.study import COMPLETE, FAILED, PRUNED, begin_record, end_record, give_back_record, proposal_record
from unisono.tuning.study.study_file import make_study

SPACE = Space(
    [
        Dimension("optimizer", Choice("sgd", "adam")),
        Dimension("momentum", Range(0.0, 0.99), when={"optimizer": ["sgd"]}),
        Dimension("width", Range(1, 9), is_integer=True),
    ]
)
POINT = {"optimizer": "sgd", "momentum": 0.5, "width": 3}
OTHER = {"optimizer": "adam", "width": 4}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'studies.db'}"


def about_of(url: str, **words: Any) -> dict[str, Any]:
    return {
        "task": "digits",
        "task_file": "digits.py",
        "space": SPACE.to_dict(),
        "fixed": {},
        "objectives": [{"metric": "val_accuracy", "higher_is_better": True}],
        "trials": 4,
        "storage": url,
        **words,
    }


Opens = Callable[..., Store]


@pytest.fixture
def opened(url: str) -> Opens:
    def make(folder: Path, job: str = "one", **words: Any) -> Store:
        return Store(folder, make_study(folder, about_of(url, **words)), 4, job, clock=lambda: 1000.0)

    return make


def begin(store: Store, number: int, point: Mapping[str, Any], ranges: Mapping[str, str] | None = None) -> None:
    store.append(proposal_record(number, point, ranges))
    store.append(begin_record(number, 0, f"{store.job}/0", 1000.0))


def shown(url: str, number: int = 0) -> list[Any]:
    """The trials of a study as Optuna's own tools see them."""
    names = [one for one in optuna.get_all_study_names(url) if ": trial " not in one]
    return list(optuna.load_study(study_name=names[number], storage=url).get_trials())


# ---- claims ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attempt", [0, 2])
def test_of_all_that_claim_a_trial_one_gets_it(url: str, attempt: int) -> None:
    def take(block_id: str) -> bool:
        return DatabaseClaims(Database(url, "study", about_of(url))).claim(3, attempt, block_id)

    Database(url, "study", about_of(url))  # so that the tables are there
    with ThreadPoolExecutor(4) as threads:
        took = list(threads.map(take, "abcd"))
    assert took.count(True) == 1
    claims = DatabaseClaims(Database(url, "study", about_of(url)))
    assert claims.owner(3, attempt) == "abcd"[took.index(True)]
    assert claims.claim(3, attempt, "abcd"[took.index(True)]), "who asks a second time still has it"
    assert claims.owner(3, attempt + 1) is None and claims.owner(9, 0) is None


def test_jobs_share_the_trials(tmp_path: Path, opened: Opens) -> None:
    stores = [opened(tmp_path / "study", job) for job in ("one", "two")]
    for store in stores:
        store.record_join({})
    taken = [pending.number for _ in range(2) for store in stores if (pending := store.claim_next()) is not None]
    assert sorted(taken) == [0, 1, 2, 3]
    assert [store.claim_next() for store in stores] == [None, None]


# ---- records ---------------------------------------------------------------------------------------------------------


def test_records_come_back_in_their_order_and_once(url: str) -> None:
    database = Database(url, "study", about_of(url))
    writers = {name: DatabaseWriter(database, name) for name in ("b", "a")}
    for number in range(12):
        for writer in writers.values():
            writer.append({"event": "alive", "job": writer.name, "at_s": float(number)})
    reader = DatabaseReader(Database(url, "study", about_of(url)))
    expected = [Record(name, n, {"event": "alive", "job": name, "at_s": float(n)}) for name in "ab" for n in range(12)]
    assert reader.read() == expected and reader.read() == []
    writers["a"].append({"event": "left", "job": "a", "at_s": 99.0})
    assert [(one.writer, one.number) for one in reader.read()] == [("a", 12)]
    assert {one.writer for one in DatabaseReader(database, without="a").read()} == {"b"}


def test_a_trial_that_was_given_back_is_resumed_by_another_job(tmp_path: Path, opened: Opens) -> None:
    first = opened(tmp_path / "study")
    first.record_join({})
    pending = first.claim_next()
    assert pending is not None
    begin(first, pending.number, POINT)
    first.give_back(pending.number, pending.attempt, "stopped")
    first.record_leave("stopped")
    second = opened(tmp_path / "study", "two")
    second.refresh()
    again = second.claim_next()
    assert again is not None and (again.number, again.attempt, again.values) == (0, 1, POINT)


# ---- two studies -----------------------------------------------------------------------------------------------------


def test_studies_in_folders_of_the_same_name_stay_apart(tmp_path: Path, opened: Opens) -> None:
    stores = [opened(tmp_path / parent / "study") for parent in ("mine", "yours")]
    for number, store in enumerate(stores):
        pending = store.claim_next()
        assert pending is not None and (pending.number, pending.attempt) == (0, 0), "nobody else has it"
        begin(store, pending.number, POINT)
        store.append(end_record(0, 0, COMPLETE, [0.1 * number], 1.0))
        store.record_leave("done")
    for number, parent in enumerate(("mine", "yours")):
        _, best = best_of(tmp_path / parent / "study")
        assert best.result is not None and best.result.values == (0.1 * number,)


def test_a_folder_that_was_moved_is_the_same_study(tmp_path: Path, opened: Opens) -> None:
    store = opened(tmp_path / "study")
    store.append(proposal_record(0, POINT))
    store.record_leave("done")
    shutil.move(tmp_path / "study", tmp_path / "moved")
    assert load_study(tmp_path / "moved")[1].trials[0].values == POINT


def test_a_later_job_finds_the_same_study(tmp_path: Path, url: str) -> None:
    made = make_study(tmp_path / "study", about_of(url))
    assert made["id"].startswith("study-") and make_study(tmp_path / "study", about_of(url)) == made


# ---- what Optuna's tools see -----------------------------------------------------------------------------------------


def test_trials_are_shown_with_their_points_while_they_run_and_after(tmp_path: Path, url: str, opened: Opens) -> None:
    store = opened(tmp_path / "study")
    for point in (POINT, OTHER, POINT):
        pending = store.claim_next()
        assert pending is not None
        begin(store, pending.number, point)
    assert [one.params for one in shown(url)] == [POINT, OTHER, POINT]
    assert {one.state.name for one in shown(url)} == {"RUNNING"}
    store.append(end_record(0, 0, COMPLETE, [0.9], 1.0))
    store.append(end_record(1, 0, PRUNED, [0.3], 1.0))
    store.append(end_record(2, 0, FAILED, [], 1.0, "out of memory"))
    store.append(end_record(0, 0, COMPLETE, [0.1], 1.0))  # a second result counts for nothing
    found = shown(url)
    assert [one.state.name for one in found] == ["COMPLETE", "PRUNED", "FAIL"]
    assert found[0].values == [0.9] and found[2].user_attrs["reason"] == "out of memory"
    assert [one.params for one in found] == [POINT, OTHER, POINT]


def test_a_trial_of_an_earlier_job_is_shown_with_its_point(tmp_path: Path, url: str, opened: Opens) -> None:
    first, second = opened(tmp_path / "study"), opened(tmp_path / "study", "two")
    pending = first.claim_next()
    assert pending is not None
    begin(first, pending.number, POINT)
    first.give_back(0, 0, "stopped")
    first.record_leave("stopped")
    second.append(begin_record(0, 1, "two/0", 5.0))
    second.append(end_record(0, 1, COMPLETE, [0.9], 1.0))
    (trial,) = shown(url)
    assert trial.params == POINT and trial.state.name == "COMPLETE"


def test_a_trial_of_an_objective_is_shown_with_what_it_asked_for(tmp_path: Path, url: str, opened: Opens) -> None:
    store = opened(tmp_path / "study", space=None)
    text, distributions = optuna.distributions.distribution_to_json, optuna.distributions
    kinds = [distributions.FloatDistribution(0.0, 1.0), distributions.FloatDistribution(0.0, 9.0), _choice("a", "b")]
    for number, (value, kind) in enumerate(zip((0.25, 5.0, "b"), kinds, strict=True)):
        pending = store.claim_next()
        assert pending is not None
        begin(store, pending.number, {"y": 1.0}, {"y": text(kinds[0])})
        details = {"asked": {"x": value, "z": "a"}, "distributions": {"x": text(kind), "z": text(kinds[2])}}
        store.append(end_record(number, 0, COMPLETE, [1.0], 1.0, details=details))
    found = [one.params for one in shown(url)]
    assert found[:2] == [{"x": 0.25, "z": "a"}, {"x": 5.0, "z": "a"}], "and not what it did not want"
    assert found[2] == {"z": "a"}, "Optuna takes no other kind of range under the same name; the study goes on"


def _choice(*values: str) -> Any:
    return optuna.distributions.CategoricalDistribution(values)


# ---- the report and the export ---------------------------------------------------------------------------------------


def test_a_study_in_a_database_is_reported_and_exported(tmp_path: Path, url: str, opened: Opens) -> None:
    store = opened(tmp_path / "study")
    store.record_join({"num_blocks": 1, "block_size": 1})
    records: list[Mapping[str, Any]] = [
        proposal_record(0, POINT),
        begin_record(0, 0, "one/0", 1000.0),
        end_record(0, 0, COMPLETE, [0.75], 5.0),
    ]
    records += [proposal_record(1, OTHER), begin_record(1, 0, "one/0", 1005.0), give_back_record(1, 0, "stopped", 1006.0)]
    for record in records:
        store.append(record)
    store.record_leave("stopped")
    about, study = load_study(tmp_path / "study")
    page = html_of(study, about, 1010.0)
    assert "2 of 4 trials" in page and "0.75" in page and "optimizer=sgd" in page
    (trial,) = to_optuna(tmp_path / "study", url).get_trials()  # into the database in which it is kept, too
    assert trial.params == POINT and trial.values == [0.75]


@pytest.mark.parametrize("bad", ["nonsense", "sqlite:////nowhere/at/all/study.db"])
def test_a_database_that_cannot_be_used_is_refused(tmp_path: Path, bad: str) -> None:
    with pytest.raises(UsageError, match=r"cannot be used \(--storage\): .*; give e\.g\. sqlite:///study\.db") as refused:
        Database(bad, "study", about_of(bad))
    assert "\n" not in str(refused.value) and not list(tmp_path.iterdir())
