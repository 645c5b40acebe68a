"""Pictures in folders and tables, and MNIST's idx files."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image
from sklearn.preprocessing import LabelEncoder

from unisono.data.source import Source
from unisono.data.sources.idx import Idx
from unisono.data.sources.images import ImageFolder, Images, ImageTable
from unisono.data.sources.open_source import as_source
from unisono.data.splits import Splits
from unisono.errors import UsageError


def write_picture(file: Path, colour: tuple[int, int, int], size: tuple[int, int] = (6, 4)) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(file)
    return file


def targets_of(source: Source) -> Any:
    found = source.targets()
    assert found is not None
    return found.tolist()


# ---- a folder for each class -------------------------------------------------------------------------------------------


def test_folders_are_classes(tmp_path: Path) -> None:
    write_picture(tmp_path / "dog" / "deep" / "a.png", (1, 2, 3))
    write_picture(tmp_path / "cat" / "b.PNG", (4, 5, 6))
    write_picture(tmp_path / "cat" / "a.png", (7, 8, 9))
    (tmp_path / "cat" / "notes.txt").write_text("no picture")
    source = as_source(tmp_path)
    assert isinstance(source, ImageFolder)
    inputs, targets = source.read(np.array([2, 0, 1]))
    assert (inputs.shape, inputs.dtype) == ((3, 3, 4, 6), np.uint8)
    assert inputs[:, :, 0, 0].tolist() == [[1, 2, 3], [7, 8, 9], [4, 5, 6]]
    assert targets.tolist() == [1, 0, 0]
    assert source.classes == ("cat", "dog")
    turned = ImageFolder(tmp_path, classes=("dog", "cat"), size=(2, 5), mode="L")
    inputs, targets = turned.read(np.array([0, 1]))
    assert inputs.shape == (2, 1, 2, 5)
    assert targets.tolist() == [0, 1]
    assert ImageFolder(tmp_path, size=8).read(np.array([0]))[0].shape == (1, 3, 8, 8)


def test_folders_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no sub-folders"):
        ImageFolder(tmp_path)
    write_picture(tmp_path / "cat" / "a.png", (1, 2, 3))
    write_picture(tmp_path / "cat" / "b.png", (1, 2, 3), size=(7, 7))
    with pytest.raises(UsageError, match=r"no 'cats' in .*did you mean 'cat'"):
        ImageFolder(tmp_path, classes=["cats"])
    with pytest.raises(UsageError, match=r"b\.png has \(7, 7\) rows and columns, but .*a\.png has \(4, 6\); give size"):
        ImageFolder(tmp_path).read(np.array([0, 1]))
    whole = (tmp_path / "cat" / "b.png").read_bytes()
    (tmp_path / "cat" / "b.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match=r"b\.png cannot be read as a picture"):
        ImageFolder(tmp_path).read(np.array([1]))
    (tmp_path / "dog").mkdir()
    with pytest.raises(UsageError, match="dog holds no picture"):
        ImageFolder(tmp_path)
    with pytest.raises(UsageError, match="1 pictures but 2 labels"):
        Images([tmp_path / "cat" / "a.png"], np.array([0, 1]))


PARTS = {"train": ("cat", "dog", "fish"), "test": ("cat", "fish")}


def test_a_class_missing_from_one_part_does_not_shift_its_labels(tmp_path: Path) -> None:
    """Oracle: scikit-learn's numbers of the names of all parts."""
    encoder = LabelEncoder().fit([name for names in PARTS.values() for name in names])
    for part, names in PARTS.items():
        for name in names:
            write_picture(tmp_path / part / name / "a.png", (1, 2, 3))
        lines = [f"{part}/{name}/a.png,{name}" for name in names]
        (tmp_path / f"{part}.csv").write_text("\n".join(["file,name", *lines]) + "\n")
    refusal = r"label 1 is 'dog' in the training data but 'fish' in the test data.*give both .*classes=\['cat', 'dog', 'fish'\]"
    for make in (
        lambda part, classes=None: ImageFolder(tmp_path / part, classes=classes),
        lambda part, classes=None: ImageTable(tmp_path / f"{part}.csv", file="file", label="name", classes=classes),
    ):
        with pytest.raises(UsageError, match=refusal):
            Splits(train=make("train"), test=make("test"))
        with pytest.raises(UsageError, match=refusal):
            Splits(train=make("train").map_inputs(np.array), test=make("test").subset([1, 0]))
        splits = Splits(make("train", ["cat", "dog", "fish"]), test=make("test", ["cat", "dog", "fish"]))
        for part, names in PARTS.items():
            assert targets_of(splits.parts()[part]) == encoder.transform(names).tolist()
            assert splits.parts()[part].read(np.arange(len(names)))[1].tolist() == encoder.transform(names).tolist()
        renumbered = make("test").map(lambda batch: (batch[0], 2 * batch[1]))
        assert len(Splits(train=make("train"), test=renumbered).test or ()) == 2, "a change of batches may number them itself"
        fewer = make("test", ["cat", "fish"]).subset([0])
        assert Splits(train=make("train", ["cat", "fish", "dog"]), test=fewer).test is fewer, "no label stands for two classes"


