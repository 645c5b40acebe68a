"""Pieces cover all samples once, are taken again by the same work only, and leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from unisono.errors import UsageError
from unisono.predict.work_pieces import MOST, Pieces, make_pieces


@pytest.mark.parametrize("num_samples", [1, 2, 15, 16, 17, 359, 1797, 100_003, 70_000_000])
@pytest.mark.parametrize("batch", [1, 64, 1000])
def test_every_sample_is_in_one_piece(num_samples: int, batch: int) -> None:
    pieces = make_pieces(Path("out.csv"), num_samples, batch, "work")
    slices = [pieces.samples(number) for number in range(len(pieces))]
    assert [where.start for where in slices] == [0, *(where.stop for where in slices[:-1])]
    assert slices[-1].stop == num_samples
    assert all(where.stop > where.start for where in slices)
    assert len(pieces) <= MOST


def do(pieces: Pieces, *numbers: int) -> None:
    for number in numbers:
        where = pieces.samples(number)
        pieces.write(number, np.arange(where.start, where.stop))


def test_the_same_work_is_resumed_and_other_work_is_removed(tmp_path: Path) -> None:
    pieces = make_pieces(tmp_path / "out.csv", 100, 10, "weights a")
    assert pieces.open() == (list(range(len(pieces))), 0)
    do(pieces, 0, 3)
    (pieces.folder / ".piece-x.npy.123.draft").write_bytes(b"half")
    again = make_pieces(tmp_path / "out.csv", 100, 10, "weights a")
    assert again.open() == ([number for number in range(len(pieces)) if number not in (0, 3)], 0)
    assert make_pieces(tmp_path / "out.csv", 100, 10, "weights b").open() == (list(range(len(pieces))), 2)
    assert list(pieces.folder.iterdir()) == []


def test_what_is_joined_is_in_order_and_then_removed(tmp_path: Path) -> None:
    pieces = make_pieces(tmp_path / "out.csv", 100, 10, "work")
    pieces.open()
    do(pieces, *reversed(range(len(pieces))))
    assert np.array_equal(np.concatenate([values for _, values in pieces.read()]), np.arange(100))
    (pieces.folder / "notes.txt").write_text("mine")
    pieces.remove()
    assert [file.name for file in pieces.folder.iterdir()] == ["notes.txt"]


def test_a_piece_that_only_another_host_can_read_is_reported(tmp_path: Path) -> None:
    pieces = make_pieces(tmp_path / "out.csv", 100, 10, "work")
    pieces.open()
    do(pieces, 0)
    with pytest.raises(UsageError, match="shared file system"):
        list(pieces.read())


def test_a_folder_without_write_permission_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot write .*--out"):
        make_pieces(tmp_path / "file" / "out.csv", 100, 10, "work").open()
