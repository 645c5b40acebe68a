"""Checkpoints: what comes back, what is kept, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.unit.training.checkpointing.snapshots import MADE_BY, names, same, snapshot
from unisono.errors import UsageError
from unisono.files.step_folders import StepFolders
from unisono.files.tensor_file import TYPE_NAMES, write_tensors
from unisono.training.checkpointing.checkpoint import Checkpoints, Snapshot
from unisono.training.run_folder.weights import load_weights


def inode(path: Path) -> int:
    return (path / "best.safetensors").stat().st_ino


def test_all_comes_back_to_the_last_bit(tmp_path: Path) -> None:
    written = snapshot(7)
    path = Checkpoints(tmp_path, keep=2).write(written, MADE_BY)
    assert path == tmp_path / "step-00000007"
    assert names(path) == ["best.safetensors", "manifest.json", "progress.json", "state.safetensors"]
    found = Checkpoints(tmp_path, keep=2).newest()
    assert found is not None
    assert (found.path, found.made_by, found.damaged) == (path, MADE_BY, ())
    assert same(found.snapshot, written)
    for name in ("state.safetensors", "best.safetensors"):
        tensors = load_file(path / name)
        assert tensors.keys() == (written.tensors if name.startswith("state") else written.best or {}).keys()


def test_a_checkpoint_without_best_weights_or_any_tensors(tmp_path: Path) -> None:
    written = Snapshot(0, {}, {})
    path = Checkpoints(tmp_path, keep=1).write(written, {})
    assert "best.safetensors" not in names(path)
    found = Checkpoints(tmp_path, keep=1).newest()
    assert found is not None
    assert same(found.snapshot, written)


@pytest.mark.parametrize("dtype", TYPE_NAMES, ids=str)
def test_every_type_is_read_by_safetensors(tmp_path: Path, dtype: torch.dtype) -> None:
    values = torch.arange(48, dtype=torch.uint8).view(dtype) if dtype != torch.bool else torch.tensor([True, False])
    write_tensors(tmp_path / "a.safetensors", {"odd": torch.ones(3, dtype=torch.uint8), "a": values})
    found = load_weights(tmp_path / "a.safetensors")[0]["a"]
    assert found.dtype == dtype
    assert found.view(torch.uint8).tolist() == values.view(torch.uint8).tolist()


def test_a_type_that_the_file_cannot_hold_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"w is of type torch.complex128.*use another type"):
        Checkpoints(tmp_path, keep=1).write(Snapshot(1, {"w": torch.zeros(1, dtype=torch.complex128)}, {}), {})
    assert names(tmp_path) == []


def test_what_is_loaded_outlives_its_file(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    state = checkpoints.write(snapshot(1), MADE_BY) / "state.safetensors"
    found = checkpoints.newest()
    assert found is not None
    state.write_bytes(bytes(state.stat().st_size))
    assert same(found.snapshot, snapshot(1))


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_are_kept(tmp_path: Path, keep: int) -> None:
    checkpoints = Checkpoints(tmp_path, keep)
    (tmp_path / "notes.txt").write_text("of a user")
    for step in (1, 2, 10, 11):
        checkpoints.write(snapshot(step), MADE_BY)
    expected = [f"step-{step:08d}" for step in (1, 2, 10, 11)][-keep:]
    assert names(tmp_path) == ["notes.txt", *expected]
    with pytest.raises(UsageError, match="keep at least 1"):
        Checkpoints(tmp_path, keep=0)


def test_more_digits_than_usual(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    for step in (99_999_999, 100_000_000):
        checkpoints.write(replace(snapshot(1), step=step), MADE_BY)
    found = checkpoints.newest()
    assert found is not None
    assert (found.snapshot.step, names(tmp_path)) == (100_000_000, ["step-100000000"])


def test_best_weights_are_linked_but_not_to_the_checkpoint_just_before(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=9)
    inodes = [inode(checkpoints.write(snapshot(step), MADE_BY)) for step in range(3, 8)]
    assert len(set(inodes)) == 2
    assert inodes[0] == inodes[2] == inodes[4] != inodes[1] == inodes[3]
    assert inode(checkpoints.write(snapshot(7), MADE_BY)) == inodes[4], "again the same step: not that of step 6"
    other = replace(snapshot(8), best={"weight": torch.ones(2)}, best_version="other")
    assert inode(checkpoints.write(other, MADE_BY)) not in inodes
    for step in (8, 7):
        found = Checkpoints(tmp_path, keep=9).newest()
        assert found is not None
        assert same(found.snapshot, other if step == 8 else snapshot(7))
        (found.path / "manifest.json").unlink()


def test_a_resumed_run_links_to_what_it_has_loaded(tmp_path: Path) -> None:
    path = Checkpoints(tmp_path, keep=3).write(snapshot(5), MADE_BY)
    checkpoints = Checkpoints(tmp_path, keep=3)
    assert checkpoints.newest() is not None
    assert inode(checkpoints.write(snapshot(6), MADE_BY)) != inode(path)
    assert inode(checkpoints.write(snapshot(7), MADE_BY)) == inode(path)


def test_where_there_is_no_link_to_be_had_the_weights_are_written(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)  # the one before the last is gone each time
    for step in range(3, 6):
        checkpoints.write(snapshot(step), MADE_BY)
    found = checkpoints.newest()
    assert found is not None
    assert same(found.snapshot, snapshot(5))
    assert (found.path / "best.safetensors").stat().st_nlink == 1


def test_the_same_step_again_takes_the_place_of_the_first(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for value in ("first", "second"):
        checkpoints.write(replace(snapshot(4), progress={"value": value}), MADE_BY)
    found = checkpoints.newest()
    assert found is not None
    assert found.snapshot.progress == {"value": "second"}
    assert names(tmp_path) == ["step-00000004"]


def test_damaged_ones_take_no_place_among_those_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (1, 2):
        checkpoints.write(snapshot(step), MADE_BY)
    (tmp_path / "step-00000002" / "progress.json").write_text("{}")
    found = checkpoints.newest()
    assert found is not None
    assert found.snapshot.step == 1
    checkpoints.write(snapshot(3), MADE_BY)
    assert names(tmp_path) == ["step-00000001", "step-00000003"]


def test_a_damaged_checkpoint_of_a_later_step_is_removed_when_the_run_has_continued(tmp_path: Path) -> None:
    Checkpoints(tmp_path, keep=1).write(snapshot(9), MADE_BY)
    Checkpoints(tmp_path, keep=1).write(snapshot(5), MADE_BY)
    assert names(tmp_path) == ["step-00000005"]


def test_none_at_all_and_none_that_is_good(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "no folder", keep=1).newest() is None
    checkpoints = Checkpoints(tmp_path, keep=4)
    assert checkpoints.newest() is None
    for step in (1, 2, 3, 4):
        checkpoints.write(snapshot(step), MADE_BY)
    (tmp_path / "step-00000001" / "manifest.json").unlink()
    (tmp_path / "step-00000002").rename(tmp_path / "step-00000005")
    (tmp_path / "step-00000003" / "state.safetensors").write_bytes(b"short")
    (tmp_path / "step-00000004" / "extra").touch()
    (tmp_path / "step-00000006").touch()
    with pytest.raises(UsageError) as caught:
        checkpoints.newest()
    told = str(caught.value)
    for sentence in (
        f"no checkpoint in {tmp_path} is usable",
        "step-00000006 is damaged: it is not a directory",
        "step-00000005 is damaged: it is of step 2, but its name says step 5",
        "step-00000004 is damaged: extra does not belong there",
        "step-00000003 is damaged: state.safetensors has 5 bytes instead of",
        "step-00000001 is damaged: it has no manifest.json",
        "--fresh",
    ):
        assert sentence in told
    checkpoints.write(snapshot(7), MADE_BY)
    assert names(tmp_path) == ["step-00000007"]


def test_a_sealed_checkpoint_of_another_format_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Checkpoints(tmp_path, keep=2).write(snapshot(1), MADE_BY)
    with monkeypatch.context() as patch:
        patch.setattr("unisono.training.checkpointing.checkpoint.FORMAT", 3)
        Checkpoints(tmp_path, keep=2).write(snapshot(2), MADE_BY)
    with pytest.raises(UsageError, match="step-00000002 has format 3, and this version of Unisono reads only 2"):
        Checkpoints(tmp_path, keep=2).newest()


def test_an_old_one_that_cannot_be_removed_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.write(snapshot(1), MADE_BY)

    def refuse(self: StepFolders, path: Path) -> None:
        raise UsageError(f"cannot write {path}: Operation not permitted")

    with monkeypatch.context() as patch:  # as root nothing is forbidden
        patch.setattr(StepFolders, "remove", refuse)
        checkpoints.write(snapshot(2), MADE_BY)
    assert "an old checkpoint cannot be removed: cannot write" in checkpoints.not_removed
    assert names(tmp_path) == ["step-00000001", "step-00000002"]
    checkpoints.write(snapshot(3), MADE_BY)
    assert (checkpoints.not_removed, names(tmp_path)) == ("", ["step-00000003"])


def test_the_manifest_is_plain_json(tmp_path: Path) -> None:
    path = Checkpoints(tmp_path, keep=1).write(snapshot(1), MADE_BY)
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest.keys() == {"sha256", "format", "step", "best_version", "made_by", "files"}
    assert manifest["made_by"] == MADE_BY
    assert manifest["files"]["progress.json"]["bytes"] == (path / "progress.json").stat().st_size