DEEP = np.random.default_rng(0).integers(0, 65536, (12, 16)).astype(np.uint16)
"""Pixels of 16 bits."""


@pytest.mark.parametrize(
    ("pixels", "suffix", "mode"),
    [
        (DEEP, ".png", "I;16"),
        (DEEP, ".tif", "I;16"),
        (DEEP.astype(">u2"), ".tif", "I;16"),
        (DEEP.astype(np.int32) - 30000, ".tif", "I"),
        (DEEP.astype(np.float32) / 65535, ".tif", "F"),
    ],
)
def test_pictures_deeper_than_8_bits_are_read_in_full_or_refused(
    tmp_path: Path, pixels: np.ndarray[Any, Any], suffix: str, mode: str
) -> None:
    """Oracle: the array that was written, and Pillow's resize of it in float32."""
    file = tmp_path / f"a{suffix}"
    if suffix == ".png":
        Image.fromarray(pixels).save(file)
    else:
        tifffile.imwrite(file, pixels, byteorder=">" if pixels.dtype.byteorder == ">" else "<")
    for shallow in ("RGB", "L"):
        with pytest.raises(UsageError, match=rf"deeper than 8 bits \(Pillow's mode '{mode}'\), .*give mode='{mode}'"):
            Images([file], mode=shallow).read(np.array([0]))
    (found,) = Images([file], mode=mode).read(np.array([0]))
    assert (found.dtype, found.dtype.isnative) == (pixels.dtype.newbyteorder("="), True)
    assert np.array_equal(found, pixels[None, None])
    (small,) = Images([file], mode=mode, size=(5, 7)).read(np.array([0]))
    resized = np.asarray(Image.fromarray(pixels.astype(np.float32)).resize((7, 5), Image.Resampling.BILINEAR))
    assert np.abs(small[0, 0] - resized.astype(np.float64)).max() <= (0.01 if mode == "F" else 1)


