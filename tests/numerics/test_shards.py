"""Cut into shards, a training gives the same bits with any number of workers, on any engine, also if they change."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.system.fork_server import ForkServer
from unisono.model.flat import hash_of
from unisono.training.run_folder.weights import load_weights

PROGRAM = Path(__file__).parents[1] / "ranks" / "programs" / "resume.py"
TRAIN = ["-m", "unisono.cli", "train", "task.py", "--quiet", "--log-every", "1", "--checkpoint-every", "3", "--out"]
STOPPED = 75


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(PROGRAM, "task.py")


def train(fork_server: ForkServer, out: str, workers: int, engine: str, *options: str, code: int = 0) -> None:
    ended = fork_server.run([*TRAIN, out, *options], workers, engine)
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
def test_every_division_gives_the_same_bits(fork_server: ForkServer, options: tuple[str, ...]) -> None:
    """Dropout, batch-norm, a counter, an evaluation that draws, uneven shards, a short last batch."""
    short = ("--epochs", "2", *options)
    train(fork_server, "one", 1, "single", *short)
    expected = found("one")
    for workers, engine in ((2, "shm"), (3, "gloo"), (4, "shm")):
        out = f"{workers}-{engine}"
        train(fork_server, out, workers, engine, *short)
        assert found(out) == expected, out


def test_mpi_gives_the_same_bits(fork_server: ForkServer) -> None:
    options = ("--epochs", "1", "--shards", "3")
    train(fork_server, "one", 1, "single", *options)
    ended = fork_server.run_mpi([*TRAIN, "mpi", *options, "--engine", "mpi"], 2)
    assert ended.exit_code == 0, str(ended)
    assert found("mpi") == found("one")


def test_other_workers_in_the_middle_of_an_epoch(fork_server: ForkServer) -> None:
    options = ("--shards", "4", "--epochs", "2")
    train(fork_server, "undisturbed", 2, "shm", *options)
    for workers, engine, stop in ((4, "shm", "train 4"), (3, "gloo", "train 5"), (1, "single", "")):
        if stop:
            Path("stop-at").write_text(stop)
        train(fork_server, "run", workers, engine, *options, code=STOPPED if stop else 0)
    assert found("run") == found("undisturbed")


def test_without_shards_it_depends_on_the_workers(fork_server: ForkServer) -> None:
    """Otherwise the tests above would show nothing."""
    for workers, engine in ((1, "single"), (2, "shm")):
        train(fork_server, engine, workers, engine, "--epochs", "1")
    assert found("single")["weights"] != found("shm")["weights"]


def test_one_shard_is_a_plain_training(fork_server: ForkServer) -> None:
    """But for the rounding of running statistics, which are moved by a difference."""
    threads = ("--threads", "1", "--epochs", "1")
    train(fork_server, "plain", 1, "single", *threads)
    train(fork_server, "sharded", 1, "single", *threads, "--shards", "1")
    assert found("sharded")["steps"] == found("plain")["steps"]
    assert found("sharded")["metrics"] == pytest.approx(found("plain")["metrics"], rel=1e-5)


ODD = '''
import torch
from torch import nn
import unisono as un


class Odd(nn.Module):
    """Buffers that are complex, large, replaced, or changed in evaluations; a layer that few steps use, and one that is frozen."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16, momentum=None), nn.ReLU(), nn.Dropout(), nn.Linear(16, 1))
        self.spare = nn.Linear(1, 1)
        self.frozen = nn.Linear(1, 1).requires_grad_(False)
        self.register_buffer("turn", torch.polar(torch.ones(3), torch.arange(3.0)))
        self.register_buffer("large", torch.tensor(2**60 + 1))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("looks", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(64), persistent=False)
        self.register_buffer("top", torch.tensor(-torch.inf))
        self.register_buffer("never", torch.tensor([torch.inf, -torch.inf]))

    def forward(self, inputs):
        self.looks += 1
        if self.training:
            self.seen = self.seen + 1
            self.mean = 0.9 * self.mean + 0.1 * inputs.mean(0)
            self.top.copy_(torch.maximum(self.top, inputs.max()))
        outputs = self.body(inputs - self.mean) + 1e-3 * self.looks
        if self.training and int(self.seen) % 5 == 0:
            outputs = outputs + self.spare(outputs)
        return (outputs + 0.1 * self.frozen(outputs)).squeeze(1) * self.turn[1].imag


def noisy(batch, random):
    inputs, *rest = batch
    return (inputs + 0.1 * random.normal((64,)).astype("float32"), *rest)


def data():
    inputs, targets = un.digits()
    few = (inputs[:500], (targets[:500] < 5).astype("float32"), (1.0 + targets[:500] % 3).astype("float32"))
    return un.split(few, validation=0.2, test=0.2)


