"""Tables with chosen columns, and arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from unisono.errors import UsageError
from unisono.predict.formats import Columns, Layout, choose_columns, writer

FIELDS = ("p0", "p1", "p2")


def test_columns_are_chosen_by_field_or_renamed_in_order() -> None:
    assert choose_columns((), FIELDS, None, False) == Columns("index", FIELDS, (0, 1, 2))
    assert choose_columns((), FIELDS, None, True).id_name == "id"
    assert choose_columns(("p2", "p0"), FIELDS, None, False) == Columns("index", ("p2", "p0"), (2, 0))
    assert choose_columns(("target=p1",), FIELDS, "image_id", True) == Columns("image_id", ("target",), (1,))
    assert choose_columns(("a", "b", "c"), FIELDS, None, False) == Columns("index", ("a", "b", "c"), (0, 1, 2))


@pytest.mark.parametrize(
    ("asked", "fields", "message"),
    [
        (("a", "b"), FIELDS, "no field 'a'.*p0, p1, p2"),
        (("a=p7",), FIELDS, "no field 'p7'"),
        (("p0", "p2", "pl"), FIELDS, "no field 'pl'"),
        (("p0", "p0"), FIELDS, "two columns have the same name"),
        (("index=p0",), FIELDS, "two columns have the same name"),
        ((), None, r"several axes; use --out with \.npy or \.h5"),
    ],
)
def test_columns_that_are_not_there_are_refused(asked: tuple[str, ...], fields: tuple[str, ...] | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        choose_columns(asked, fields, None, False)


def rows(values: np.ndarray) -> list[tuple[slice, np.ndarray]]:
    return [(slice(0, 2), values[:2]), (slice(2, len(values)), values[2:])]


def test_a_table_reads_back_unchanged(tmp_path: Path) -> None:
    values = np.random.default_rng(1).random((5, 3)).astype(np.float32)
    out = tmp_path / "a.csv"
    writer(out)(out, Layout(5, list("abcde"), choose_columns(("target=p1",), FIELDS, "image_id", True)), rows(values))
    lines = [line.split(",") for line in out.read_text().splitlines()]
    assert lines[0] == ["image_id", "target"]
    assert [line[0] for line in lines[1:]] == list("abcde")
    assert np.array_equal(np.array([line[1] for line in lines[1:]], dtype=np.float32), values[:, 1])


def test_labels_with_names_are_written_by_name(tmp_path: Path) -> None:
    out = tmp_path / "a.csv"
    labels = np.array([1, 0, 1, 1])
    writer(out)(out, Layout(4, None, choose_columns((), ("label",), None, False), ("cat", "dog")), rows(labels))
    assert out.read_text() == "index,label\n0,dog\n1,cat\n2,dog\n3,dog\n"


@pytest.mark.parametrize("suffix", [".npy", ".h5"])
def test_arrays_keep_shape_and_type(tmp_path: Path, suffix: str) -> None:
    values = np.random.default_rng(1).random((5, 2, 4)).astype(np.float32)
    out = tmp_path / f"a{suffix}"
    writer(out)(out, Layout(5, list("abcde"), None), rows(values))
    if suffix == ".npy":
        found = np.load(out)
    else:
        h5py = pytest.importorskip("h5py")
        with h5py.File(out) as file:
            found = file["predictions"][()]
            assert [name.decode() for name in file["id"][()]] == list("abcde")
    assert found.dtype == np.float32 and np.array_equal(found, values)


def test_an_unknown_suffix_is_refused() -> None:
    with pytest.raises(UsageError, match=r"must end in \.csv, \.npy"):
        writer(Path("a.txt"))
