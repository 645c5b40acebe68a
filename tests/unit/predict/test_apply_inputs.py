"""Files are opened and prepared as the task prepares its own data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from unisono.data.sources.images import Images
from unisono.data.sources.open_source import as_source
from unisono.data.splits import Splits, split
from unisono.errors import UsageError
from unisono.predict.apply_inputs import file_inputs, sample_names, sample_numbers, split_inputs

X = np.arange(40, dtype=np.float32).reshape(20, 2)
Y = np.arange(20) % 2


def halved(inputs: Any) -> Any:
    return inputs / 2


def shifted(inputs: Any) -> Any:
    return inputs + 1


def test_inputs_are_changed_as_the_task_changes_its_own_in_its_order(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    like = split(as_source((X, Y)).map_inputs(halved).map_inputs(shifted))
    prepared = file_inputs([str(tmp_path / "x.npy")], {}, like)
    assert np.array_equal(prepared.source.read(np.arange(20))[0], X / 2 + 1)
    assert prepared.description["changes"] == ["halved", "shifted"]
    as_is = file_inputs([str(tmp_path / "x.npy")], {}, None)
    assert np.array_equal(as_is.source.read(np.arange(20))[0], X)
    assert as_is.description != prepared.description


def test_changes_of_whole_batches_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(UsageError, match=r"change whole batches \(halved\).*--as-is"):
        file_inputs([str(tmp_path / "x.npy")], {}, Splits(as_source((X, Y)).map(halved)))


def test_bad_inputs_are_reported(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X[:0])
    np.savez(tmp_path / "x.npz", x=X)
    with pytest.raises(UsageError, match="holds no samples"):
        file_inputs([str(tmp_path / "x.npy")], {}, None)
    with pytest.raises(UsageError, match="does not exist"):
        file_inputs([str(tmp_path / "y.npy")], {}, None)
    with pytest.raises(UsageError, match=r"cannot be opened with these options .*nonsense.*--open"):
        file_inputs([str(tmp_path / "x.npz")], {"nonsense": 1}, None)
    with pytest.raises(UsageError, match=r"no test data.*train"):
        split_inputs(Splits((X, Y)), "test")


def test_pictures_of_a_flat_folder_have_names_and_the_size_of_the_task(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for name in ("b", "a", "c"):
        image.fromarray(np.zeros((6, 5), dtype=np.uint8)).save(tmp_path / f"{name}.png")
    own = Images([tmp_path / "a.png"], np.array([0]), size=4, mode="L")
    found = file_inputs([str(tmp_path)], {}, Splits(own)).source
    assert sample_names(found) == ["a", "b", "c"]
    assert sample_names(found.subset([2, 0])) == ["c", "a"]
    assert found.read(np.arange(3))[0].shape == (3, 1, 4, 4)
    assert file_inputs([str(tmp_path)], {"size": 3}, Splits(own)).source.read(np.arange(3))[0].shape == (3, 1, 3, 3)
    assert sample_names(as_source((X, Y))) is None


def test_pictures_with_one_name_in_two_folders_are_told_apart(tmp_path: Path) -> None:
    def made(*names: str) -> Images:
        paths = [tmp_path / name for name in names]
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        return Images(paths)

    assert sample_names(made("cat/0.png", "fish/1.png")) == ["0", "1"]
    assert sample_names(made("cat/0.png", "fish/0.png")) == ["cat/0", "fish/0"]
    assert sample_names(made("cat/0.png", "cat/0.jpg", "fish/0.png")) == ["cat/0.png", "cat/0.jpg", "fish/0.png"]


def test_the_number_of_a_sample_is_that_in_its_source() -> None:
    whole = as_source((X, Y))
    assert sample_numbers(whole) is None
    assert sample_numbers(whole.subset([7, 3]).map_inputs(halved).subset([1])) == [3]
    held: Any = Subset(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), [9, 4, 2])
    assert sample_numbers(as_source(held).subset([2, 0])) == [2, 9]
