"""Workers that share one GPU: with shards their number changes no bit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason="PyTorch sees no GPU; run on a machine with an NVIDIA GPU and a CUDA build of PyTorch: pytest -m gpu",
    ),
]

ROOT = Path(__file__).parents[2]
LIMIT_S = 110


def trained(out: Path, task: Path, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "unisono", "train", str(task), "--out", str(out), "--quiet", "--shards", "4", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=task.parent, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads((out / "summary.json").read_text())
    assert found["device"].startswith("cuda"), found["device"]
    return found


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--set", "optimizer=sgd", "--set", "optimizer.momentum=0.9"),
    ],
    ids=["adam", "sgd"],
)
def test_one_and_two_processes_give_the_same_bits(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Dropout, batch-norm, and an evaluation that draws."""
    shutil.copy(ROOT / "tests" / "ranks" / "programs" / "resume.py", tmp_path / "task.py")
    compare(tmp_path, tmp_path / "task.py", options)


def test_a_convolutional_network(tmp_path: Path) -> None:
    compare(tmp_path, ROOT / "bench" / "sharded_task.py", ("--set", "model.kind=norm", "--set", "optimizer=adam"))


def compare(folder: Path, task: Path, options: tuple[str, ...]) -> None:
    one = trained(folder / "one", task, *options)
    for workers in ("2", "3"):
        several = trained(folder / workers, task, *options, "-n", workers, "--engine", "shm", "--device", "cuda")
        assert several["num_workers"] == int(workers)
        for name in ("weights_sha256", "metrics"):
            assert several[name] == one[name], f"{workers} processes: {name}"
