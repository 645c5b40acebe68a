"""A process that is killed while it writes checkpoints, at every point and at random moments: a whole one is always there."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from select import select
from time import monotonic
from typing import Any, NoReturn

import pytest

from tests.unit.training.checkpointing.snapshots import MADE_BY, names, same, snapshot
from unisono.files.manifest import read_manifest
from unisono.training.checkpointing.checkpoint import Checkpoints, Snapshot

EVENTS = ("open", "os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "os.listdir", "os.scandir", "shutil.rmtree")
"""What the interpreter reports before it asks the system for a change or a look."""
LIMIT_S = 30.0


def in_child(body: Callable[[], object]) -> int:
    """The number of a forked process that does nothing but this."""
    if (child := os.fork()) == 0:
        try:
            body()
        finally:
            os._exit(0)
    return child


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("nobody outlives that")


def killed_at(number: int, body: Callable[[], object]) -> bool:
    """Whether a process that runs `body` has lived until its call of the system with this number, and been killed there."""

    def watched() -> None:
        seen = 0

        def hook(event: str, _: tuple[Any, ...]) -> None:
            nonlocal seen
            if event in EVENTS:
                seen += 1
                if seen == number:
                    die()

        sys.addaudithook(hook)
        body()

    _, status = os.waitpid(in_child(watched), 0)
    return os.WIFSIGNALED(status)


def assert_whole(folder: Path) -> None:
    """What has a good name is good, the older ones too."""
    for path in folder.glob("step-*"):
        read_manifest(path)


@pytest.mark.parametrize("step", [4, 3], ids=["another step", "the same step again"])
@pytest.mark.parametrize("keep", [1, 2])
def test_killed_at_every_call_of_the_system(tmp_path: Path, keep: int, step: int) -> None:
    first, second, last = snapshot(3), Snapshot(step, snapshot(40).tensors, {"second": 2}), snapshot(5)
    number = 0
    outcomes = set[str]()
    while True:
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        Checkpoints(folder, keep).write(snapshot(2), MADE_BY)
        Checkpoints(folder, keep).write(first, MADE_BY)
        was_killed = killed_at(number, lambda: Checkpoints(folder, keep).write(second, MADE_BY))  # noqa: B023
        checkpoints = Checkpoints(folder, keep)
        found = checkpoints.newest()
        assert found is not None
        assert found.damaged == ()
        assert_whole(folder)
        outcomes.add("second" if same(found.snapshot, second) else "first")
        assert same(found.snapshot, first) or same(found.snapshot, second)
        checkpoints.write(last, MADE_BY)
        assert [name for name in names(folder) if name.startswith(".")] == [], "what the killed process left is removed"
        assert len(names(folder)) == keep
        found = checkpoints.newest()
        assert found is not None
        assert same(found.snapshot, last)
        if not was_killed:
            break
    assert outcomes == {"first", "second"}
    assert number > 10


def write_forever(folder: Path, signs: int) -> None:
    checkpoints = Checkpoints(folder, keep=2)
    found = checkpoints.newest()
    step = found.snapshot.step if found else 0
    while True:
        step += 1
        checkpoints.write(snapshot(step, numel=30_000), MADE_BY)
        os.write(signs, b".")


def test_killed_at_random_moments(tmp_path: Path) -> None:
    draw = random.Random(4)
    newest = 0
    for _ in range(15):
        signs, theirs = os.pipe()
        child = in_child(lambda: write_forever(tmp_path, theirs))  # noqa: B023
        os.close(theirs)
        try:
            for _ in range(draw.randrange(1, 3)):
                assert select([signs], [], [], LIMIT_S)[0], "no checkpoint in all that time"
                newest += len(os.read(signs, 1))
            moment = monotonic() + draw.uniform(0, 0.02)
            while monotonic() < moment:
                pass
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        newest += len(os.read(signs, 1000))
        os.close(signs)
        found = Checkpoints(tmp_path, keep=2).newest()
        assert found is not None
        assert found.damaged == ()
        assert_whole(tmp_path)
        assert found.snapshot.step in (newest, newest + 1), "it may have been killed before it could give the sign"
        newest = found.snapshot.step
        assert same(found.snapshot, snapshot(newest, numel=30_000))
