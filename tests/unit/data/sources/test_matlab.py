"""MATLAB scenes turned into patches, and SAT-6 in both of its forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import scipy.io

from unisono.data.sources.matlab import Scene, read_mat
from unisono.data.sources.open_source import as_source
from unisono.data.sources.sat6 import CLASSES, SAT6
from unisono.errors import UsageError

ROWS, COLUMNS, BANDS = 7, 6, 3
CUBE = np.random.default_rng(0).integers(0, 5000, (ROWS, COLUMNS, BANDS)).astype(np.uint16)
LABELS = np.random.default_rng(1).integers(0, 4, (ROWS, COLUMNS)).astype(np.uint8)


# ---- scenes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("border", ["mirror", "zero"])
@pytest.mark.parametrize("patch_size", [2, 3, 4, 5])
def test_patches_lie_around_their_pixels(patch_size: int, border: str) -> None:
    scene = Scene(CUBE, LABELS, patch_size, border)
    before = patch_size // 2
    order = np.random.default_rng(0).permutation(len(scene))
    inputs, targets = scene.read(order)
    assert inputs.shape == (len(scene), BANDS, patch_size, patch_size)
    assert inputs.dtype == np.float32
    for patch, target, (row, column) in zip(inputs, targets, scene.coordinates[order], strict=True):
        assert target == int(LABELS[row, column]) - 1
        for down in range(patch_size):
            for right in range(patch_size):
                y, x = row - before + down, column - before + right
                inside = 0 <= y < ROWS and 0 <= x < COLUMNS
                if border == "mirror":
                    y, x = (end - abs(end - abs(at)) for at, end in ((y, ROWS - 1), (x, COLUMNS - 1)))
                expected = CUBE[y, x] if inside or border == "mirror" else np.zeros(BANDS)
                assert patch[:, down, right].tolist() == expected.tolist()


def test_one_pixel_is_its_spectrum() -> None:
    scene = Scene(CUBE, LABELS)
    inputs, _ = scene.read(np.array([3, 0, 3]))
    assert inputs.tolist() == [CUBE[tuple(scene.coordinates[number])].tolist() for number in (3, 0, 3)]


def test_every_labelled_pixel_is_a_sample() -> None:
    scene = Scene(CUBE, LABELS, 3)
    assert len(scene) == (LABELS > 0).sum() == len(scene.coordinates)
    labels = scene.targets()
    assert labels is not None
    assert np.bincount(labels).tolist() == np.bincount(LABELS.ravel())[1:].tolist()
    assert scene.patch_size == 3
    assert scene.describe()["num_classes"] == 3


def test_scenes_of_files(tmp_path: Path) -> None:
    scipy.io.savemat(tmp_path / "cube.mat", {"scene": CUBE, "wavelengths": np.arange(3.0)})
    scipy.io.savemat(tmp_path / "labels.mat", {"gt": LABELS, "second": LABELS * 0 + 1})
    np.save(tmp_path / "cube.npy", CUBE)
    with h5py.File(tmp_path / "new.mat", "w", userblock_size=512) as file:
        file["scene"] = CUBE.T
    with (tmp_path / "new.mat").open("r+b") as raw:
        raw.write(b"MATLAB 7.3 MAT-file".ljust(128))
    expected = Scene(CUBE, LABELS, 3).read(np.arange(10))
    for cube in ("cube.mat", "cube.npy", "new.mat"):
        scene = Scene(tmp_path / cube, tmp_path / "labels.mat", 3, labels_key="gt")
        assert all(np.array_equal(one, other) for one, other in zip(scene.read(np.arange(10)), expected, strict=True))
        assert [Path(file["name"]).name for file in scene.describe()["files"]] == [cube, "labels.mat"]
    assert len(as_source(tmp_path / "cube.mat", labels=LABELS)) == len(scene)
    with pytest.raises(UsageError, match=r"holds gt \(7, 6\), second \(7, 6\)\S* name the one .* labels_key"):
        Scene(tmp_path / "cube.mat", tmp_path / "labels.mat")
    with pytest.raises(UsageError, match=r"no 'sceen' in .*did you mean 'scene'"):
        Scene(tmp_path / "cube.mat", LABELS, cube_key="sceen")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((CUBE, LABELS[:5]), r"\(7, 6\) pixels but the map of labels \(5, 6\)"),
        ((CUBE[0], LABELS), "has 2 axes, not 3"),
        ((CUBE, LABELS * 0), "no labelled pixel"),
        ((CUBE, LABELS - 1.5), "whole numbers"),
        ((CUBE, LABELS, 7), r"patch_size must lie in 1\.\.6"),
        ((CUBE, LABELS, 0), r"patch_size must lie in 1\.\.6"),
        ((CUBE, LABELS, 3, "wrap"), "one of mirror, zero"),
    ],
)
def test_scenes_that_do_not_fit_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Scene(*arguments)


@pytest.mark.parametrize("keep", [0, 100, 200, -20])
def test_a_damaged_mat_file_is_refused(tmp_path: Path, keep: int) -> None:
    file = tmp_path / "a.mat"
    scipy.io.savemat(file, {"scene": CUBE}, do_compression=True)
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(UsageError, match=r"a\.mat (is empty|cannot be read as a MATLAB file)"):
        read_mat(file)


# ---- SAT-6 -------------------------------------------------------------------------------------------------------------

PICTURES = np.random.default_rng(2).integers(0, 256, (9, 28, 28, 4)).astype(np.uint8)
NUMBERS = np.array([5, 0, 3, 3, 1, 2, 4, 5, 0])
ONE_HOT = np.eye(6, dtype=np.uint8)[NUMBERS]


def write_sat6(folder: Path, one_hot: np.ndarray[Any, Any] = ONE_HOT) -> tuple[Path, Path, Path]:
    mat, images, labels = folder / "sat-6.mat", folder / "X.csv", folder / "y.csv"
    as_matlab = {"train_x": np.moveaxis(PICTURES, 0, 3), "train_y": one_hot.T.astype(float)}
    scipy.io.savemat(mat, {**as_matlab, "test_x": as_matlab["train_x"][..., :2], "test_y": as_matlab["train_y"][:, :2]})
    np.savetxt(images, PICTURES.reshape(9, -1), fmt="%d", delimiter=",")
    np.savetxt(labels, one_hot, fmt="%d", delimiter=",")
    return mat, images, labels


def test_both_forms_of_sat6_are_the_same(tmp_path: Path) -> None:
    mat, images, labels = write_sat6(tmp_path)
    for source in (SAT6(mat), SAT6(images, labels)):
        inputs, targets = source.read(np.array([8, 1, 1]))
        assert np.array_equal(inputs, np.moveaxis(PICTURES[[8, 1, 1]], 3, 1))
        assert inputs.dtype == np.uint8
        assert targets.tolist() == NUMBERS[[8, 1, 1]].tolist()
        assert source.describe()["classes"] == list(CLASSES)
    assert len(SAT6(mat, part="test")) == 2


def test_sat6_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    mat, images, labels = write_sat6(tmp_path)
    short = tmp_path / "short.csv"
    short.write_text("".join(labels.read_text().splitlines(keepends=True)[:8]))
    words = tmp_path / "words.csv"
    words.write_text("building,water\n")
    for arguments, message in (
        ((mat, labels), "leave the second file out"),
        ((images,), "table of labels too"),
        ((images, images), r"X\.csv has 3136 columns, not 6"),
        ((images, short), "9 images but 8 labels"),
        ((images, words), "not a table of whole numbers"),
        ((mat, None, "valid"), "train or test"),
    ):
        with pytest.raises(UsageError, match=message):
            SAT6(*arguments)
    two_hot = ONE_HOT.copy()
    two_hot[4, :2] = 1
    with pytest.raises(UsageError, match="not one-hot"):
        SAT6(write_sat6(tmp_path, two_hot)[0])
    scipy.io.savemat(mat, {"train_x": np.zeros((28, 28, 3, 2)), "train_y": np.eye(6)})
    with pytest.raises(UsageError, match=r"not \(28, 28, 4, N\)"):
        SAT6(mat)
    with pytest.raises(UsageError, match="no 'test_x'"):
        SAT6(mat, part="test")
