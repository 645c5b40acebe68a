"""The thread that writes checkpoints: one at a time, and what fails is told and not raised."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.unit.training.checkpointing.snapshots import MADE_BY, names, same, snapshot
from unisono.training.checkpointing.background_writer import BackgroundWriter
from unisono.training.checkpointing.checkpoint import Checkpoints, Snapshot

LIMIT_S = 60.0


def state(writer: BackgroundWriter) -> tuple[int, str | None]:
    return writer.num_failed, writer.failure


def test_it_writes_one_after_another_in_a_thread_that_ends(tmp_path: Path) -> None:
    writer = BackgroundWriter(Checkpoints(tmp_path, keep=2), MADE_BY)
    assert (writer.busy, writer.wait(), writer.last_write_s) == (False, True, None)
    for step in (1, 2, 3):
        writer.submit(snapshot(step))
        assert writer.wait(LIMIT_S)
        assert state(writer) == (0, None)
        assert writer.last_write_s is not None
        assert writer.last_write_s > 0
    writer.close()
    writer.close()
    assert names(tmp_path) == ["step-00000002", "step-00000003"]
    assert "unisono-checkpoint" not in [thread.name for thread in threading.enumerate()]


def test_while_it_writes_it_is_busy_and_takes_nothing_more(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")

    class AtAGate(Checkpoints):
        """Begins when somebody opens the gate."""

        def write(self, snapshot: Snapshot, made_by: Mapping[str, Any]) -> Path:
            (tmp_path / "gate").read_bytes()
            return super().write(snapshot, made_by)

    writer = BackgroundWriter(AtAGate(tmp_path / "checkpoints", keep=1), MADE_BY)
    writer.submit(snapshot(1))
    try:
        assert writer.busy
        assert not writer.wait(timeout_s=0.0)
        assert "unisono-checkpoint" in [thread.name for thread in threading.enumerate()]
        with pytest.raises(RuntimeError, match=r"step 2 must wait until `busy` is False"):
            writer.submit(snapshot(2))
    finally:
        (tmp_path / "gate").write_bytes(b"open")
        writer.close()
    found = Checkpoints(tmp_path / "checkpoints", keep=1).newest()
    assert found is not None
    assert same(found.snapshot, snapshot(1))


def test_a_failure_is_kept_until_a_write_succeeds(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    writer = BackgroundWriter(Checkpoints(folder, keep=1), MADE_BY)
    writer.submit(snapshot(1))
    writer.wait(LIMIT_S)
    told = "cannot write {}: No such file or directory; give another place (--out)"
    assert state(writer) == (1, told.format(folder / "step-00000001"))
    folder.parent.mkdir()
    writer.submit(snapshot(2))
    writer.wait(LIMIT_S)
    assert state(writer) == (1, None)
    shutil.rmtree(folder.parent)
    writer.submit(snapshot(3))
    writer.close()
    assert state(writer) == (2, told.format(folder / "step-00000003"))


def test_a_mistake_in_the_program_does_not_end_the_training_either(tmp_path: Path) -> None:
    writer = BackgroundWriter(Checkpoints(tmp_path, keep=1), MADE_BY)
    writer.submit(Snapshot(1, {}, {"function": print}))
    writer.close()
    assert writer.failure is not None
    assert writer.failure.startswith("cannot write the checkpoint of step 1: TypeError:")
    assert names(tmp_path) == []
