"""Workers hold the same data, whatever users forget to seed: the generators of the process are seeded for `data`, and what differs
all the same is refused before the first step."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.system.fork_server import ForkServer
from unisono.comm.single_process import single_process_communicator
from unisono.data.fingerprint import fingerprints
from unisono.errors import UsageError
from unisono.predict.finished_run import open_run
from unisono.predict.rebuild import rebuild_splits, rebuild_task
from unisono.run import execute
from unisono.task.overrides import change
from unisono.task.task_file import load_task
from unisono.task.train_config import TrainConfig
from unisono.training.frontends.factories import make_splits
from unisono.training.server.joining import join, write_join_info

PROGRAM = Path(__file__).parent / "programs" / "coin_toss.py"
SEEDED = ("train_test_split", "random_split", "shuffle", "permutation", "randperm")
UNLIKE = ("default_rng", "listed", "own part", "own loop")
OF_RANK = {"seed": (0, 1), "lr": (1.0, 2.0), "global_batch": (120, 121)}
NOISE = 0.2
"""More than four standard deviations of the share of 120 coins."""


@pytest.mark.timeout(90)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_labels_drawn_by_a_coin_cannot_be_foreseen(tmp_path: Path, fork_server: ForkServer, size: int) -> None:
    ended = fork_server.run([str(PROGRAM), str(tmp_path / "found")], size, "shm" if size > 1 else "single", 60.0)
    assert ended.exit_code == 0, ended
    first, *others = (json.loads((tmp_path / f"found.{rank}").read_text()) for rank in range(size))
    for way in SEEDED if size > 1 else (*SEEDED, *UNLIKE):
        assert abs(first[way] - 0.5) < NOISE, (way, first[way])
        assert all(other[way] == first[way] for other in others)
    for way in UNLIKE if size > 1 else ():
        assert "the workers hold different data: rank 1 differs from rank 0 in " in first[way], (way, first[way])
        assert "np.random.default_rng(0)" in first[way]
        assert {other[way] for other in others} == {"another rank reports the error"}


@pytest.mark.timeout(90)
def test_settings_that_a_task_computes_from_its_rank_are_refused(tmp_path: Path, fork_server: ForkServer) -> None:
    """Workers with other seeds would take overlapping parts of two orders; with other rates each would train its own model."""
    ended = fork_server.run([str(PROGRAM), str(tmp_path / "found"), "settings"], 2, "shm", 60.0)
    assert ended.exit_code == 0, ended
    first, other = (json.loads((tmp_path / f"found.{rank}").read_text()) for rank in range(2))
    for name, (here, there) in OF_RANK.items():
        expected = f"the workers have different settings: {name} {here} on rank 0, {there} on rank 1; give all workers the same"
        assert first[name].startswith(expected), (name, first[name])
        assert other[name] == "another rank reports the error"
    assert first["own loop"].startswith("the workers have different settings: seed 0 on rank 0, 1 on rank 1")


TASK = """
import os
from pathlib import Path

import numpy as np
from torch import nn

import unisono as un


def data() -> un.Splits:
    whole = un.as_source(un.digits())
    order = np.random.permutation(len(whole))
    tested = order[:300]
    if Path("unlike").exists() and os.environ["UNISONO_RANK"] == "1":
        tested = tested[::-1]
    return un.Splits(train=whole.subset(order[300:]), test=whole.subset(tested))


