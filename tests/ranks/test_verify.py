"""`unisono verify`: the same bits with another number of workers, and what it says when one bit is not."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.system.fork_server import ForkServer
from tests.system.processes import plain_environment, run_together

UNISONO = str(Path(sys.executable).parent / "unisono")
LIMIT_S = 100.0
TASK = """
import os, pathlib
import torch
from torch import nn
import unisono as un

def model():
    net = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 10))
    calls = []

    def planted(gradient):
        # One bit of one gradient on one rank, in the fifth shard that it computes.
        calls.append(1)
        if pathlib.Path("plant").exists() and os.environ.get("UNISONO_RANK") == "1" and len(calls) == 5:
            bits = gradient.clone().view(torch.int32)
            bits[0, 0] ^= 1 << 30  # the lowest would be lost in the sum with others
            return bits.view(torch.float32)
        return None

    net[3].weight.register_hook(planted)
    return net

def data():
    inputs, targets = un.digits()
    return un.split((inputs[:400], targets[:400]), validation=0.2, test=0.0)

task = un.Task(model=model, data=data, loss="cross_entropy", optimizer="adam", lr=0.01, global_batch=40, epochs=1, shards=4)
"""


def unisono(*words: str, code: int = 0) -> str:
    (outcome,) = run_together([[UNISONO, *words]], plain_environment(), LIMIT_S)
    assert outcome.code == code, str(outcome)
    return outcome.output


def train(fork_server: ForkServer, workers: int, *options: str) -> None:
    command = ["-m", "unisono.cli", "train", "task.py", "--out", "run", "--quiet", *options]
    ended = fork_server.run(command, workers, "auto", LIMIT_S)
    assert ended.exit_code == 0, str(ended)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("task.py").write_text(TASK)


def test_the_same_bits_and_one_that_is_not(fork_server: ForkServer) -> None:
    train(fork_server, 1, "--hash-every", "1")
    assert "the same bits: run, 4 steps up to step 4, with 1 worker and 2 workers" in unisono("verify", "run", "--steps", "4")
    Path("plant").touch()
    said = unisono("verify", "run", "-n", "2", code=1)
    assert "DIFFERENT: run after step 3: 3.weight" in said, "its fifth shard is the first of its third step"


def test_a_whole_training_again(fork_server: ForkServer) -> None:
    train(fork_server, 2)
    sha256 = json.loads(Path("run/summary.json").read_text())["weights_sha256"]
    assert f"all 8 steps, with 2 workers and 1 worker: {sha256}" in unisono("verify", "run", "--whole")


def test_what_cannot_be_verified() -> None:
    assert "run has no results" in unisono("verify", "run", code=2)
    Path("run").mkdir()
    Path("run/summary.json").write_text(json.dumps({"config": {"settings": {"shards": None}}}))
    assert "trained without --shards" in unisono("verify", "run", code=2)
    assert "-n must be at least 1" in unisono("verify", "run", "-n", "0", code=2)
