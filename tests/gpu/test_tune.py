"""A search whose workers share one GPU, and whose task asks for it before they are forked."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from tests.system.processes import plain_environment, run_together
from tests.system.studies import all_ended_once
from unisono.tuning.study.study import COMPLETE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason="PyTorch sees no GPU; run on a machine with an NVIDIA GPU and a CUDA build of PyTorch: pytest -m gpu",
    ),
]

DIGITS = Path(__file__).parents[2] / "examples" / "digits.py"
LIMIT_S = 100.0
NUM_TRIALS = 4
SPACE = "[lr]\nlow = 0.01\nhigh = 1.0\nlog = true\n"
LINES = {
    "that does not look at the GPU": "",
    "that asks whether there is one": "\nimport torch\n\nassert torch.cuda.is_available()\n",
    "that uses it while it is loaded": "\nimport torch\n\nassert torch.zeros(1, device='cuda').is_cuda\n",
}


@pytest.mark.parametrize("what", LINES)
def test_two_workers_share_a_gpu(what: str, tmp_path: Path) -> None:
    """Those of the last cannot be forked, and load the task themselves."""
    (tmp_path / "task.py").write_text(DIGITS.read_text() + LINES[what])
    (tmp_path / "space.toml").write_text(SPACE)
    study = tmp_path / "study"
    given = ("--space", str(tmp_path / "space.toml"), "--trials", str(NUM_TRIALS), "--epochs", "1", "--out", str(study))
    environment = {**plain_environment(), "CUDA_VISIBLE_DEVICES": "0"}
    command = [sys.executable, "-m", "unisono", "tune", str(tmp_path / "task.py"), "-n", "2", *given]
    (outcome,) = run_together([command], environment, LIMIT_S)
    assert outcome.code == 0, str(outcome)
    assert {result.state for result in all_ended_once(study, NUM_TRIALS).values()} == {COMPLETE}, str(outcome)
    for number in range(NUM_TRIALS):
        summary = json.loads((study / "trials" / f"{number:06d}" / "fold-0" / "summary.json").read_text())
        assert summary["device"].startswith("cuda"), "a worker that finds no GPU would learn on the CPU without a word"
