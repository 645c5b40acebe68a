"""Workers that learn by themselves, on a GPU: the sums of a step come one later, and those of a round still at its end."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from unisono.cli import main

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason="PyTorch sees no GPU; run on a machine with an NVIDIA GPU and a CUDA build of PyTorch: pytest -m gpu",
    ),
]

PROGRAM = Path(__file__).parents[1] / "ranks" / "programs" / "resume.py"
STOPPED = 75


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    shutil.copy(PROGRAM, "task.py")
    yield
    sys.modules.pop("task", None)


def train(out: str, *options: str) -> int:
    return main(["train", "task.py", "--out", out, "--quiet", "--log-every", "1", *options])


def found(out: str) -> dict[str, Any]:
    summary = json.loads((Path(out) / "summary.json").read_text())
    assert summary["device"].startswith("cuda")
    rows = [json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]
    losses = [(row["step"], row["loss"]) for row in rows if row["event"] == "step"]
    return {"losses": losses, **{name: summary[name] for name in ("weights_sha256", "metrics", "steps")}}


@pytest.mark.parametrize("algorithm", ["local_sgd", "post_local_sgd"])
def test_one_worker_is_plain_training(algorithm: str) -> None:
    switch = ("--set", "algorithm.switch_step=7") if algorithm == "post_local_sgd" else ()
    assert train("plain") == 0
    assert train("rounds", "--algorithm", algorithm, "--set", "algorithm.period=4", *switch) == 0
    assert found("rounds") == found("plain")


def test_stop_and_resume_while_an_exchange_is_in_flight() -> None:
    options = (
        "--algorithm",
        "diloco",
        "--set",
        "algorithm.period=4",
        "--set",
        "algorithm.overlap=2",
        "--set",
        "algorithm.wire=bf16",
    )
    assert train("undisturbed", *options) == 0
    assert train("run", *options, "--max-steps", "5") == STOPPED
    assert train("run", *options) == 0
    assert found("run") == found("undisturbed")
