"""Trained models put to use by real workers: the same answers for every number of them, and going on after a kill."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from shutil import copy, copytree
from time import monotonic

import numpy as np
import psutil
import pytest

from tests.system.fork_server import ForkServer
from tests.system.processes import plain_environment
from unisono.data.sources.digits import digits
from unisono.data.splits import split
from unisono.testing.ranks import GroupResult

metrics = pytest.importorskip("sklearn.metrics")
LIMIT_S = 60.0
TASK = """
import signal
from itertools import count
from pathlib import Path

from torch import nn

import unisono as un

GATE = Path(__file__).with_name("gate")
reads = count()


def scaled(inputs):
    if GATE.exists() and 20 < len(inputs) < 30 and next(reads) >= 4:  # pieces, which are neither samples of a check nor batches
        signal.pause()
    return inputs * 2


def model(width: int = 32):
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


def data():
    whole = un.split(un.digits(), validation=0.1, test=0.2, how="stratified", seed=1)
    return un.Splits(*(part.map_inputs(scaled) for part in whole.parts().values()))


task = un.Task(model=model, data=data, loss="cross_entropy", metrics=("accuracy", "auc"), lr=0.1, global_batch=64, epochs=2)
"""


@dataclass(frozen=True)
class Trained:
    folder: Path
    fork_server: ForkServer

    @property
    def run(self) -> str:
        return str(self.folder / "run")

    def do(self, *words: str, size: int = 1) -> GroupResult:
        return self.fork_server.run(["-m", "unisono.cli", *words], size, "shm" if size > 1 else "single", LIMIT_S)

    def done(self, *words: str, size: int = 1) -> str:
        ended = self.do(*words, size=size)
        assert ended.exit_code == 0, ended
        return ended.output

    def refused(self, *words: str, size: int = 1) -> str:
        ended = self.do(*words, size=size)
        assert ended.exit_code == 2, ended
        errors = [line for line in ended.output.splitlines() if "unisono: error:" in line]
        assert len(errors) == 1, ended
        return errors[0]


@pytest.fixture(scope="module")
def trained(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A short training of the digits on two workers, with a width that is not the task's own."""
    made = Trained(tmp_path_factory.mktemp("predict"), fork_server)
    task = made.folder / "held.py"
    task.write_text(TASK)
    made.done("train", str(task), "--out", made.run, "--set", "model.width=48", size=2)
    made.done("train", str(task), "--out", f"{made.run}-2", "--seed", "7", "--set", "model.width=48", size=2)
    return made


def truth_of_the_test_data() -> np.ndarray:
    test = split(digits(), validation=0.1, test=0.2, how="stratified", seed=1).test
    assert test is not None
    labels = test.targets()
    assert labels is not None
    return labels


def test_an_evaluation_is_that_of_the_training_and_of_scikit_learn(trained: Trained, tmp_path: Path) -> None:
    summary = json.loads((Path(trained.run) / "summary.json").read_text())
    found = [json.loads(trained.done("evaluate", trained.run, "--json", size=size)) for size in (1, 2, 3)]
    truth = truth_of_the_test_data()
    trained.done("apply", trained.run, "--weights", "final", "--kind", "probabilities", "--out", str(tmp_path / "p.npy"))
    shares = np.load(tmp_path / "p.npy")
    for one in found:
        assert one["num_samples"] == len(truth) == len(shares) == 359
        assert one["metrics"]["test_accuracy"] == summary["metrics"]["test_accuracy"]
        assert one["metrics"]["test_accuracy"] == metrics.accuracy_score(truth, shares.argmax(1))
        assert one["metrics"]["test_auc"] == pytest.approx(metrics.roc_auc_score(truth, shares, multi_class="ovr"), abs=1e-6)
        assert one["metrics"]["test_loss"] == pytest.approx(summary["metrics"]["test_loss"], rel=1e-6)
    assert json.loads((Path(trained.run) / "evaluation-test.json").read_text()) == found[-1]


def test_kept_predictions_are_in_order_and_serve_a_comparison(trained: Trained) -> None:
    for run in (trained.run, f"{trained.run}-2"):
        trained.done("evaluate", run, "--save-predictions", size=3)
    truth = truth_of_the_test_data()
    with np.load(Path(trained.run) / "predictions-test.npz") as kept:
        assert np.array_equal(kept["targets"], truth)
        share = (kept["outputs"].argmax(1) == truth).mean()
    found = json.loads(trained.done("compare", trained.run, f"{trained.run}-2", "--json"))
    (row,) = found["rows"]
    assert row["runs"] == [trained.run, f"{trained.run}-2"] and row["spread"] is not None
    alone = json.loads(trained.done("compare", trained.run, "--json"))["rows"][0]
    assert alone["value"] == share
    assert alone["interval"][0] < share < alone["interval"][1]