task = un.Task(
    model=lambda: nn.Linear(64, 10), data=data, loss="cross_entropy", metrics=("accuracy",), lr=0.1, global_batch=300
)
"""


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"task_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(TASK)
    return f"{name}.py"


@pytest.mark.timeout(60)
def test_evaluate_and_apply_refuse_workers_with_other_data(task: str, fork_server: ForkServer) -> None:
    execute(TrainConfig(task, out="run", quiet=True), single_process_communicator())
    again = fork_server.run(["-m", "unisono.cli", "evaluate", "run"], 2, "shm", 30.0)
    assert again.exit_code == 0, f"what data() draws is the same in every process: {again}"
    Path("unlike").touch()
    for words in (["evaluate", "run"], ["apply", "run", "--out", "found.npy"]):
        ended = fork_server.run(["-m", "unisono.cli", *words], 2, "shm", 30.0)
        assert ended.exit_code == 2, ended
        assert "rank 1 differs from rank 0 in the test data (order of the samples, labels)" in ended.output
        assert ended.output.count("the workers hold different data") == 1


def test_data_drawn_without_a_seed_follow_data_seed_and_not_the_seed(task: str) -> None:
    found = [make_splits(change(load_task(task), given)).sha256() for given in ({}, {"seed": 3}, {"data_seed": 1}, {})]
    assert found[0] == found[1] == found[3] != found[2]


def test_a_run_of_a_version_that_seeded_nothing_keeps_its_data(task: str, fork_server: ForkServer) -> None:
    """A file that seeds the generators for itself gave a fixed division before, too."""
    Path(task).write_text(TASK.replace("import unisono as un\n", "import unisono as un\n\nnp.random.seed(7)\n", 1))
    old = ["-m", "unisono.cli", "train", task, "--quiet", "--out", "run"]
    ended = fork_server.run([*old, "--set", "data_seed=none"], 1, "single", 30.0)
    assert ended.exit_code == 0, ended
    assert "data_seed" not in json.loads(Path("run/config.json").read_text())["settings"], "as older versions wrote it"
    for command in ([*old, "--epochs", "2"], ["-m", "unisono.cli", "evaluate", "run"]):
        ended = fork_server.run(command, 1, "single", 30.0)
        assert ended.exit_code == 0, ended


def test_a_worker_with_other_data_than_the_server_cannot_join(task: str, tmp_path: Path) -> None:
    config = TrainConfig(task, algorithm="downpour", elastic=1, out="run")
    samples = fingerprints(make_splits(change(load_task(task), {"data_seed": 5})).parts())
    (tmp_path / "run").mkdir()
    write_join_info(tmp_path / "run", replace(config, changes={"global_batch": 100}), samples)
    with pytest.raises(UsageError, match=r"holds other data than the server: the training data \(order of the samples, labels"):
        join(tmp_path / "run", say=print, threads=1)


def test_inputs_that_changed_in_place_are_noticed_by_resume_and_evaluate(task: str) -> None:
    inputs = np.random.default_rng(0).normal(size=(300, 64)).astype(np.float32)
    np.save("x.npy", inputs)
    np.save("y.npy", np.arange(300) % 10)
    given = 'un.split(Npy("x.npy", "y.npy").map_inputs(lambda x: x / 2), test=30)'
    file = Path(task)
    file.write_text(
        TASK.replace("import unisono as un", "import unisono as un\nfrom unisono.data.sources.numpy_files import Npy", 1).replace(
            "    whole = un.as_source(un.digits())", f"    return {given}"
        )
    )
    comm = single_process_communicator()
    execute(TrainConfig(task, out="run", quiet=True), comm)

    def rebuilt(accept_changes: bool = False) -> None:
        run = open_run("run")
        rebuild_splits(run, rebuild_task(run), accept_changes)

    rebuilt()
    with Path("x.npy").open("r+b") as opened:  # in place, and of the same size
        opened.seek(128)
        opened.write((1.01 * inputs).tobytes())
    with pytest.raises(UsageError, match=r"the values of the inputs of the training data and .* are not those of the training"):
        rebuilt()
    rebuilt(accept_changes=True)
    more = TrainConfig(task, {"epochs": 2}, out="run", quiet=True)
    with pytest.raises(UsageError, match="the values of the inputs of the training data have changed"):
        execute(more, comm)
    assert execute(replace(more, accept_changes=True), comm).summary["epochs"] == 2
