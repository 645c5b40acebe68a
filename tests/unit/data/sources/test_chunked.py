"""HDF5 files and Zarr stores: any order of samples over many files, groups, chunks read once, and files that are not right."""

from __future__ import annotations

import base64
import os
import pickle
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

from unisono.data.sharding_plan import Plan, Windows
from unisono.data.sources.chunked import ChunkedFiles
from unisono.data.sources.hdf5 import HDF5
from unisono.data.sources.open_source import as_source
from unisono.data.sources.zarr import Zarr
from unisono.data.tree import leaves
from unisono.errors import UsageError

Write = Callable[..., Path]
LENGTHS = (25, 7, 40)
"""Samples in each file: none a multiple of the chunks."""


@pytest.fixture(scope="module", autouse=True)
def one_zarr_thread() -> Iterator[None]:
    """Zarr reads in threads of its own that live on; they start here, before the leak police looks."""
    with zarr.config.set({"threading.max_workers": 1, "async.concurrency": 1}):
        zarr.array(np.zeros(3))[:]
        yield
        zarr.core.sync.cleanup_resources()


def write_hdf5(path: Path, arrays: dict[str, Any], chunks: int | None = None) -> Path:
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            options = {} if chunks is None else {"chunks": (chunks, *array.shape[1:]), "compression": "gzip"}
            file.create_dataset(key, data=array, **options)
    return path


def write_zarr(path: Path, arrays: dict[str, Any], chunks: int | None = None) -> Path:
    group = zarr.open_group(path, mode="w")
    for key, array in arrays.items():
        made = group.create_array(key, shape=array.shape, dtype=array.dtype, chunks=(chunks or len(array), *array.shape[1:]))
        made[...] = array
    return path


KINDS = [pytest.param((HDF5, write_hdf5, ".h5"), id="hdf5"), pytest.param((Zarr, write_zarr, ".zarr"), id="zarr")]


def numbered(start: int, length: int) -> dict[str, Any]:
    """Samples that say which they are."""
    numbers = np.arange(start, start + length)
    return {"x": (numbers[:, None] + np.zeros((1, 6))).astype(np.float32), "y": numbers}


