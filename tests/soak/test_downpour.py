"""Downpour with its defaults gives the accuracy of all-reduce whatever the order of calls: real processes, 20 runs of each size."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.system.fork_server import ForkServer

DIGITS = Path(__file__).parents[2] / "examples" / "digits.py"
NUM_RUNS = 20
TOLERANCE = 0.03
EPOCHS = "15"

pytestmark = pytest.mark.soak


def accuracy(fork_server: ForkServer, size: int, algorithm: str, seed: int) -> float:
    out = f"{algorithm}-{size}-{seed}"
    program = ["-m", "unisono", "train", "task.py", "--algorithm", algorithm, "--epochs", EPOCHS, "--seed", str(seed), "--out", out]
    ended = fork_server.run(program, size, "shm" if size > 1 else "single")
    assert ended.exit_code == 0, ended
    return float(json.loads(Path(out, "summary.json").read_text())["metrics"]["test_accuracy"])


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_run_is_as_good_as_all_reduce(
    fork_server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """One of the processes is the server."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(DIGITS, "task.py")
    in_step = [accuracy(fork_server, 1, "allreduce", seed) for seed in range(NUM_RUNS)]
    found = [accuracy(fork_server, size, "downpour", seed) for seed in range(NUM_RUNS)]
    print(f"{size} processes: all-reduce {min(in_step):.4f} to {max(in_step):.4f}, downpour {min(found):.4f} to {max(found):.4f}")
    missed = [(seed, one, other) for seed, (one, other) in enumerate(zip(found, in_step, strict=True)) if one < other - TOLERANCE]
    assert not missed, missed
