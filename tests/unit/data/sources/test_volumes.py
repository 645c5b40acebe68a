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


# ---- labels: which belong to which file, and whole numbers ------------------------------------------------------------------


CASES = (1, 2, 10, 11)
"""Sorted as text, case10 comes before case2; with "_seg" behind it also before case1_seg."""
NAMES = [
    ("images/case{}{}", "images/case{}_seg{}"),
    ("images/la_{:03}_0000{}", "labels/la_{:03}{}"),
    ("images/case{}{}", "labels/{:04}_mask{}"),
    ("sub-{}/anat{}", "sub-{}/mask{}"),
    ("images/{}/scan{}", "labels/{}/scan_seg{}"),
]


def write_case(file: Path, number: int) -> Path:
    """Writes a volume or stack whose every voxel is the number of the case."""
    file.parent.mkdir(parents=True, exist_ok=True)
    voxels = np.full((3, 8, 6), number, np.uint8)
    if file.name.endswith(".tif"):
        tifffile.imwrite(file, voxels, photometric="minisblack")
    else:
        new_image(voxels, np.eye(4)).to_filename(file)
    return file


def pattern(folder: Path, name: str, suffix: str) -> str:
    return str(folder / name.replace("{:03}", "{}").replace("{:04}", "{}").format("*[0-9]", suffix))


@pytest.mark.parametrize(("image", "label"), NAMES)
@pytest.mark.parametrize(("kind", "suffix"), [(NIfTI, ".nii.gz"), (TIFF, ".tif")])
def test_volumes_and_labels_are_paired_by_their_names(tmp_path: Path, kind: Any, suffix: str, image: str, label: str) -> None:
    """Oracle: every voxel and its label are the number of their case."""
    for number in CASES:
        write_case(tmp_path / image.format(number, suffix), number)
        write_case(tmp_path / label.format(number, suffix), number)
    source = kind(pattern(tmp_path, image, suffix), labels=pattern(tmp_path, label, suffix))
    inputs, targets = source.read(np.arange(len(source)))
    assert set(targets.ravel().tolist()) == set(CASES)
    assert np.array_equal(inputs[:, 0], targets)
    images, labels = ([tmp_path / name.format(number, suffix) for number in CASES] for name in (image, label))
    given = kind(images, labels=labels)
    assert np.array_equal(given.read(np.arange(len(given)))[0][:, 0], given.read(np.arange(len(given)))[1]), "lists in one order"
    with pytest.raises(UsageError, match=r"by its name .* belongs to it; give both lists in one order, or as patterns"):
        kind(images, labels=[*labels[2:], *labels[:2]])
    source.close()
    given.close()


@pytest.mark.parametrize("others", [(1, 2, 10, 12), (1, 2, 10)])
def test_numbers_in_names_that_differ_are_refused(tmp_path: Path, others: tuple[int, ...]) -> None:
    for number in CASES:
        write_case(tmp_path / f"case{number}.nii", number)
    labels = [write_case(tmp_path / f"case{number}_seg.nii", number) for number in others]
    with pytest.raises(UsageError, match=r"do not tell which belong to which|4 volumes but 3 labels"):
        NIfTI(str(tmp_path / "case*[0-9].nii"), labels=str(tmp_path / "*_seg.nii"))
    if len(others) == 4:
        assert len(NIfTI(str(tmp_path / "case*[0-9].nii"), labels=labels)) == 4, "a list is in the order of its author"


