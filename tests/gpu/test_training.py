"""A whole training on a GPU: sums act one step later, updates are masked on the device, and a stopped run goes on bit for bit."""

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


def summary(out: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(out) / "summary.json").read_text())
    return found


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "rmsprop"])
def test_stop_and_resume(optimizer: str) -> None:
    """The first two are fused, so the host hears of a step one later; the third is not."""
    options = ["--quiet", "--log-every", "1", "--set", f"optimizer={optimizer}", "--lr", "0.01"]
    assert main(["train", "task.py", "--out", "undisturbed", *options]) == 0
    assert summary("undisturbed")["device"].startswith("cuda")
    Path("stop-at").write_text("train 9")
    assert main(["train", "task.py", "--out", "run", *options]) == STOPPED
    assert main(["train", "task.py", "--out", "run", *options]) == 0
    for name in ("weights_sha256", "metrics", "steps", "best_epoch"):
        assert summary("run")[name] == summary("undisturbed")[name], name
    losses = [epoch["metrics"]["loss"] for epoch in summary("run")["history"]]
    assert losses[-1] < losses[0], "it learns"


def test_saves_by_step_change_nothing() -> None:
    assert main(["train", "task.py", "--out", "undisturbed", "--quiet", "--checkpoint-every", "never"]) == 0
    assert main(["train", "task.py", "--out", "run", "--quiet", "--checkpoint-every", "3"]) == 0
    assert summary("run")["weights_sha256"] == summary("undisturbed")["weights_sha256"]


def test_an_update_that_is_not_finite_is_left_out_on_the_device() -> None:
    text = Path("task.py").read_text()
    # A number of Python's own: a counter of the model is put back with the step that is left out.
    spoil = ("self.calls = getattr(self, 'calls', 0) + 1", "outputs = outputs * (torch.inf if self.calls == 4 else 1.0)")
    Path("task.py").write_text(text.replace("self.count += 1", "\n            ".join(("self.count += 1", *spoil))))
    assert main(["train", "task.py", "--out", "run", "--quiet", "--on-nan", "skip"]) == 0
    found = summary("run")
    assert found["num_skipped_updates"] == 1 and found["metrics"]["val_accuracy"] > 0.5