def test_a_mode_that_cannot_hold_the_pixels_is_refused(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.tif", DEEP.astype(np.int32) - 30000)
    with pytest.raises(UsageError, match="mode='I;16' would change its pixels; give mode='I'"):
        Images([tmp_path / "a.tif"], mode="I;16").read(np.array([0]))
    file = write_picture(tmp_path / "b.png", (1, 2, 3))
    with pytest.raises(UsageError, match="has 8 bits a channel, but mode='F' is for deeper pictures"):
        Images([file], mode="F").read(np.array([0]))


def test_pictures_are_not_turned_by_their_exif_data(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees
    Image.fromarray(np.zeros((4, 6, 3), np.uint8)).save(tmp_path / "a.jpg", exif=exif)
    assert Images([tmp_path / "a.jpg"]).read(np.array([0]))[0].shape == (1, 3, 4, 6)


# ---- tables ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path) -> Path:
    for number in range(3):
        write_picture(tmp_path / "pictures" / f"p{number}.png", (number, 0, 0))
    file = tmp_path / "table.csv"
    file.write_text("name,diagnosis,target,score,patient\np2,nv,0,0.5,A\np0,mel,10,1,B\np1,nv,2,1.5,A\n")
    return file


def of(table: Path, **options: Any) -> ImageTable:
    return ImageTable(table, file="name", folder=table.parent / "pictures", suffix=".png", **options)


@pytest.mark.parametrize(
    ("label", "targets", "dtype", "classes"),
    [
        ("diagnosis", [1, 0, 1], np.int64, ("mel", "nv")),
        ("target", [0, 10, 2], np.int64, ()),
        ("score", [0.5, 1.0, 1.5], np.float32, ()),
        (lambda row: row["diagnosis"] == "mel", [0, 1, 0], np.int64, ()),
        (lambda row: row["diagnosis"].upper(), [1, 0, 1], np.int64, ("MEL", "NV")),
    ],
)
def test_labels_of_a_table(table: Path, label: Any, targets: list[float], dtype: Any, classes: tuple[str, ...]) -> None:
    source = of(table, label=label, group="patient")
    inputs, found = source.read(np.array([1, 0, 2]))
    assert inputs[:, 0, 0, 0].tolist() == [0, 2, 1]
    assert found.dtype == dtype
    assert found.tolist() == [targets[number] for number in (1, 0, 2)]
    assert source.classes == classes
    groups = source.subset([2, 1]).groups()
    assert groups is not None
    assert groups.tolist() == ["A", "B"]


def test_classes_may_be_given_in_order(table: Path) -> None:
    source = of(table, label="diagnosis", classes=("nv", "mel", "bcc"))
    assert source.read(np.arange(3))[1].tolist() == [0, 1, 0]
    with pytest.raises(UsageError, match=r"no 'mel' in the classes given .*nown: nv"):
        of(table, label="diagnosis", classes=("nv",))
    assert len(of(table).read(np.arange(3))) == 1, "no label, no targets"


def test_tables_that_do_not_fit_are_refused(table: Path) -> None:
    with pytest.raises(UsageError, match=r"no 'diagnosys' in the columns of .*did you mean 'diagnosis'"):
        of(table, label="diagnosys")
    with pytest.raises(UsageError, match=r"3 of 3 pictures of .* do not exist, e\.g\. .*p2; check folder= and suffix="):
        ImageTable(table, file="name", folder=table.parent / "pictures")
    table.write_text("name,diagnosis\n")
    with pytest.raises(UsageError, match="header but no rows"):
        of(table)


@pytest.mark.parametrize("empty", ["", " ", "NA", "nan", "NULL"])
@pytest.mark.parametrize("cells", [("nv", "mel"), ("1", "0"), ("0.5", "1.5")])
def test_an_empty_label_cell_is_no_class(table: Path, empty: str, cells: tuple[str, str]) -> None:
    """It would come first among the names, or make names of numbers, and so renumber all classes."""
    table.write_text(f"name,label\np2,{cells[0]}\np0,{empty}\np1,{cells[1]}\n")
    for label in ("label", lambda row: row["label"]):
        with pytest.raises(UsageError, match=r"row 2 of .*table\.csv .* has no label: .*fill it in or leave the row out"):
            of(table, label=label)
    with pytest.raises(UsageError, match="has no label: None"):
        of(table, label=lambda row: None if row["label"] == empty else 1)
    with pytest.raises(UsageError, match="has no label: nan"):
        of(table, label=lambda row: float("nan") if row["label"] == empty else 1)
    named = of(table, label="label", classes=(cells[1], empty, cells[0]))
    assert targets_of(named) == [2, 1, 0], "a class may have such a name"


@pytest.mark.parametrize("other", ["unknown", "1_0", "inf", "2,5"])
def test_numbers_mixed_with_text_are_refused(table: Path, other: str) -> None:
    table.write_text(f'name,label\np2,10\np0,"{other}"\np1,2\n')
    for label in ("label", lambda row: int(row["label"]) if row["label"].isdigit() else row["label"]):
        with pytest.raises(UsageError, match=r"mix numbers and text: '?10'? in row 1, '.*' in row 2 .*classes=\[\.\.\.\]"):
            of(table, label=label)
    assert targets_of(of(table, label="label", classes=("2", "10", other))) == [1, 2, 0]


# ---- idx ---------------------------------------------------------------------------------------------------------------


def write_idx(file: Path, array: np.ndarray[Any, Any], kind: int, stored: str) -> Path:
    raw = bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(stored).tobytes()
    file.write_bytes(gzip.compress(raw) if file.suffix == ".gz" else raw)
    return file


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(("kind", "stored"), [(0x08, ">u1"), (0x0B, ">i2"), (0x0D, ">f4")])
def test_idx_files_plain_and_zipped(tmp_path: Path, suffix: str, kind: int, stored: str) -> None:
    images = np.random.default_rng(0).integers(0, 256 if kind == 8 else 9999, (5, 4, 3))
    write_idx(tmp_path / f"a-idx3-ubyte{suffix}", images, kind, stored)
    write_idx(tmp_path / f"a-idx1-ubyte{suffix}", np.arange(5), 0x08, ">u1")
    source = as_source(tmp_path / f"a-idx3-ubyte{suffix}", labels=tmp_path / f"a-idx1-ubyte{suffix}")
    inputs, targets = source.read(np.array([4, 0]))
    assert np.array_equal(inputs, images[[4, 0]])
    assert inputs.dtype == np.dtype(stored).newbyteorder("=")
    assert inputs.dtype.isnative
    assert (targets.tolist(), targets.dtype) == ([4, 0], np.int64)
    assert len(Idx(tmp_path / f"a-idx3-ubyte{suffix}").read(np.array([0]))) == 1


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("keep", [0, 2, 9, -1])
def test_a_damaged_idx_file_is_refused(tmp_path: Path, suffix: str, keep: int) -> None:
    file = write_idx(tmp_path / f"a-idx3-ubyte{suffix}", np.zeros((5, 4, 3)), 0x08, ">u1")
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(UsageError, match=r"is empty|not an idx file|header says 60|broken gzip file"):
        Idx(file)


def test_idx_files_of_two_sets_or_longer_than_their_header_are_refused(tmp_path: Path) -> None:
    images = write_idx(tmp_path / "images", np.zeros((5, 4, 3)), 0x08, ">u1")
    labels = write_idx(tmp_path / "labels", np.zeros(6), 0x08, ">u1")
    with pytest.raises(UsageError, match=r"images holds 5 samples, .*labels holds 6"):
        Idx(images, labels)
    labels.write_bytes(labels.read_bytes() + b"x")
    with pytest.raises(UsageError, match=r"holds 7 bytes of numbers, but its header says 6 \(6 uint8\)"):
        Idx(labels)
