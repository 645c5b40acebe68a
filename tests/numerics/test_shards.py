"""Cut into shards, a training gives the same bits with any number of workers, on any engine, also if they change."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.system.nursery import Nursery
from tests.system.processes import plain_environment, run_together
from unisono.model.flat import hash_of
from unisono.training.weights import load_weights

PROGRAM = Path(__file__).parents[1] / "ranks" / "programs" / "goes_on.py"
TRAIN = ["-m", "unisono.cli", "train", "task.py", "--quiet", "--log-every", "1", "--checkpoint-every", "3", "--out"]
STOPPED = 75
LIMIT_S = 100.0


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(PROGRAM, "task.py")


def train(nursery: Nursery, out: str, workers: int, engine: str, *options: str, code: int = 0) -> None:
    ended = nursery.run([*TRAIN, out, *options], workers, engine)
    assert ended.exit_code == code, ended


def found(out: str) -> dict[str, Any]:
    """All that must not depend on the number of workers: weights, metrics, the record of steps, the last checkpoint."""
    summary = json.loads(Path(out, "summary.json").read_text())
    rows = [json.loads(line) for line in Path(out, "metrics.jsonl").read_text().splitlines()]
    newest = max(Path(out, "checkpoints").glob("step-*"))
    return {
        "weights": summary["weights_sha256"],
        "epochs": [(epoch["weights"], epoch["metrics"]) for epoch in summary["history"]],
        "metrics": summary["metrics"],
        "steps": [(row["step"], row["loss"], row["metrics"]) for row in rows if row["event"] == "step"],
        "state": hash_of(load_weights(newest / "state.safetensors")[0]),
    }


@pytest.mark.parametrize(
    "options",
    [
        ("--shards", "5"),
        ("--shards", "6", "--set", "optimizer=sgd", "--set", "optimizer.momentum=0.9", "--set", "clip_norm=0.5"),
    ],
    ids=["adam", "sgd"],
)
def test_every_division_gives_the_same_bits(nursery: Nursery, options: tuple[str, ...]) -> None:
    """Dropout, batch-norm, a counter, an evaluation that draws, uneven shards, a short last batch."""
    short = ("--epochs", "2", *options)
    train(nursery, "one", 1, "single", *short)
    expected = found("one")
    for workers, engine in ((2, "shm"), (3, "gloo"), (4, "shm")):
        out = f"{workers}-{engine}"
        train(nursery, out, workers, engine, *short)
        assert found(out) == expected, out


def test_mpi_gives_the_same_bits(nursery: Nursery) -> None:
    options = ("--epochs", "1", "--shards", "3")
    train(nursery, "one", 1, "single", *options)
    as_root = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
    mpirun = str(Path(sys.executable).parent / "mpirun")
    command = [mpirun, *as_root, "--oversubscribe", "-n", "2", sys.executable, *TRAIN, "mpi", *options, "--engine", "mpi"]
    (outcome,) = run_together([command], plain_environment(), LIMIT_S)
    assert outcome.code == 0, str(outcome)
    assert found("mpi") == found("one")


def test_other_workers_in_the_middle_of_an_epoch(nursery: Nursery) -> None:
    options = ("--shards", "4", "--epochs", "2")
    train(nursery, "undisturbed", 2, "shm", *options)
    for workers, engine, stop in ((4, "shm", "train 4"), (3, "gloo", "train 5"), (1, "single", "")):
        if stop:
            Path("stop-at").write_text(stop)
        train(nursery, "run", workers, engine, *options, code=STOPPED if stop else 0)
    assert found("run") == found("undisturbed")


def test_without_shards_it_depends_on_the_workers(nursery: Nursery) -> None:
    """Otherwise the tests above would show nothing."""
    for workers, engine in ((1, "single"), (2, "shm")):
        train(nursery, engine, workers, engine, "--epochs", "1")
    assert found("single")["weights"] != found("shm")["weights"]


def test_one_shard_is_a_plain_training(nursery: Nursery) -> None:
    """But for the rounding of running statistics, which are moved by a difference."""
    threads = ("--threads", "1", "--epochs", "1")
    train(nursery, "plain", 1, "single", *threads)
    train(nursery, "sharded", 1, "single", *threads, "--shards", "1")
    assert found("sharded")["steps"] == found("plain")["steps"]
    assert found("sharded")["metrics"] == pytest.approx(found("plain")["metrics"], rel=1e-5)
