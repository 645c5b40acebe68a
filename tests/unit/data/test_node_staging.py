"""Node-local staging: copied once, whole, fresh, and only where there is room."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from unisono.data.node_staging import stage
from unisono.errors import UsageError


def originals(folder: Path, count: int = 3) -> list[Path]:
    folder.mkdir(parents=True)
    files = [folder / f"part-{number}.bin" for number in range(count)]
    for number, file in enumerate(files):
        file.write_bytes(bytes([number]) * 1000)
    return files


def identities(files: list[Path]) -> list[tuple[int, int]]:
    """A file that was written again is another file."""
    return [(file.stat().st_ino, file.stat().st_mtime_ns) for file in files]


def test_files_are_copied_once(tmp_path: Path) -> None:
    files = originals(tmp_path / "far")
    staged = stage(str(tmp_path / "far" / "*.bin"), tmp_path / "near")
    assert [file.read_bytes() for file in staged] == [file.read_bytes() for file in files]
    assert [file.name for file in staged] == [file.name for file in files]
    before = identities(staged)
    assert stage(files, tmp_path / "near") == staged
    assert identities(staged) == before, "copied again without need"


def test_a_changed_original_is_copied_again(tmp_path: Path) -> None:
    files = originals(tmp_path / "far")
    before = identities(stage(files, tmp_path / "near"))
    files[1].write_bytes(b"z" * 1000)
    os.utime(files[1], ns=(1, 1))
    files[2].write_bytes(b"longer" * 1000)
    staged = stage(files, tmp_path / "near")
    assert [file.read_bytes() for file in staged] == [file.read_bytes() for file in files]
    assert [old == new for old, new in zip(before, identities(staged), strict=True)] == [True, False, False]


def test_files_of_one_name_do_not_meet(tmp_path: Path) -> None:
    first, second = originals(tmp_path / "a", 1)[0], originals(tmp_path / "b", 1)[0]
    second.write_bytes(b"other")
    assert [file.read_bytes() for file in stage([first, second], tmp_path / "near")] == [bytes(1000), b"other"]


def test_a_folder_is_staged_as_it_is(tmp_path: Path) -> None:
    files = originals(tmp_path / "far" / "store.zarr" / "c")
    (store,) = stage(tmp_path / "far" / "store.zarr", tmp_path / "near")
    assert sorted(path.name for path in (store / "c").iterdir()) == [file.name for file in files]
    files[0].unlink()
    stage(tmp_path / "far" / "store.zarr", tmp_path / "near")
    assert sorted(path.name for path in (store / "c").iterdir()) == [file.name for file in files[1:]]


def test_too_little_space_is_refused_before_anything_is_copied(tmp_path: Path) -> None:
    files = originals(tmp_path / "far")
    with pytest.raises(UsageError, match=r"staging needs 0\.00 GiB in .*near, but only 0\.00 GiB are free there.*stage fewer"):
        stage(files, tmp_path / "near", reserve_bytes=2**62)
    assert not list((tmp_path / "near").rglob("*.bin*"))
    stage(files, tmp_path / "near")
    stage(files, tmp_path / "near", reserve_bytes=2**62)  # what is there needs no space


def test_an_unfinished_copy_counts_for_nothing(tmp_path: Path) -> None:
    files = originals(tmp_path / "far", 1)
    (home,) = stage(files, tmp_path / "near")
    unfinished = home.with_name(home.name + ".part")
    home.unlink()
    unfinished.write_bytes(b"half")
    (again,) = stage(files, tmp_path / "near")
    assert again.read_bytes() == files[0].read_bytes()
    assert not unfinished.exists()


def staged_identities(far: str, near: str) -> list[tuple[int, int]]:
    return identities(stage(far, near))


def test_processes_of_a_node_copy_once(tmp_path: Path) -> None:
    originals(tmp_path / "far", 20)
    with multiprocessing.get_context("fork").Pool(4) as pool:
        found = pool.starmap(staged_identities, [(str(tmp_path / "far" / "*.bin"), str(tmp_path / "near"))] * 4)
    assert all(one == found[0] for one in found), "a file was replaced after somebody had it"


def test_what_cannot_be_staged_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        stage(tmp_path / "absent.h5", tmp_path / "near")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match=r"cannot be created: .*; give a local folder"):
        stage(tmp_path / "file", tmp_path / "file" / "near")
