"""Samples in memory and in NumPy's files, data sets of samples, and which source a thing becomes."""

from __future__ import annotations

import pickle
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unisono.data.fingerprint import fingerprint
from unisono.data.sources.arrays import Arrays
from unisono.data.sources.numpy_files import Npy, Npz
from unisono.data.sources.open_source import as_source
from unisono.data.sources.optional_packages import load
from unisono.data.sources.sequence import Items
from unisono.data.tree import leaves
from unisono.errors import UsageError

X = np.arange(24, dtype=np.float32).reshape(6, 4)
Y = np.array([0, 1, 2, 0, 1, 2])
ANY_ORDER = np.array([5, 0, 5, 2])


def same(one: Any, other: Any) -> bool:
    pairs = zip(leaves(one), leaves(other), strict=True)
    return all(a == b and np.array_equal(x, y) and x.dtype == y.dtype for (a, x), (b, y) in pairs)


# ---- arrays ----------------------------------------------------------------------------------------------------------


def test_arrays_of_any_nesting_are_read_in_any_order() -> None:
    pair = namedtuple("pair", "left right")
    source = Arrays({"a": X, "b": (X[:, 0], pair(Y, X))}, Y, np.ones(6))
    inputs, targets, weights = source.read(ANY_ORDER)
    assert same(inputs, {"a": X[ANY_ORDER], "b": (X[ANY_ORDER, 0], pair(Y[ANY_ORDER], X[ANY_ORDER]))})
    assert isinstance(inputs["b"][1], pair)
    assert same((targets, weights), (Y[ANY_ORDER], np.ones(4)))
    assert len(source) == 6
    assert source.in_memory
    assert source.describe()["shapes"] == {
        "[0].a": "float32 4",
        "[0].b[0]": "float32",
        "[0].b[1][0]": "int64",
        "[0].b[1][1]": "float32 4",
        "[1]": "int64",
        "[2]": "float64",
    }


def test_what_is_read_is_a_copy() -> None:
    source = Arrays(X.copy(), Y.copy())
    source.read(np.arange(6))[0][:] = -1
    assert same(source.read(np.arange(6)), (X, Y))


def test_inputs_alone_make_a_batch_of_one_part() -> None:
    assert same(Arrays(X).read(ANY_ORDER), (X[ANY_ORDER],))
    assert Arrays(X).targets() is None