@pytest.mark.parametrize("chunks", [None, 1, 4, 16, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_any_order_over_many_files(tmp_path: Path, kind: Any, chunks: int | None) -> None:
    source_type, write, suffix = kind
    for number, start in enumerate(np.cumsum((0, *LENGTHS[:-1]))):
        arrays = numbered(int(start), LENGTHS[number])
        write(tmp_path / f"part-{number}{suffix}", arrays, chunks and min(chunks, LENGTHS[number]))
    source: ChunkedFiles = source_type(str(tmp_path / f"part-*{suffix}"), cached_chunks=2)
    assert len(source) == sum(LENGTHS)
    random = np.random.default_rng(0)
    for size in (1, 5, 72, 200):
        indices = random.integers(0, len(source), size)
        inputs, targets = source.read(indices)
        assert np.array_equal(targets, indices)
        assert np.array_equal(inputs, np.repeat(indices[:, None], 6, axis=1).astype(np.float32))
        assert inputs.dtype == np.float32
    labels = source.targets()
    assert labels is not None
    assert np.array_equal(labels, np.arange(len(source)))
    assert len(pickle.loads(pickle.dumps(source)).read(np.array([70, 3]))[0]) == 2
    assert source.read(np.array([], dtype=np.int64))[0].shape == (0, 6)
    source.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_gives_a_dict_of_inputs(tmp_path: Path, kind: Any) -> None:
    source_type, write, suffix = kind
    arrays = {"in/image": np.ones((5, 2, 2)), "in/deep/age": np.arange(5.0), "label": np.arange(5), "w": np.full(5, 0.5)}
    source = source_type(write(tmp_path / f"a{suffix}", arrays), inputs="in", targets="label", weights="w")
    inputs, targets, weights = source.read(np.array([3, 0]))
    assert {place: leaf.shape for place, leaf in leaves(inputs)} == {"image": (2, 2, 2), "deep.age": (2,)}
    assert (inputs["deep"]["age"].tolist(), targets.tolist(), weights.tolist()) == ([3.0, 0.0], [3, 0], [0.5, 0.5])
    pair = source_type(tmp_path / f"a{suffix}", inputs=("in/image", {"years": "in/deep/age"}), targets="label")
    assert pair.read(np.array([4]))[0][1]["years"].tolist() == [4.0]
    assert pair.describe()["keys"] == {"[0][0]": "in/image", "[0][1].years": "in/deep/age", "[1]": "label"}
    source.close()
    pair.close()


class Counting(HDF5):
    """Counts how often a range of a file's array is read."""

    reads: list[slice]

    def _readable(self, array: Any) -> Any:
        outer = self

        class Counted:
            def __getitem__(self, span: slice) -> Any:
                outer.reads.append(span)
                return array[span]

        return Counted()


@pytest.mark.parametrize("global_batch", [8, 30, 64])
def test_a_shuffle_by_windows_reads_every_chunk_once(tmp_path: Path, global_batch: int) -> None:
    source = Counting(write_hdf5(tmp_path / "a.h5", numbered(0, 230), chunks=10), inputs="x", cached_chunks=4)
    assert source.chunk_samples == 10
    for epoch in range(2):
        source.reads = []
        source.close()
        plan = Plan(len(source), global_batch, windows=Windows(source.chunk_samples, 4))
        order = plan.order(epoch)
        for step in range(plan.steps_per_epoch):
            indices = order[plan.batch(step)]
            assert np.array_equal(source.read(indices)[0][:, 0], indices)
        assert sorted(span.start for span in source.reads) == list(range(0, 230, 10))
    source.close()


def test_chunks_count_only_where_reading_one_sample_reads_all(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("plain", data=np.zeros((50, 8)), chunks=(10, 8))
        file.create_dataset("images", data=np.zeros((50, 8)), chunks=(5, 8), compression="gzip")
        file.create_dataset("labels", data=np.arange(50), chunks=(25,), compression="gzip")
    assert HDF5(tmp_path / "a.h5", "plain").chunk_samples is None
    both = HDF5(tmp_path / "a.h5", "images", "labels")
    assert both.chunk_samples == 5, "the array with the larger samples decides"
    assert both.read(np.array([49, 0, 26]))[1].tolist() == [49, 0, 26]
    both.close()


@pytest.mark.parametrize("chunks", [None, (2,)])
def test_the_other_byte_order_is_turned(tmp_path: Path, chunks: tuple[int, ...] | None) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.arange(5, dtype=">f4"), chunks=chunks)
        file.create_dataset("y", data=np.arange(5, dtype=">i2"), chunks=chunks)
    source = HDF5(tmp_path / "a.h5")
    for part in (*source.read(np.array([4, 1])), source.subset([4, 1]).targets()):
        assert part.dtype.isnative
        assert part.tolist() == [4, 1]
    source.close()


def stored_type(name: str) -> Any:
    """A type of HDF5 that NumPy does not have."""
    if name == "bfloat16":
        found = h5py.h5t.IEEE_F32LE.copy()
        found.set_fields(15, 7, 8, 0, 7)
        found.set_size(2)
        found.set_ebias(127)
        return found
    found = h5py.h5t.STD_U16LE.copy()
    found.set_precision(12)
    found.set_offset(4 if name == "high bits" else 0)
    return found


@pytest.mark.parametrize("name", ["bfloat16", "high bits", "low bits"])
def test_arrays_in_one_piece_of_types_unlike_those_of_the_machine_are_not_mapped(tmp_path: Path, name: str) -> None:
    """Oracle: what h5py reads, and the numbers that were written."""
    numbers = np.arange(40).reshape(10, 4) * (1.5 if name == "bfloat16" else 25)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        space = h5py.h5s.create_simple(numbers.shape)
        made = h5py.h5d.create(file.id, b"x", stored_type(name), space)
        whole = numbers.astype(np.float32 if name == "bfloat16" else np.uint16)
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, whole)
        assert np.array_equal(file["x"][:], numbers)
        file["y"] = np.arange(10)
        file["large"] = np.arange(10, dtype=">f8")
    source = HDF5(tmp_path / "a.h5", inputs="x", targets="y")
    order = np.array([7, 0, 7, 9])
    inputs, targets = source.read(order)
    assert np.array_equal(inputs, numbers[order])
    assert targets.tolist() == order.tolist()
    mapped = HDF5(tmp_path / "a.h5", inputs="large", targets="y")
    mapped.read(order)
    assert all(isinstance(leaf, np.ndarray) for _, leaf in leaves(mapped._arrays(0))), "the usual types still are"
    mapped.close()
    source.close()


def test_a_type_that_numpy_does_not_know_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        kind = h5py.h5t.STD_I32LE.copy()
        kind.set_precision(24)
        kind.set_size(3)
        h5py.h5d.create(file.id, b"x", kind, h5py.h5s.create_simple((4,)))
    with pytest.raises(UsageError, match=r"'x' of .* has a type that NumPy does not know"):
        HDF5(tmp_path / "a.h5", inputs="x")


def write_packed(kind: Any, path: Path, stored: Any, attributes: dict[str, Any], chunks: int | None) -> Path:
    _, write, suffix = kind
    file = path.with_suffix(suffix)
    write(file, {"x": stored, "y": np.arange(len(stored))}, chunks)
    opened: Any = h5py.File(file, "a") if suffix == ".h5" else zarr.open_group(file, mode="a")
    for name, value in attributes.items():
        opened["x"].attrs[name] = np.array([value]) if suffix == ".h5" and not isinstance(value, str) else value
    if suffix == ".h5":
        opened.close()
    return file


@pytest.mark.parametrize("chunks", [None, 4])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("stored", "unpacked"), [(np.int16, np.float32), (np.uint8, np.float32), (np.int32, np.float64), (np.float32, np.float32)]
)
def test_scale_offset_and_fill_value_are_applied(tmp_path: Path, kind: Any, stored: Any, unpacked: Any, chunks: int | None) -> None:
    """Oracle: the formula of the CF conventions, in NumPy."""
    numbers = np.random.default_rng(0).integers(0, 100, (10, 3)).astype(stored)
    numbers[3, 1] = 77
    expected = np.where(numbers == 77, np.nan, numbers.astype(np.float64) * 0.01 + 273.15).astype(unpacked)
    attributes = {"scale_factor": 0.01, "add_offset": 273.15, "_FillValue": 77}
    first = write_packed(kind, tmp_path / "a", numbers, attributes, chunks)
    plain = write_packed(kind, tmp_path / "b", numbers, {**attributes, "scale_factor": 0.02}, chunks)
    source = kind[0]([first, plain], inputs="x", targets="x")
    order = np.array([3, 9, 0, 13])
    inputs, targets = source.read(order)
    assert inputs.dtype == unpacked
    assert np.array_equal(inputs[:3], expected[order[:3]], equal_nan=True)
    other = np.where(numbers[3] == 77, np.nan, numbers[3].astype(np.float64) * 0.02 + 273.15).astype(unpacked)
    assert np.array_equal(inputs[3], other, equal_nan=True), "each file has its own scale"
    assert np.array_equal(inputs, targets, equal_nan=True)
    labels = source.targets()
    assert labels is not None
    assert np.array_equal(labels[:10], expected, equal_nan=True)
    source.close()


