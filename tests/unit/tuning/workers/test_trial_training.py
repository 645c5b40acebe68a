"""Trials of a task file: which algorithms and numbers of workers can be, and what becomes of what an earlier trial has left."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

import unisono as un
from tests.system.studies import written_task
from unisono import run as runs
from unisono.comm.base import Communicator
from unisono.comm.single_process import single_process_communicator
from unisono.data.fold_data import Folding
from unisono.errors import UsageError
from unisono.run import EarlyStopHook
from unisono.task.train_config import TrainConfig
from unisono.testing.thread_communicator import run_threads
from unisono.training.run_hooks import RunHooks
from unisono.training.trainer import Trainer
from unisono.tuning.search.own_settings import ALGORITHM
from unisono.tuning.study.study_file import make_study
from unisono.tuning.workers import trial_training
from unisono.tuning.workers.trial_training import TaskTrialRunner, boundary_points, put_aside

BOTH = "[algorithm]\nchoice = ['allreduce', 'local_sgd']\n"
PERIOD = "[algorithm.period]\nlow = 2\nhigh = 8\n"


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    yield written_task(tmp_path)
    sys.modules.pop("task", None)


def work(task: str, space: str = "", workers: int = 1, **changes: Any) -> TaskTrialRunner:
    """`__` in the name of a change is a dot."""
    file = Path(task).with_name("space.toml")
    file.write_text(space)
    named = {name.replace("__", "."): value for name, value in changes.items()}
    return TaskTrialRunner(task, named, str(file), Folding(), workers)


# ---- algorithms ----------------------------------------------------------------------------------------------------------


CAN_BE: Mapping[str, Any] = {
    "options of a fixed algorithm": {"algorithm": "local_sgd", "algorithm__period": 4, "workers": 2},
    "options of a searched one": {"space": BOTH + PERIOD + "when = { algorithm = 'local_sgd' }\n", "workers": 2},
    "options in the space of a fixed one": {"space": PERIOD, "algorithm": "local_sgd"},
    "a server and its worker in one process": {"algorithm": "downpour"},
    "a server and workers among whom the batch can be divided": {"algorithm": "downpour", "workers": 4},
    "a server, where the batch can be divided": {"algorithm": "gem", "global_batch": 10, "workers": 6},
}


@pytest.mark.parametrize("what", CAN_BE)
def test_algorithms_that_can_be(what: str, task: str) -> None:
    found = work(task, **CAN_BE[what])
    found.load()
    assert found.describe()["monitor"] == "val_accuracy"


CANNOT_BE: Mapping[str, tuple[Any, str]] = {
    "an option of another algorithm": (
        {"algorithm": "local_sgd", "algorithm__push_every": 4},
        r"unknown option 'push_every' of --algorithm local_sgd \(--set algorithm.push_every\)",
    ),
    "an option without an algorithm": ({"algorithm__period": 4}, "unknown option 'period' of --algorithm allreduce"),
    "a value that it does not take": ({"algorithm": "local_sgd", "algorithm__period": 0}, "period"),
    "an option that one of two does not read": (
        {"space": BOTH + PERIOD},
        "the search space contains trials that allreduce cannot train: unknown option 'period' of --algorithm allreduce.*when = ",
    ),
    "a batch that cannot be divided": (
        {"algorithm": "downpour", "global_batch": 10, "workers": 4},
        "global_batch 10 cannot be divided over 3 workers",
    ),
    "a batch of the space that cannot be divided": (
        {"space": "[global_batch]\nchoice = [12, 10]\n", "algorithm": "downpour", "workers": 4},
        "global_batch 10 cannot be divided over 3 workers",
    ),
    "by the second algorithm alone": (
        {"space": "[algorithm]\nchoice = ['allreduce', 'downpour']\n", "global_batch": 10, "workers": 4},
        "trials that downpour cannot train: global_batch 10 cannot be divided over 3 workers",
    ),
    "more workers than samples of a batch": ({"workers": 13, "lr": 0.1}, "global_batch 12 is too small for 13 workers"),
}


@pytest.mark.parametrize("what", CANNOT_BE)
def test_algorithms_that_cannot_be_are_refused_before_anything_starts(what: str, task: str) -> None:
    given, message = CANNOT_BE[what]
    with pytest.raises(UsageError, match=message):
        work(task, **given).describe()


def test_points_have_every_value_and_keep_conditions(task: str) -> None:
    found = work(task, BOTH + PERIOD + "when = { algorithm = 'local_sgd' }\n[global_batch]\nchoice = [6, 12, 18]\n")
    points = list(boundary_points(found.space, found.fixed))
    assert {point[ALGORITHM] for point in points} == {"allreduce", "local_sgd"}
    assert all(("algorithm.period" in point) == (point[ALGORITHM] == "local_sgd") for point in points)
    assert {point.get("algorithm.period") for point in points} == {None, 2, 8}
    assert {point["global_batch"] for point in points if point[ALGORITHM] == "allreduce"} == {6, 12, 18}


def test_the_first_trial_has_the_learning_rate_that_a_training_of_the_task_has(task: str, tmp_path: Path) -> None:
    """Though the task names none, nor an optimizer."""
    file = Path(task)
    file.write_text(file.read_text().replace(" lr=0.1,", ""))
    plain = un.train(task, out=tmp_path / "run", show=False)
    assert json.loads((plain.out / "config.json").read_text())["settings"]["lr"] == 0.01
    space = (
        "[lr]\nlow = 1e-3\nhigh = 1.0\nlog = true\n[optimizer]\nchoice = ['adam', 'sgd']\n[optimizer.momentum]\nlow = 0\nhigh = 1\n"
    )
    first = work(task, space + "when = { optimizer = 'sgd' }\n").describe()["first"]
    assert first == {"model.width": 4, "model.bias": True, "lr": 0.01, "optimizer": "sgd", "optimizer.momentum": 0.0}


OF_DOWNPOUR: Mapping[str, Any] = {"algorithm__optimizer_on": "server", "algorithm__damping": "off"}


@pytest.mark.parametrize("space", ["", "[algorithm]\nchoice = ['allreduce', 'downpour']\n"])
def test_a_study_with_older_defaults_is_refused_with_the_options_that_it_had(space: str, task: str, tmp_path: Path) -> None:
    """Downpour trains otherwise since its defaults changed, so trials of both cannot be compared."""
    fixed: dict[str, Any] = {} if space else {"algorithm": "downpour"}
    now = work(task, space, **fixed).describe()
    make_study(tmp_path / "old", {name: value for name, value in now.items() if not name.endswith("defaults")})
    told = (
        r'fixed\.algorithm\.optimizer_on "server" before, "worker" now.*'
        r"to resume it add --set algorithm\.optimizer_on=server --set algorithm\.damping=off; else give another --out"
    )
    with pytest.raises(UsageError, match=told):
        make_study(tmp_path / "old", now)
    if fixed:
        make_study(tmp_path / "old", work(task, **fixed, **OF_DOWNPOUR).describe())
    make_study(tmp_path / "new", now)
    make_study(tmp_path / "new", now)


def test_a_worker_with_other_data_than_the_study_is_refused(task: str) -> None:
    runner = work(task, lr=0.1)
    samples = runner.describe()["samples"]
    runner._expect_data_of_study(json.loads(json.dumps(samples)))
    other = work(task, lr=0.1)
    with pytest.raises(UsageError, match=r"holds other data than the study: the training data \(number of samples: .*; make them"):
        other._expect_data_of_study({**samples, "train": {**samples["train"], "num_samples": 1}})


# ---- run directories -----------------------------------------------------------------------------------------------------


def executed(task: str, out: Path, lr: float) -> Mapping[str, Any]:
    config = TrainConfig(task_file=task, changes={"lr": lr, "epochs": 1}, out=str(out), quiet=True)
    ended = trial_training._execute_when_free(
        config, single_process_communicator(), work(task).task, EarlyStopHook(lambda *_: True)
    )
    return ended.summary


def test_a_run_with_other_values_is_put_aside(task: str, tmp_path: Path) -> None:
    """As where the journal was damaged, and a trial that was begun has got other values."""
    out = tmp_path / "trials" / "000003" / "fold-0"
    for number, lr in enumerate((0.1, 0.2, 0.3)):
        assert executed(task, out, lr)["config"]["settings"]["lr"] == lr
        assert sorted(path.name for path in out.parent.iterdir()) == ["fold-0", *(f"old-{one}" for one in range(1, number + 1))]
    old = json.loads((out.parent / "old-2" / "fold-0" / "summary.json").read_text())
    assert old["config"]["settings"]["lr"] == 0.2
    assert executed(task, out, 0.3)["config"]["settings"]["lr"] == 0.3, "its own run is as it was"
    assert not (out.parent / "old-3").exists()


def test_a_run_without_its_configuration_is_put_aside_too(task: str, tmp_path: Path) -> None:
    out = tmp_path / "fold-0"
    out.mkdir()
    (out / "metrics.jsonl").write_text("")
    executed(task, out, 0.1)
    assert [path.name for path in (tmp_path / "old-1" / "fold-0").glob("*.jsonl")] == ["metrics.jsonl"]


def test_what_is_put_aside_hides_nothing_that_is_there(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / "fold-0").mkdir()
        assert put_aside(tmp_path / "fold-0") == tmp_path / f"old-{number}" / "fold-0"
    (tmp_path / "fold-1").mkdir()
    assert put_aside(tmp_path / "fold-1") == tmp_path / "old-1" / "fold-1"


# ---- one of many trainings -----------------------------------------------------------------------------------------------


def test_one_of_many_trainings_asks_no_scheduler(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(_: float | None) -> NoReturn:
        raise AssertionError("who steers knows when the time is over")

    monkeypatch.setattr(runs, "deadline_of_this_process", asked)
    assert executed(task, tmp_path / "run", 0.1)["epochs"] == 1


def test_workers_wait_for_an_answer_longer_than_for_anything_else() -> None:
    """Rank 0 waits for a slower fold, which may take hours."""

    def asked(comm: Communicator) -> bool:
        def should_continue(epoch: int, metrics: Mapping[str, float]) -> bool:
            time.sleep(1.0)
            return epoch == 3 and metrics == {"a": 1.0}

        hooks = RunHooks(should_continue=should_continue)
        trainer = SimpleNamespace(comm=comm, hooks=hooks, progress=SimpleNamespace(epoch=3))
        return Trainer.should_continue(cast("Trainer", trainer), {"a": 1.0})

    assert run_threads(2, asked, time_limit_s=0.3) == [True, True]
