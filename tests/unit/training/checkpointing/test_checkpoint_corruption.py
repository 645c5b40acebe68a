"""Checkpoints whose files are cut, flipped, removed, exchanged or joined by others: always seen, and the one before is used."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.training.checkpointing.snapshots import MADE_BY, same, snapshot
from unisono.training.checkpointing.checkpoint import Checkpoints

FILES = ("state.safetensors", "progress.json", "best.safetensors", "manifest.json")
KINDS = ("cut", "flipped", "lengthened", "removed", "exchanged", "joined")
LAST = 5
"""Steps 3 to 5 have the same best weights, so that links are among the files."""


@contextmanager
def damage(file: Path, other: Path, kind: str, draw: random.Random) -> Iterator[None]:
    """Local: harm this file of a checkpoint, where it is; all is as before at the end."""
    whole = file.read_bytes()
    aside = file.parents[1] / ".aside"
    extra = file.with_name(draw.choice([".hidden", "state", "state.safetensors.1"]))
    if kind == "cut":
        with file.open("r+b") as opened:
            opened.truncate(draw.randrange(len(whole)))
    elif kind == "flipped":
        flipped = bytearray(whole)
        for bit in draw.sample(range(8 * len(whole)), draw.choice([1, 1, 2, 8])):
            flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
    elif kind == "lengthened":
        file.write_bytes(whole + draw.randbytes(draw.randrange(1, 100)))
    elif kind == "removed":
        file.rename(aside)
    elif kind == "exchanged":
        file.write_bytes(other.read_bytes())
    else:
        extra.write_bytes(whole[: draw.randrange(len(whole))])
    try:
        yield
    finally:
        extra.unlink(missing_ok=True)
        if aside.exists():
            aside.rename(file)
        file.write_bytes(whole)


@pytest.mark.parametrize("num_cases", [120, pytest.param(600, marks=pytest.mark.soak)])
def test_no_damage_goes_unseen(tmp_path: Path, num_cases: int, request: pytest.FixtureRequest) -> None:
    first = request.config.getoption("soak_seed")
    if first is None:
        first = random.SystemRandom().randrange(10**6) if request.node.get_closest_marker("soak") else 0
    writer = Checkpoints(tmp_path, keep=4)
    for step in range(LAST - 3, LAST + 1):
        writer.write(snapshot(step), MADE_BY)
    newest = tmp_path / f"step-{LAST:08d}"
    for case in range(num_cases):
        file, kind = FILES[case % len(FILES)], KINDS[case // len(FILES) % len(KINDS)]
        print(f"case {case}: {file} {kind}; to repeat it: --soak-seed {first}")
        draw = random.Random(f"{first} {case}")
        # Step 2 has other best weights; the same ones would be no damage.
        with damage(newest / file, tmp_path / "step-00000002" / file, kind, draw):
            found = Checkpoints(tmp_path, keep=4).newest()
            assert found is not None
            assert found.snapshot.step == LAST - 1
            assert same(found.snapshot, snapshot(LAST - 1))
            assert len(found.damaged) == 1
            assert found.damaged[0].startswith(f"{newest} is damaged: ")
    found = Checkpoints(tmp_path, keep=4).newest()
    assert found is not None
    assert same(found.snapshot, snapshot(LAST)), "all damage was undone, so it was what the cases saw"