@pytest.mark.parametrize("turned", [False, True])
def test_labels_elsewhere_in_space_are_refused(tmp_path: Path, turned: bool) -> None:
    """Oracle: the places of the first and the last voxel by the two affines."""
    affine = np.diag([2.0, 2.0, 3.0, 1.0])
    other = affine @ np.diag([-1.0, 1.0, 1.0, 1.0]) if turned else affine.copy()
    other[0, 3] = 6.0 if turned else 1.0
    voxels = np.zeros((4, 5, 6), np.uint8)
    for name, own in (("a", affine), ("b", other), ("c", affine + 1e-4)):
        new_image(voxels, own).to_filename(tmp_path / f"{name}.nii")
    first, last = ([one @ (*at, 1) for one in (affine, other)] for at in ((0, 0, 0), (3, 4, 5)))
    apart = max(np.linalg.norm(one - two) for one, two in (first, last))
    with pytest.raises(UsageError, match=rf"lie up to {apart:g} mm apart \(their affines differ\); resample"):
        NIfTI(tmp_path / "a.nii", labels=tmp_path / "b.nii")
    assert len(NIfTI(tmp_path / "a.nii", labels=tmp_path / "c.nii")) == 1, "rounded"


def test_label_maps_are_rounded_not_truncated(tmp_path: Path) -> None:
    """Oracle: the labels that were written, and NumPy's rounding of what nibabel reads."""
    labels = np.random.default_rng(0).integers(0, 8, (7, 8, 6))
    image = new_image(np.rint(labels / 0.02).astype(np.int16), np.eye(4))
    image.header.set_slope_inter(0.02, 0.0)
    image.to_filename(tmp_path / "l.nii")
    opened: Any = nibabel.load(tmp_path / "l.nii")
    stored = np.asarray(opened.dataobj)
    assert (stored.astype(np.int64) != labels).any(), "truncated they are others"
    tifffile.imwrite(tmp_path / "l.tif", stored.astype(np.float32), photometric="minisblack")
    new_image(np.zeros((7, 8, 6), np.float32), np.eye(4)).to_filename(tmp_path / "v.nii")
    tifffile.imwrite(tmp_path / "v.tif", np.zeros((7, 8, 6), np.float32), photometric="minisblack")
    for source in (NIfTI(tmp_path / "v.nii", tmp_path / "l.nii"), TIFF(tmp_path / "v.tif", tmp_path / "l.tif", unit="stack")):
        targets = source.read(np.array([0]))[1][0]
        assert targets.dtype == np.int64
        assert np.array_equal(targets, labels)
        assert np.array_equal(targets, np.rint(stored))
        source.close()


@pytest.mark.parametrize("value", [2.5, 0.9, np.nan, np.inf])
def test_labels_far_from_whole_numbers_are_refused(tmp_path: Path, value: float) -> None:
    labels = np.ones((3, 8, 6), np.float32)
    labels[1, 2, 3] = value
    new_image(labels, np.eye(4)).to_filename(tmp_path / "l.nii")
    tifffile.imwrite(tmp_path / "l.tif", labels, photometric="minisblack")
    for kind, suffix in ((NIfTI, "nii"), (TIFF, "tif")):
        source: Any = kind(tmp_path / f"l.{suffix}", labels=tmp_path / f"l.{suffix}")
        with pytest.raises(UsageError, match=rf"are not whole numbers \(1 of \d+, e\.g\. {value:g}\)"):
            source.read(np.arange(len(source)))
        source.close()


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


def test_stacks_of_different_types_are_refused(tmp_path: Path) -> None:
    """Read as one array, the 8 bits of one would be dark beside the 16 bits of the other."""
    for name, kind in (("a", np.uint8), ("b", np.uint16), ("c", ">u2"), ("d", np.float32)):
        stack = np.full((3, 8, 6), 200, kind)
        tifffile.imwrite(tmp_path / f"{name}.tif", stack, photometric="minisblack", byteorder=">" if name == "c" else "<")
    a, b, c, d = (tmp_path / f"{name}.tif" for name in "abcd")
    for other in (b, c, d):
        with pytest.raises(UsageError, match=rf"{other.name} has pixels of \w+ but .*a\.tif of uint8; convert them to one type"):
            TIFF([a, other])
    source = TIFF([b, c], [a, b])
    inputs, targets = source.read(np.array([0, 5]))
    assert (inputs.dtype, targets.dtype, set(inputs.ravel().tolist())) == (np.uint16, np.int64, {200}), (
        "labels become whole numbers"
    )
    source.close()


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
