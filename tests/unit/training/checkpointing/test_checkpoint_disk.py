"""Disks that are full, read-only or gone while a checkpoint is written: the last good one stays, and later ones are written."""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.unit.training.checkpointing.snapshots import MADE_BY, names, same, snapshot
from unisono.errors import UsageError
from unisono.training.checkpointing.checkpoint import Checkpoints, Snapshot

DISK_BYTES = 1 << 20
PAGE_BYTES = 4096
NUMEL = 30_000
"""Of a checkpoint that takes 120 kB."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("a small disk is mounted, which needs root; run the tests as root")
    options = f"size={DISK_BYTES},nr_inodes=64"
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, text=True, timeout=30)
    if made.returncode:
        pytest.skip(f"mount fails ({made.stderr.strip()}); a container needs the capability SYS_ADMIN")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True, timeout=30)


def newest_step(folder: Path) -> int:
    """Of the newest checkpoint, which must be whole."""
    found = Checkpoints(folder, keep=2).newest()
    assert found is not None
    assert found.damaged == ()
    assert same(found.snapshot, snapshot(found.snapshot.step, NUMEL))
    return found.snapshot.step


def test_a_disk_that_fills_at_a_random_write(disk: Path) -> None:
    folder, filler = disk / "checkpoints", disk / "filler"
    checkpoints = Checkpoints(folder, keep=2)
    for step in (1, 2):
        checkpoints.write(snapshot(step, NUMEL), MADE_BY)
    needed = shutil.disk_usage(disk).used // 2 - PAGE_BYTES  # best weights may be a link, which takes no page
    draw = random.Random(4)
    for step in range(3, 33):
        there = names(folder)
        room = draw.choice([draw.randrange(needed), draw.randrange(needed - 4 * PAGE_BYTES, needed)])
        filler.write_bytes(bytes(max(0, shutil.disk_usage(disk).free - room)))
        with pytest.raises(UsageError, match=r"cannot write .*step-000000.*: No space left on device; free some space"):
            checkpoints.write(snapshot(step, NUMEL), MADE_BY)
        assert names(folder) == there, "no draft is left, and nothing under a good name"
        assert newest_step(folder) == step - 1
        filler.unlink()
        checkpoints.write(snapshot(step, NUMEL), MADE_BY)
        assert newest_step(folder) == step


@pytest.mark.parametrize("num_free", range(5))
def test_a_disk_that_can_take_no_more_files(disk: Path, num_free: int) -> None:
    folder, fillers = disk / "checkpoints", disk / "fillers"
    checkpoints = Checkpoints(folder, keep=2)
    checkpoints.write(snapshot(1, NUMEL), MADE_BY)
    fillers.mkdir()
    for number in range(os.statvfs(disk).f_ffree - num_free):
        (fillers / str(number)).touch()
    assert os.statvfs(disk).f_ffree == num_free
    with pytest.raises(UsageError, match="No space left on device"):
        checkpoints.write(snapshot(2, NUMEL), MADE_BY)
    assert names(folder) == ["step-00000001"]
    assert newest_step(folder) == 1
    shutil.rmtree(fillers)
    checkpoints.write(snapshot(2, NUMEL), MADE_BY)
    assert newest_step(folder) == 2


def test_a_full_disk_is_freed_of_what_a_killed_process_left(disk: Path) -> None:
    folder = disk / "checkpoints"
    checkpoints = Checkpoints(folder, keep=1)
    checkpoints.write(snapshot(1, NUMEL), MADE_BY)
    draft = folder / ".step-00000002.12345.draft"
    draft.mkdir()
    (draft / "state.safetensors").write_bytes(bytes(shutil.disk_usage(disk).free))
    checkpoints.write(snapshot(3, NUMEL), MADE_BY)
    assert names(folder) == ["step-00000003"]


def test_a_disk_that_becomes_read_only(disk: Path) -> None:
    folder = disk / "checkpoints"
    checkpoints = Checkpoints(folder, keep=2)
    checkpoints.write(snapshot(1, NUMEL), MADE_BY)
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True, timeout=30)
    with pytest.raises(UsageError, match=r"Read-only file system; give a place where you may write \(--out\)"):
        checkpoints.write(snapshot(2, NUMEL), MADE_BY)
    assert newest_step(folder) == 1
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True, timeout=30)
    checkpoints.write(snapshot(3, NUMEL), MADE_BY)
    assert names(folder) == ["step-00000001", "step-00000003"]


def test_a_disk_that_takes_only_a_part_of_a_write(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.write(snapshot(1, NUMEL), MADE_BY)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (PAGE_BYTES, limits[1]))
    try:
        with pytest.raises(UsageError, match="File too large; free some space"):
            checkpoints.write(Snapshot(2, {"weight": torch.zeros(NUMEL)}, {}), MADE_BY)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(tmp_path) == ["step-00000001"]


def test_a_folder_that_vanishes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    checkpoints = Checkpoints(run / "checkpoints", keep=2)
    for step in (1, 2, 3):
        checkpoints.write(snapshot(step, NUMEL), MADE_BY)
    shutil.rmtree(run)
    with pytest.raises(UsageError, match=r"cannot write .*step-00000004: No such file or directory"):
        checkpoints.write(snapshot(4, NUMEL), MADE_BY)
    assert not run.exists(), "what took the place away may bring it back; nothing is put in its stead"
    run.mkdir()
    checkpoints.write(snapshot(5, NUMEL), MADE_BY)
    assert newest_step(run / "checkpoints") == 5


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").touch()
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    with pytest.raises(UsageError, match="a file is where a directory should be"):
        checkpoints.write(snapshot(1), MADE_BY)
    with pytest.raises(UsageError, match=r"cannot read .*checkpoints: Not a directory"):
        checkpoints.newest()