def test_predictions_do_not_depend_on_the_number_of_workers(trained: Trained, tmp_path: Path) -> None:
    inputs = tmp_path / "all.npy"
    np.save(inputs, digits()[0])
    written = []
    for size in (1, 2, 3):
        out = tmp_path / f"{size}.csv"
        words = ("--kind", "probabilities", "--id", "image_id", "--columns", "first=p0,last=p9", "--out", str(out))
        trained.done("apply", trained.run, f"{trained.run}-2", str(inputs), *words, size=size)
        written.append(out.read_bytes())
    assert written[0] == written[1] == written[2]
    rows = list(csv.reader(written[0].decode().splitlines()))
    assert rows[0] == ["image_id", "first", "last"]
    assert [row[0] for row in rows[1:]] == [str(index) for index in range(1797)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.csv", "2.csv", "3.csv", "all.npy"]


def test_the_mean_of_runs_is_that_of_their_probabilities(trained: Trained, tmp_path: Path) -> None:
    sets = {"both": (trained.run, f"{trained.run}-2"), "one": (trained.run,), "two": (f"{trained.run}-2",)}
    for name, runs in sets.items():
        trained.done("apply", *runs, "--kind", "probabilities", "--out", str(tmp_path / f"{name}.npy"))
    both, one, two = (np.load(tmp_path / f"{name}.npy") for name in sets)
    assert both == pytest.approx((one + two) / 2, abs=1e-7)


def test_a_killed_apply_resumes_where_it_stopped(trained: Trained, tmp_path: Path) -> None:
    whole, out = tmp_path / "whole.csv", tmp_path / "out.csv"
    trained.done("apply", trained.run, "--out", str(whole))
    parts = tmp_path / "out.csv.parts"
    gate = trained.folder / "gate"
    gate.touch()
    words = ["apply", trained.run, "--out", str(out)]
    held = subprocess.Popen(
        [sys.executable, "-m", "unisono.cli", *words, "-n", "2"], env=plain_environment(), stdout=subprocess.DEVNULL
    )
    try:
        deadline = monotonic() + LIMIT_S
        while len(list(parts.glob("piece-*.npy"))) < 8:
            assert held.poll() is None and monotonic() < deadline
        ranks = psutil.Process(held.pid).children(recursive=True)
    finally:
        held.kill()
        held.wait(LIMIT_S)
        gate.unlink()
    psutil.wait_procs(ranks, LIMIT_S)
    assert not out.exists()
    (parts / "piece-0123456789abcdef-00000.npy").write_bytes(b"of other weights")
    output = trained.done(*words, size=3)
    assert "removed 1 piece of another command" in output
    assert "resumed: 8 of 16 pieces are already done" in output
    assert out.read_bytes() == whole.read_bytes()
    assert not parts.exists()


def test_a_task_or_weights_or_data_that_changed_are_refused(trained: Trained, tmp_path: Path) -> None:
    changed = tmp_path / "held.py"
    changed.write_text(TASK.replace("seed=1", "seed=2"))
    assert "has changed since it was trained: held.py (sha256" in trained.refused("evaluate", trained.run, "--task", str(changed))
    trained.done("evaluate", trained.run, "--task", str(changed), "--accept-changes", "--split", "validation")
    run = tmp_path / "run"
    copytree(trained.run, run)
    copy(Path(f"{trained.run}-2") / "weights.safetensors", run)
    assert "does not hold the weights that this run wrote" in trained.refused("evaluate", str(run), size=2)
    (run / "weights.safetensors").write_bytes(b"cut")
    assert "cannot be read as safetensors" in trained.refused("evaluate", str(run))
    summary = json.loads((run / "summary.json").read_text())
    summary["provenance"]["task"]["file"] = str(tmp_path / "gone.py")
    config = json.loads((run / "config.json").read_text())
    config["task_file"] = "gone.py"
    (run / "summary.json").write_text(json.dumps(summary))
    (run / "config.json").write_text(json.dumps(config))
    assert "is not there any more" in trained.refused("apply", str(run), "--out", str(tmp_path / "x.csv"))


def test_bad_input_is_one_message_and_loses_nothing(trained: Trained, tmp_path: Path) -> None:
    np.save(tmp_path / "narrow.npy", digits()[0][:, :10])
    np.save(tmp_path / "two.npy", digits()[0][:2])
    out = tmp_path / "out.csv"
    narrow = trained.refused("apply", trained.run, str(tmp_path / "narrow.npy"), "--out", str(out), size=2)
    assert "cannot take the first samples of" in narrow and "narrow.npy" in narrow
    assert "3 workers are too many for 2 samples" in trained.refused(
        "apply", trained.run, str(tmp_path / "two.npy"), "--out", str(out), size=3
    )
    assert "cannot write" in trained.refused("apply", trained.run, "--out", str(tmp_path / "two.npy" / "out.csv"), size=2)
    out.write_text("precious")
    assert "exists already" in trained.refused("apply", trained.run, "--out", str(out))
    assert out.read_text() == "precious"
    trained.done("apply", trained.run, "--out", str(out), "--overwrite")
    assert out.read_text().startswith("index,label\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["narrow.npy", "out.csv", "two.npy"]
