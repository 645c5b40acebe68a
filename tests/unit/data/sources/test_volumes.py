"""NIfTI volumes and TIFF stacks: whole ones, patches on a grid, pages, and their labels."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import tifffile

from unisono.data.sources.nifti import NIfTI
from unisono.data.sources.open_source import as_source
from unisono.data.sources.patch_grid import corners, crop_or_pad, cut_out
from unisono.data.sources.tiff import TIFF
from unisono.errors import UsageError

# ---- the grid ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "size", "step", "starts"),
    [(10, 4, 4, [0, 4, 6]), (8, 4, 4, [0, 4]), (8, 4, 2, [0, 2, 4]), (4, 4, 1, [0]), (3, 4, 4, [0]), (9, 4, 3, [0, 3, 5])],
)
def test_patches_cover_an_axis_and_end_with_it(length: int, size: int, step: int, starts: list[int]) -> None:
    assert [corner[0] for corner in corners((length,), (size,), (step,))] == starts
    assert set(range(length)) <= {place for start in starts for place in range(start, start + size)}


def test_what_lies_outside_is_zero() -> None:
    volume = np.arange(1, 7).reshape(1, 2, 3)
    assert cut_out(volume, (1, 1), (2, 2)).tolist() == [[[5, 6], [0, 0]]]
    assert crop_or_pad(volume, (4, 1)).tolist() == [[[0], [2], [5], [0]]]
    assert crop_or_pad(volume, (2, 6)).tolist() == [[[0, 1, 2, 3, 0, 0], [0, 4, 5, 6, 0, 0]]]


new_image: Any = nibabel.Nifti1Image

# ---- NIfTI -------------------------------------------------------------------------------------------------------------


def write_volumes(folder: Path, shapes: list[tuple[int, ...]], suffix: str = ".nii.gz") -> list[np.ndarray[Any, Any]]:
    folder.mkdir()
    written = []
    for number, shape in enumerate(shapes):
        volume = np.random.default_rng(number).integers(0, 200, shape).astype(np.int16)
        new_image(volume, np.eye(4)).to_filename(folder / f"v{number}{suffix}")
        written.append(volume)
    return written


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_whole_volumes_with_labels(tmp_path: Path, suffix: str) -> None:
    images = write_volumes(tmp_path / "images", [(4, 5, 6)] * 3, suffix)
    labels = write_volumes(tmp_path / "labels", [(4, 5, 6)] * 3, suffix)
    source = as_source(str(tmp_path / "images" / f"*{suffix}"), labels=str(tmp_path / "labels" / f"*{suffix}"))
    inputs, targets = source.read(np.array([2, 0, 2]))
    assert (inputs.shape, inputs.dtype, targets.dtype) == ((3, 1, 4, 5, 6), np.float32, np.int64)
    assert np.array_equal(inputs[:, 0], np.stack([images[number] for number in (2, 0, 2)]))
    assert np.array_equal(targets, np.stack([labels[number] for number in (2, 0, 2)]))
    assert source.chunk_samples is None
    assert len(source.describe()["labels"]) == 3


def test_patches_of_volumes_of_different_sizes(tmp_path: Path) -> None:
    images = write_volumes(tmp_path / "images", [(6, 5, 4), (4, 4, 4), (3, 9, 4)])
    source = NIfTI(str(tmp_path / "images" / "*"), patch=(4, 4, 4), cached_volumes=1)
    assert source.places.tolist() == [
        *([0, x, y, 0] for x in (0, 2) for y in (0, 1)),
        [1, 0, 0, 0],
        *([2, 0, y, 0] for y in (0, 4, 5)),
    ]
    groups = source.groups()
    assert groups is not None
    assert groups.tolist() == [0, 0, 0, 0, 1, 2, 2, 2]
    assert source.chunk_samples == 4
    order = np.array([3, 7, 4, 3])
    (inputs,) = pickle.loads(pickle.dumps(source)).read(order)
    assert np.array_equal(inputs[0, 0], images[0][2:6, 1:5])
    assert np.array_equal(inputs[1, 0], np.pad(images[2][:, 5:9], ((0, 1), (0, 0), (0, 0))))
    assert np.array_equal(inputs[2, 0], images[1])
    assert np.array_equal(inputs[3], inputs[0])


def test_volumes_are_brought_to_one_shape_and_have_channels(tmp_path: Path) -> None:
    images = write_volumes(tmp_path / "images", [(6, 5, 4, 2), (4, 4, 4, 2)])
    source = NIfTI(str(tmp_path / "images" / "*"), labels=np.array([1.5, 2.5]), shape=(4, 5, 4))
    inputs, targets = source.read(np.array([0, 1]))
    assert inputs.shape == (2, 2, 4, 5, 4)
    assert np.array_equal(inputs[0], np.moveaxis(images[0][1:5], 3, 0))
    assert targets.tolist() == [1.5, 2.5]
    values = source.targets()
    assert values is not None
    assert values.tolist() == [1.5, 2.5]


def test_scaled_voxels_are_real_numbers(tmp_path: Path) -> None:
    image = new_image(np.arange(8, dtype=np.int16).reshape(2, 2, 2), np.eye(4))
    image.header.set_slope_inter(0.5, 1.0)
    image.to_filename(tmp_path / "a.nii")
    assert NIfTI(tmp_path / "a.nii").read(np.array([0]))[0].ravel()[:3].tolist() == [1.0, 1.5, 2.0]


def test_volumes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write_volumes(tmp_path / "a", [(4, 4, 4), (5, 4, 4)])
    write_volumes(tmp_path / "b", [(4, 4, 4), (4, 4, 4)])
    for options, message in (
        ({}, r"differ in size .*shape=\(x, y, z\).*patch="),
        ({"patch": (2, 2)}, r"patch .* three sizes .* received \(2, 2\)"),
        ({"stride": (2, 2, 2)}, "no effect without patch"),
        ({"labels": str(tmp_path / "b" / "v0*")}, "2 volumes but 1 labels"),
        ({"labels": str(tmp_path / "b" / "*")}, r"v1\S* has \(5, 4, 4\) voxels but its labels .* have \(4, 4, 4\)"),
    ):
        with pytest.raises(UsageError, match=message):
            NIfTI(str(tmp_path / "a" / "*"), **options)


@pytest.mark.parametrize(("keep", "message"), [(0, "is empty"), (50, "cannot be read as NIfTI"), (-30, "voxels of .* truncated")])
def test_a_damaged_volume_is_refused(tmp_path: Path, keep: int, message: str) -> None:
    write_volumes(tmp_path / "a", [(20, 20, 20)])
    file = tmp_path / "a" / "v0.nii.gz"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(UsageError, match=message):
        NIfTI(file).read(np.array([0]))


# ---- TIFF --------------------------------------------------------------------------------------------------------------


STACKS: tuple[dict[str, Any], ...] = (
    {},
    {"compression": "zlib"},
    {"imagej": True, "truncate": True},
    {"bigtiff": True, "byteorder": ">"},
    {"contiguous": False},
)
"""In one piece, in pieces, one page that stands for all (ImageJ), the other byte order, one page after the other."""


@pytest.mark.parametrize("options", STACKS, ids=str)
def test_pages_are_samples(tmp_path: Path, options: dict[str, Any]) -> None:
    stacks = [
        np.random.default_rng(number).integers(0, 999, (pages, 8, 6)).astype(np.uint16) for number, pages in enumerate((3, 5))
    ]
    for number, stack in enumerate(stacks):
        write_stack(tmp_path / f"s{number}.tif", stack, **options)
        tifffile.imwrite(tmp_path / f"l{number}.tif", stack % 2, photometric="minisblack")
    source = as_source(str(tmp_path / "s*.tif"), labels=str(tmp_path / "l*.tif"))
    assert len(source) == 8
    order = np.array([7, 0, 3, 7])
    inputs, targets = source.read(order)
    every = np.concatenate(stacks)
    assert np.array_equal(inputs, every[order][:, None])
    assert np.array_equal(targets, every[order] % 2)
    assert (inputs.dtype, targets.dtype) == (np.uint16, np.int64)
    assert inputs.dtype.isnative
    groups = source.groups()
    assert groups is not None
    assert groups.tolist() == [0] * 3 + [1] * 5
    again = pickle.loads(pickle.dumps(source))
    assert np.array_equal(again.read(order)[0], inputs)
    again.close()
    source.close()


def write_stack(file: Path, stack: np.ndarray[Any, Any], contiguous: bool = True, **options: Any) -> None:
    if contiguous:
        tifffile.imwrite(file, stack, photometric="minisblack", **options)
        return
    with tifffile.TiffWriter(file) as writer:
        for page in stack:
            writer.write(page, photometric="minisblack", contiguous=False)


@pytest.mark.parametrize("options", [{}, {"compression": "zlib"}, {"planarconfig": "separate"}], ids=str)
def test_whole_stacks_colours_and_values(tmp_path: Path, options: dict[str, Any]) -> None:
    stacks = np.random.default_rng(0).integers(0, 255, (2, 4, 8, 6, 3)).astype(np.uint8)
    for number, stack in enumerate(stacks):
        planes = np.moveaxis(stack, 3, 1) if options.get("planarconfig") else stack
        tifffile.imwrite(tmp_path / f"s{number}.tif", planes, photometric="rgb", **options)
    source = TIFF(str(tmp_path / "s*.tif"), np.array([4, 5]), unit="stack")
    inputs, targets = source.read(np.array([1, 0]))
    assert np.array_equal(inputs, np.moveaxis(stacks[[1, 0]], 4, 1))
    assert targets.tolist() == [5, 4]
    source.close()
    pages = TIFF(str(tmp_path / "s*.tif"))
    assert np.array_equal(pages.read(np.array([5]))[0], np.moveaxis(stacks[1][1:2], 3, 1))
    pages.close()


def test_stacks_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for name, shape in (("a", (3, 8, 6)), ("b", (3, 8, 7)), ("c", (2, 8, 6))):
        tifffile.imwrite(tmp_path / f"{name}.tif", np.zeros(shape, np.uint8), photometric="minisblack")
    a, b, c = (tmp_path / f"{name}.tif" for name in "abc")
    for arguments, message in (
        (([a, b],), r"b\.tif has pages of \(8, 7\)"),
        (([a, c], None, "stack"), r"c\.tif has stacks of \(2, 8, 6\)"),
        ((a, c), r"\(3, 8, 6\), its labels .* \(2, 8, 6\)"),
        ((a, [a, c]), "1 stacks but 2 stacks of labels"),
        ((a, np.zeros(2)), r"3 samples \(pages\) .* 2 labels"),
        ((a, None, "slice"), "must be one of page, stack"),
    ):
        with pytest.raises(UsageError, match=message):
            TIFF(*arguments)


@pytest.mark.parametrize("options", STACKS, ids=str)
@pytest.mark.parametrize("keep", [6, 100, 700, 2000, -100])
def test_a_stack_that_is_cut_off_is_refused(tmp_path: Path, options: dict[str, Any], keep: int) -> None:
    file = tmp_path / "a.tif"
    write_stack(file, np.random.default_rng(0).integers(0, 999, (20, 16, 16)).astype(np.uint16), **options)
    whole = file.read_bytes()
    if options.get("bigtiff") or options in ({}, {"compression": "zlib"}):
        keep = keep if keep > 0 else len(whole) // 2  # the last bytes of these hold no pixels
    file.write_bytes(whole[:keep])
    with pytest.raises(UsageError, match=r"a\.tif (cannot be read as TIFF|is truncated)"):
        TIFF(file)
