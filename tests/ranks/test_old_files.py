"""Runs and a study that an old version has left (tests/fixtures), moved to another folder: they are resumed, evaluated and compared
as if this version had made them."""

from __future__ import annotations

import json
import math
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.make import FITTED, NUM_TRIALS, OLD_FILES, SEARCHED, TRAINED
from tests.system.nursery import Nursery
from tests.system.studies import all_ended_once, first_steps
from unisono.testing.ranks import GroupResult
from unisono.tuning.study.study import COMPLETE

pytestmark = pytest.mark.timeout(180)
LIMIT_S = 90.0
ON_OTHER_MACHINES = 1e-3
"""Rounding, after a few steps; an optimiser that had forgotten something would be further off."""

STOPPED_RUNS = [name for name in TRAINED if name != "finished"]


class Place:
    """A copy of the old files, and the commands that are given beside them."""

    def __init__(self, folder: Path, nursery: Nursery) -> None:
        self.folder = folder
        self.nursery = nursery

    def unisono(self, *words: str, size: int = 1) -> GroupResult:
        ended = self.nursery.run(["-m", "unisono.cli", *words], size, "shm" if size > 1 else "single", LIMIT_S)
        assert ended.exit_code == 0, ended
        return ended

    def train(self, run: str, *words: str) -> None:
        """The command that began the run, given again, maybe with more words."""
        task, *options = TRAINED[run]
        size = int(options[options.index("-n") + 1]) if "-n" in options else 1
        self.unisono("train", task, *options, "--threads", "1", "--quiet", "--out", run, *words, size=size)

    def read(self, *path: str) -> Any:
        return json.loads(self.folder.joinpath(*path).read_text())

    def printed(self, *words: str) -> Any:
        return json.loads(self.unisono(*words, "--json").output)


@pytest.fixture
def place(tmp_path: Path, nursery: Nursery, monkeypatch: pytest.MonkeyPatch) -> Place:
    folder = shutil.copytree(OLD_FILES, tmp_path / "moved")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    return Place(folder, nursery)


def need(package: str) -> None:
    """Skips where it is not installed. It is not loaded here, where it would change the environment of later tests."""
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed; `pip install {package}` lets this test run")


@pytest.mark.parametrize("run", STOPPED_RUNS)
def test_a_stopped_run_is_resumed_where_it_was_stopped(place: Place, run: str) -> None:
    if run in ("lightning", "keras"):
        need(run)
    (before,) = place.printed("status", run)
    place.train(run)
    expected, found, status = place.read("expected.json")[run], place.read(run, "summary.json"), place.read(run, "status.json")
    assert (before["state"], before["exit_code"], status["state"], status["exit_code"]) == ("stopped", 75, "finished", 0)
    assert [life["first_step"] for life in status["lives"]] == [0, before["step"]]
    assert before["step"] > 0
    assert [found[name] for name in ("reason", "steps", "epochs")] == [expected[name] for name in ("reason", "steps", "epochs")]
    assert [row["epoch"] for row in found["history"]] == list(range(expected["epochs"]))
    for name, value in expected["metrics"].items():
        if "loss" in name and run != "downpour":  # where chance decides the order of calls
            assert found["metrics"][name] == pytest.approx(value, rel=ON_OTHER_MACHINES), name
    place.unisono("evaluate", run, "--task", TRAINED[run][0], "--threads", "1")
    assert place.read(run, "evaluation-test.json")["metrics"]["test_loss"] == pytest.approx(found["metrics"]["test_loss"], rel=1e-5)


def test_a_resumed_asynchronous_run_is_repeated(place: Place) -> None:
    place.train("downpour")
    _, *options = TRAINED["downpour"]
    del options[:2]  # -n 3
    place.unisono("train", "task.py", *options, "--simulate", "2", "--replay", "downpour", "--threads", "1", "--out", "again")
    assert place.read("again", "summary.json")["weights_sha256"] == place.read("downpour", "summary.json")["weights_sha256"]


def test_a_finished_run_is_left_alone_extended_and_evaluated(place: Place) -> None:
    old = place.read("finished", "evaluation-test.json")
    files = {file: file.read_bytes() for file in Path("finished").glob("*.*") if file.name not in (".lock", "status.json")}
    place.unisono("evaluate", "finished", "--task", "task.py", "--save-predictions")
    found = place.read("finished", "evaluation-test.json")
    assert found["weights_sha256"] == old["weights_sha256"]
    assert found["split_sha256"] == old["split_sha256"]
    assert found["metrics"] == pytest.approx(old["metrics"], rel=1e-5)
    place.train("finished")
    kept = [file for file, content in files.items() if file.read_bytes() == content]
    assert set(files) - set(kept) <= {Path("finished", name) for name in ("evaluation-test.json", "predictions-test.npz")}
    place.train("finished", "--epochs", "6")
    assert (place.read("finished", "summary.json")["epochs"], place.read("finished", "summary.json")["steps"]) == (6, 36)
    assert place.read("finished", "status.json")["lives"][-1]["first_step"] == 24


def test_an_old_run_is_compared_with_a_resumed_one(place: Place) -> None:
    place.train("sharded")
    losses = {run: place.read(run, "summary.json")["metrics"]["test_loss"] for run in ("finished", "sharded")}
    found = place.unisono("compare", "finished", "sharded", "--metric", "test_loss").output
    assert sorted(losses, key=lambda run: found.index(run)) == sorted(losses, key=lambda run: losses[run])


def test_all_old_runs_have_a_status(place: Place) -> None:
    found = {Path(one["run"]).name: one for one in place.printed("status", ".") if "study" not in one["run"]}
    assert {name: one["state"] for name, one in found.items()} == {**dict.fromkeys(STOPPED_RUNS, "stopped"), "finished": "finished"}


def test_a_stopped_study_is_finished_and_used(place: Place) -> None:
    need("optuna")
    study = place.folder / "study"
    before = place.read("study", "trials", "000001", "fold-1", "status.json")
    place.unisono(*SEARCHED, "--quiet")
    results = all_ended_once(study, NUM_TRIALS)
    assert {result.state for result in results.values()} == {COMPLETE}
    assert all(math.isfinite(result.values[0]) for result in results.values())
    assert 0 < before["step"] < before["num_steps"]
    assert first_steps(study, 1, "fold-1") == [0, before["step"]]
    place.unisono("train", "task.py", "--from-study", "study", "--threads", "1", "--quiet", "--out", "best")
    place.unisono("apply", "study", "--task", "task.py", "--out", "labels.csv", "--quiet")
    assert len(Path("labels.csv").read_text().splitlines()) == 1 + 48


def test_a_killed_fit_of_keras_is_resumed_from_its_backup(place: Place) -> None:
    need("keras")
    expected = place.read("expected.json")["fit"]
    ended = place.nursery.run([str(place.folder / FITTED[-1])], 2, "shm", LIMIT_S)
    assert ended.exit_code == 0, ended
    found = place.read("fitted.json")
    assert found["num_batches"] == expected["num_batches"] < 4 * 6
    assert found["losses"] == pytest.approx(expected["losses"], rel=ON_OTHER_MACHINES)
