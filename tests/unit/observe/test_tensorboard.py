"""TensorBoard on request: refused before work starts where its package is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.unit.observe.made_up_run import replay_run
from unisono.errors import UsageError
from unisono.observe.tensorboard import TensorBoard


def test_without_the_package_it_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # as if it were not installed
    with pytest.raises(UsageError, match=r"needs the package tensorboard.*; pip install tensorboard"):
        TensorBoard(tmp_path)


def test_written_events_can_be_read_back(tmp_path: Path) -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard: pip install tensorboard"
    )
    replay_run([TensorBoard(tmp_path, log_every=10)])
    assert "tensorflow" not in sys.modules, "nobody asked for it"
    found = accumulator.EventAccumulator(str(tmp_path)).Reload()
    assert [(one.step, one.value) for one in found.Scalars("step/loss")] == [(1, 0.5), (11, 0.5), (21, 0.5)]
    assert [one.step for one in found.Scalars("epoch/val_loss")] == [10, 20, 30]
    assert {"step/lr", "step/accuracy", "epoch/val_accuracy", "epoch/samples_per_s"} <= set(found.Tags()["scalars"])