def test_torch_tensors_are_shared_not_copied() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(6, 2, requires_grad=True)
    source = Arrays(tensor, torch.arange(6))
    tensor.data[3] = 7.0
    inputs, targets = source.read(np.array([3]))
    assert same((inputs, targets), (np.full((1, 2), 7, np.float32), np.array([3])))
    with pytest.raises(UsageError, match=r"bfloat16.*tensor\.float\(\)"):
        Arrays(torch.zeros(3, dtype=torch.bfloat16))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((X, Y[:5]), r"different numbers of samples \(\[0\]: 6, \[1\]: 5\)"),
        ((X, None, Y), "weights but no targets"),
        ((X, [0, 1, 2, 3, 4, 5]), "single number.*numpy.asarray"),
        ((np.array(["a", None], dtype=object),), "Python objects"),
        (({},), "no array"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(parts: tuple[Any, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Arrays(*parts)


# ---- what every source can do ------------------------------------------------------------------------------------------


def test_the_mask_of_a_masked_array_is_not_dropped() -> None:
    """Oracle: NumPy's mean, which leaves the masked number out."""
    masked: Any = np.ma.masked_equal(np.array([[1.0, -999.0], [3.0, 5.0]], np.float32), -999.0)
    assert masked.mean() == 3.0
    labels = np.array([0, 1])
    for parts in ((masked, labels), (labels, masked), (labels, labels, masked[:, 1]), ({"x": labels, "z": masked},)):
        with pytest.raises(UsageError, match=r"masks 1 of [24] values.*fill them in \(array\.filled\(0\)\)"):
            Arrays(*parts)
    with pytest.raises(UsageError, match="masks 1 of 2 values"):
        Items([(row, 0) for row in masked]).read(np.array([0, 1]))
    with pytest.raises(UsageError, match="masks 1 of 4 values"):
        fingerprint(Arrays(np.array([[1.0, -999.0], [3.0, 5.0]])).map_inputs(lambda x: np.ma.masked_less(x, 0)))
    assert Arrays(masked.filled(0.0)).read(np.arange(2))[0].mean() == 2.25
    (whole,) = Arrays(np.ma.masked_less(labels, 0)).read(np.arange(2))
    assert (type(whole), whole.tolist()) == (np.ndarray, [0, 1]), "nothing is masked"


def test_a_subset_reads_its_own_samples_and_targets() -> None:
    some = Arrays(X, Y).subset([4, 2, 0])
    assert same(some.read(np.array([2, 0])), (X[[0, 4]], Y[[0, 4]]))
    assert same(some.targets(), Y[[4, 2, 0]])
    with pytest.raises(UsageError, match=r"must lie in 0\.\.5; received 6"):
        Arrays(X, Y).subset([6])


def test_a_change_of_the_inputs_keeps_the_targets() -> None:
    source = Arrays(X, Y)
    scaled = source.map_inputs(lambda inputs: inputs / 2)
    assert same(scaled.read(ANY_ORDER), (X[ANY_ORDER] / 2, Y[ANY_ORDER]))
    assert same(scaled.targets(), Y)
    swapped = source.map(lambda batch: (batch[1], batch[0]))
    assert same(swapped.read(ANY_ORDER), (Y[ANY_ORDER], X[ANY_ORDER]))
    assert swapped.targets() is None, "a change of the whole batch may concern the targets"


@pytest.mark.parametrize(
    ("indices", "left"),
    [(np.arange(30, 60), 10), (np.arange(0, 100, 2), 5), (np.arange(0, 100, 50), 1), (np.array([3, 1]), None)],
)
def test_a_subset_in_the_order_of_the_file_keeps_its_chunks(indices: np.ndarray[Any, Any], left: int | None) -> None:
    source = Arrays(np.arange(100))
    source.chunk_samples = 10
    assert source.subset(indices).chunk_samples == left


# ---- NumPy's files -----------------------------------------------------------------------------------------------------


def test_npy_files_are_mapped_and_survive_pickling_as_paths(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1000, 100)) + np.arange(1000)[:, None])
    np.save(tmp_path / "y.npy", np.arange(1000))
    source = Npy({"a": tmp_path / "x.npy"}, tmp_path / "y.npy")
    inputs, targets = source.read(ANY_ORDER)
    assert same((inputs["a"][:, 7], targets), (ANY_ORDER.astype(float), ANY_ORDER))
    assert type(inputs["a"]) is np.ndarray
    pickled = pickle.dumps(source)
    assert len(pickled) < 2000, "the map would be pickled as a copy of the file"
    assert same(pickle.loads(pickled).read(ANY_ORDER), (inputs, targets))
    assert same(source.targets(), np.arange(1000))
    source.close()
    assert same(source.read(ANY_ORDER), (inputs, targets))
    assert [file["num_bytes"] for file in source.describe()["files"]] == [800128, 8128]


def test_npz_by_key_or_by_a_usual_pair(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=X, y=Y, other=X * 2)
    assert same(Npz(tmp_path / "a.npz").read(ANY_ORDER), (X[ANY_ORDER], Y[ANY_ORDER]))
    nested = Npz(tmp_path / "a.npz", inputs=("x", {"o": "other"}), targets="y")
    assert same(nested.read(ANY_ORDER)[0], (X[ANY_ORDER], {"o": X[ANY_ORDER] * 2}))
    with pytest.raises(UsageError, match=r"no 'othr' in .*a\.npz; did you mean 'other'\? Known: other, x, y"):
        Npz(tmp_path / "a.npz", inputs="othr", targets="y")
    np.savez(tmp_path / "b.npz", first=X, second=Y)
    with pytest.raises(UsageError, match="holds first, second; name the inputs"):
        Npz(tmp_path / "b.npz")
    np.save(tmp_path / "one.npy", X)
    with pytest.raises(UsageError, match="holds one array"):
        Npz(tmp_path / "one.npy")
    with pytest.raises(UsageError, match="holds several named arrays"):
        Npy(tmp_path / "b.npz")


@pytest.mark.parametrize("keep", [0, 3, 100, -30])
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_a_damaged_numpy_file_is_refused(tmp_path: Path, suffix: str, keep: int) -> None:
    file = tmp_path / f"x{suffix}"
    np.savez(file, x=X, y=Y) if suffix == ".npz" else np.save(file, X)
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(UsageError, match=rf"x\{suffix} (is empty|cannot be read)"):
        as_source(file)


# ---- anything with samples ---------------------------------------------------------------------------------------------


class Squares:
    """A data set as torch users write it."""

    targets = tuple(range(5))

    def __len__(self) -> int:
        return 5

    def __getitem__(self, number: int) -> Any:
        return {"a": np.full(3, number), "b": float(number)}, number**2


def test_samples_of_a_data_set_are_stacked() -> None:
    source = as_source(Squares())
    inputs, targets = source.read(np.array([4, 1, 4]))
    assert same((inputs["b"], targets), (np.array([4.0, 1.0, 4.0]), np.array([16, 1, 16])))
    assert inputs["a"].shape == (3, 3)
    assert same(source.targets(), np.arange(5))
    assert source.describe()["of"].endswith("Squares")


def test_a_list_of_inputs_has_no_targets() -> None:
    assert same(Items([np.zeros(2), np.ones(2)]).read(np.array([1])), (np.ones((1, 2)),))


def test_data_sets_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match="different shapes"):
        Items([np.zeros(2), np.ones(3)]).read(np.array([0, 1]))
    with pytest.raises(UsageError, match="has 4 parts"):
        Items([(1, 2, 3, 4)]).read(np.array([0]))
    with pytest.raises(UsageError, match="no samples"):
        Items([])
    with pytest.raises(UsageError, match="generator has no __len__"):
        as_source(value for value in range(3))


# ---- which source it becomes -------------------------------------------------------------------------------------------


def test_a_source_stays_itself_and_arrays_become_one() -> None:
    source = Arrays(X, Y)
    assert as_source(source) is source
    assert same(as_source((X, Y)).read(ANY_ORDER), (X[ANY_ORDER], Y[ANY_ORDER]))
    assert same(as_source({"a": X}).read(ANY_ORDER), ({"a": X[ANY_ORDER]},))
    assert isinstance(as_source([(X[0], 1)]), Items)


def test_a_path_that_says_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("x")
    with pytest.raises(UsageError, match=r"the suffix of .*notes\.md is not known .*\.h5"):
        as_source(tmp_path / "notes.md")
    np.savez(tmp_path / "train.npz", x=X)
    with pytest.raises(UsageError, match=r"trian\.npz does not exist; did you mean train\.npz\?"):
        as_source(tmp_path / "trian.npz")
    with pytest.raises(UsageError, match=r"inputs: options for files.*leave them out"):
        as_source((X, Y), inputs="x")


def test_a_package_that_is_not_there_is_named_with_its_remedy() -> None:
    with pytest.raises(UsageError, match=r"reading scrolls needs the package 'no_such_package'.*pip install 'unisono\[data\]"):
        load("no_such_package.inside", "scrolls")