task = un.Task(
    model=Odd, data=data, loss="bce", metrics=("accuracy", "auc"), optimizer="adam", lr=0.01, global_batch=64, epochs=2,
    augment=noisy, clip_norm=0.3, shards=7,
)
'''
LEARNER = '''
import torch
from torch import nn
from torch.nn import functional as F
import unisono as un


class Learner(nn.Module):
    """Told to be a LightningModule by its methods. Its hooks draw."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
        self.register_buffer("mask", torch.ones(64))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)

    def on_train_epoch_start(self):
        self.mask.copy_((torch.rand(64) > 0.2).float())

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self.net(batch[0] * self.mask), batch[1])

    def validation_step(self, batch, batch_idx):
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("val_loss", loss)
        return loss

    def on_validation_epoch_end(self):
        self.log("drawn", torch.rand(()))


def data():
    inputs, targets = un.digits()
    return un.split((inputs[:500], targets[:500]), validation=0.2, test=0.0)


task = un.Task(model=Learner, data=data, global_batch=48, epochs=3, shards=6)
'''


@pytest.mark.parametrize("text", [ODD, LEARNER], ids=["odd", "learner"])
def test_whatever_a_model_holds(fork_server: ForkServer, text: str) -> None:
    Path("task.py").write_text(text)
    train(fork_server, "one", 1, "single")
    expected = found("one")
    train(fork_server, "three", 3, "shm")
    assert found("three") == expected
    assert hash_of(load_weights(Path("three", "best.safetensors"))[0]) == hash_of(load_weights(Path("one", "best.safetensors"))[0])
    weights = load_weights(Path("one", "weights.safetensors"))[0]
    if "large" in weights:
        assert int(weights["large"]) == 2**60 + 1 and bool((weights["turn"].imag[1:] != 0).all())
        assert weights["never"].tolist() == [float("inf"), -float("inf")] and bool(weights["top"].isfinite())
        assert int(weights["seen"]) == 2 * 5, "as if every step were one batch"


DECLARED = """
from torch import nn
import unisono as un


def data():
    inputs, targets = un.digits()
    whole = un.as_source((inputs[:500].reshape(-1, 1, 8, 8).astype("uint8"), targets[:500]))
    return un.split(whole.map_inputs(un.Scale(1 / 16)), validation=0.2, test=0.0)


task = un.Task(
    model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)), data=data,
    loss="cross_entropy", metrics=("accuracy",), lr=0.5, global_batch=48, epochs=2,
    augment=un.augment.Chain(un.augment.Shift(1), un.augment.Rotate(10)),
)
"""


def test_declared_changes_do_not_depend_on_the_workers(fork_server: ForkServer) -> None:
    """With shards not at all; without them within the rounding of sums."""
    Path("task.py").write_text(DECLARED)
    for workers, engine in ((1, "single"), (2, "shm")):
        train(fork_server, f"shards-{workers}", workers, engine, "--shards", "4")
        train(fork_server, f"plain-{workers}", workers, engine)
    assert found("shards-1") == found("shards-2")
    one, two = ([step[1] for step in found(f"plain-{workers}")["steps"]] for workers in (1, 2))
    assert one == pytest.approx(two, rel=1e-4)
    Path("task.py").write_text(DECLARED.replace("un.augment.Shift(1), ", ""))
    train(fork_server, "other", 1, "single", "--shards", "4")
    assert found("other")["weights"] != found("shards-1")["weights"]


def test_shards_and_none_in_one_run(fork_server: ForkServer) -> None:
    """Another experiment, in the middle of an epoch; but one that can be had, both ways."""
    for first, second in ((("--shards", "4"), ()), ((), ("--shards", "4"))):
        out = f"from-{len(first)}"
        Path("stop-at").write_text("train 6")
        train(fork_server, out, 2, "shm", *first, code=STOPPED)
        train(fork_server, out, 2, "shm", *second, "--accept-changes")
        assert json.loads(Path(out, "summary.json").read_text())["replicas_equal"]


def test_what_the_model_may_not_do(fork_server: ForkServer) -> None:
    """It is told once, with its name, before much work is done."""
    for line, told in (
        ("self.frozen.weight.data.mul_(0.9)", "the model itself changes its frozen parameter frozen.weight"),
        (
            "self.training and self.register_buffer('late', torch.zeros(3))",
            "the buffer late of the model was created",
        ),
        ("nn.MaxUnpool2d(2)(torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1, dtype=torch.int64))", "has no deterministic version"),
    ):
        Path("task.py").write_text(ODD.replace("        self.looks += 1\n", f"        {line}\n"))
        ended = fork_server.run([*TRAIN, "run", "--fresh"], 1, "single")
        assert ended.exit_code == 2 and told in ended.output and "Traceback" not in ended.output, ended