@pytest.mark.parametrize("chunks", [None, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_missing_values_become_nan_or_are_refused(tmp_path: Path, kind: Any, chunks: int | None) -> None:
    fill = float(np.float32(-999.9))
    numbers = np.array([[1.0, fill], [3.0, 4.0]], np.float32)
    for name in ("_FillValue", "missing_value"):
        source = kind[0](write_packed(kind, tmp_path / name, numbers, {name: -999.9}, None), "x")
        (found,) = source.read(np.array([1, 0]))
        assert found.dtype == np.float32
        assert np.array_equal(found, [[3.0, 4.0], [1.0, np.nan]], equal_nan=True)
        source.close()
    whole = kind[0](write_packed(kind, tmp_path / "whole", numbers.astype(np.int64), {"_FillValue": 4}, chunks), "x")
    (found,) = whole.read(np.array([0]))
    assert (found.dtype, found.tolist()) == (np.int64, [[1, -999]]), "what is not missing stays as it is"
    with pytest.raises(UsageError, match=r"'x' of .* holds the number of its missing values \(4, .*whole numbers have no NaN"):
        whole.read(np.array([1]))
    whole.close()
    with pytest.raises(UsageError, match=r"the attribute scale_factor of 'x' of .* is .*half.*, not one number"):
        kind[0](write_packed(kind, tmp_path / "text", numbers, {"scale_factor": "half"}, None), "x")


def test_fill_values_where_xarray_writes_them_are_known(tmp_path: Path) -> None:
    stored = np.array([[5], [-1]], np.int16)
    old = zarr.create_group(tmp_path / "old.zarr", zarr_format=2)
    made = old.create_array("x", shape=stored.shape, dtype="int16", chunks=(2, 1), fill_value=-1)
    made[...] = stored
    made.attrs["scale_factor"] = 0.5
    new = zarr.create_group(tmp_path / "new.zarr")
    made = new.create_array("x", data=stored.astype(np.float32) / 2)
    made.attrs["_FillValue"] = base64.b64encode(struct.pack("<d", -0.5)).decode()
    for name in ("old", "new"):
        (found,) = Zarr(tmp_path / f"{name}.zarr", "x").read(np.arange(2))
        assert np.array_equal(found, [[2.5], [np.nan]], equal_nan=True)


@pytest.mark.parametrize("chunks", [None, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_signed_numbers_that_stand_for_unsigned_ones_are_read_as_these(tmp_path: Path, kind: Any, chunks: int | None) -> None:
    """As in the files of weather satellites. Oracle: NumPy's view of the same bits."""
    stored = np.array([[-2, 5], [-1, 32767], [-32768, 0]], np.int16)
    meant = stored.view(np.uint16)
    order = np.array([2, 0])
    source = kind[0](write_packed(kind, tmp_path / "plain", stored, {"_Unsigned": "true"}, chunks), "x")
    (found,) = source.read(order)
    assert found.dtype == np.uint16
    assert np.array_equal(found, meant[order])
    source.close()
    for fill in (-1, 65535):
        attributes = {"_Unsigned": "true", "scale_factor": 0.5, "_FillValue": fill}
        source = kind[0](write_packed(kind, tmp_path / f"scaled{fill}", stored, attributes, chunks), "x")
        (found,) = source.read(np.arange(3))
        assert np.array_equal(found, np.where(meant == 65535, np.nan, meant / 2).astype(np.float32), equal_nan=True)
        source.close()


def test_attributes_that_say_nothing_of_the_numbers_may_be_of_any_type(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        kind = h5py.h5t.STD_I32LE.copy()
        kind.set_precision(24)
        kind.set_size(3)
        h5py.h5a.create(file.create_dataset("x", data=np.arange(4.0)).id, b"odd", kind, h5py.h5s.create(h5py.h5s.SCALAR))
    source = HDF5(tmp_path / "a.h5", "x")
    assert source.read(np.array([2]))[0].tolist() == [2.0]
    source.close()


def test_a_text_file_lists_the_files(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write_hdf5(tmp_path / "sub" / "b.h5", numbered(0, 3))
    write_hdf5(tmp_path / "a.h5", numbered(3, 3))
    (tmp_path / "train.txt").write_text("# files of the run\nsub/b.h5\n\na.h5\n")
    source = HDF5(tmp_path / "train.txt", "x", "y")
    assert source.read(np.arange(6))[1].tolist() == list(range(6))
    source.close()


def test_a_forked_process_opens_its_own_files(tmp_path: Path) -> None:
    source = HDF5(write_hdf5(tmp_path / "a.h5", numbered(0, 60), chunks=10), "x", "y")
    source.read(np.array([5]))
    child = os.fork()
    if not child:
        os._exit(0 if source.read(np.array([55, 5]))[1].tolist() == [55, 5] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert source.read(np.array([59]))[1].tolist() == [59]
    source.close()


# ---- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_key_names_the_nearest(tmp_path: Path, kind: Any) -> None:
    source_type, write, suffix = kind
    file = write(tmp_path / f"a{suffix}", {"features": np.zeros(3), "group/labels": np.zeros(3)})
    with pytest.raises(UsageError, match=r"no 'feature' in .*; did you mean 'features'\? Known: features, group, group/labels"):
        source_type(file, "feature", "group/labels")
    with pytest.raises(UsageError, match="name the inputs and the targets"):
        source_type(file)


@pytest.mark.parametrize("kind", KINDS)
def test_different_counts_and_unlike_files_are_refused(tmp_path: Path, kind: Any) -> None:
    source_type, write, suffix = kind
    write(tmp_path / f"a{suffix}", {"x": np.zeros((3, 2)), "y": np.zeros(4)})
    with pytest.raises(UsageError, match=r"different numbers of samples \(\[0\]: 3, \[1\]: 4\)"):
        source_type(tmp_path / f"a{suffix}")
    write(tmp_path / f"b{suffix}", {"x": np.zeros((3, 5)), "y": np.zeros(3)})
    with pytest.raises(UsageError, match=r"'x' has samples of float64 \(5,\) in .*b\S* but float64 \(2,\) in .*a"):
        source_type([tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"], "x")
    write(tmp_path / f"c{suffix}", {"y": np.zeros(3)})
    with pytest.raises(UsageError, match=r"no 'x' in .*c"):
        source_type([tmp_path / f"a{suffix}", tmp_path / f"c{suffix}"], "x")


@pytest.mark.parametrize("keep", [0, 8, 600, -1])
def test_a_damaged_hdf5_file_is_refused(tmp_path: Path, keep: int) -> None:
    file = write_hdf5(tmp_path / "a.h5", numbered(0, 500))
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(UsageError, match=r"a\.h5 (is empty|cannot be read as an HDF5 file.*get it again)"):
        as_source(file)


def test_arrays_that_hold_no_samples_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["one"] = 3.0
        file["words"] = ["a", "b"]
        file.create_group("void")
    for key, message in (("one", "not an array of samples"), ("words", "text or objects"), ("void", "group 'void' .* is empty")):
        with pytest.raises(UsageError, match=message):
            HDF5(tmp_path / "a.h5", key)


def test_a_record_of_a_run_stays_short(tmp_path: Path) -> None:
    for number in range(70):
        write_hdf5(tmp_path / f"part-{number:02}.h5", numbered(0, 1))
    (few,), (many,) = (HDF5(str(tmp_path / name)).describe()["files"] for name in ("part-00.h5", "part-*.h5"))
    assert many["num_files"] == 70
    assert many["num_bytes"] == 70 * few["num_bytes"]
    assert Path(few["name"]).name == "part-00.h5"
    store = Zarr(write_zarr(tmp_path / "a.zarr", numbered(0, 3)))
    assert list(store.describe()["files"][0]) == ["name"]


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no file matches .*\*\.h5"):
        HDF5(str(tmp_path / "*.h5"))
    with pytest.raises(UsageError, match="list of files is empty"):
        HDF5([])
    with pytest.raises(UsageError, match="neither does its folder"):
        HDF5(tmp_path / "no" / "a.h5")
    (tmp_path / "a.txt").write_text("\n")
    with pytest.raises(UsageError, match=r"list of files .* is empty"):
        HDF5(tmp_path / "a.txt")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        HDF5(tmp_path / "folder")
    with pytest.raises(UsageError, match="not a Zarr group"):
        Zarr(tmp_path / "folder")
    source = HDF5(write_hdf5(tmp_path / "a.h5", numbered(0, 5)))
    with pytest.raises(UsageError, match=r"samples must lie in 0\.\.4; received 2 to 5"):
        source.read(np.array([2, 5]))
