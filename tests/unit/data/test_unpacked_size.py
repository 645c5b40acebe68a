"""A small file that unpacks to very much is refused before it fills memory or disk, in every form."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from unisono.data import unpacked_size
from unisono.data.download import unpack
from unisono.data.sources.idx import read_idx
from unisono.data.sources.nifti import NIfTI
from unisono.data.sources.numpy_files import Npz
from unisono.errors import UsageError

MANY = 4 << 20
REFUSED = r"bytes and unpacks to more than .*, 500 times its size or more"


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the files of a test may be small."""
    monkeypatch.setattr(unpacked_size, "HARMLESS_BYTES", 1 << 20)


def tar_of(path: Path, members: int) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for number in range(members):
            info = tarfile.TarInfo(f"set/{number}")
            info.size = MANY // members
            archive.addfile(info, io.BytesIO(bytes(info.size)))
    return path


def zip_of(path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("set/0", bytes(MANY))
    return path


@pytest.mark.usefixtures("little")
def test_an_archive_that_unpacks_to_a_thousand_times_its_size_is_refused(tmp_path: Path) -> None:
    for archive in (tar_of(tmp_path / "a.tar.gz", 1), tar_of(tmp_path / "b.tar.gz", 3), zip_of(tmp_path / "c.zip")):
        with pytest.raises(UsageError, match=REFUSED):
            unpack(archive, tmp_path / "set")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.gz", "b.tar.gz", "c.zip"]


@pytest.mark.usefixtures("little")
def test_a_compressed_file_of_samples_that_unpacks_to_a_thousand_times_its_size_is_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros(MANY, np.uint8), y=np.zeros(MANY, np.uint8))
    with pytest.raises(UsageError, match=REFUSED):
        Npz(tmp_path / "x.npz")
    (tmp_path / "images-ubyte.gz").write_bytes(gzip.compress(b"\0\0\x08\x01" + MANY.to_bytes(4, "big") + bytes(MANY)))
    with pytest.raises(UsageError, match=REFUSED):
        read_idx(tmp_path / "images-ubyte.gz")
    nibabel = pytest.importorskip("nibabel")
    nibabel.save(nibabel.Nifti1Image(np.zeros((256, 128, 128), np.uint8), np.eye(4)), tmp_path / "v.nii")
    (tmp_path / "v.nii.gz").write_bytes(gzip.compress((tmp_path / "v.nii").read_bytes()))  # nibabel itself compresses less
    with pytest.raises(UsageError, match=REFUSED):
        NIfTI(tmp_path / "v.nii.gz", patch=(8, 8, 8))


def test_what_is_harmless_or_shrinks_as_usual_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpack(tar_of(tmp_path / "a.tar.gz", 2), tmp_path / "set")
    assert (tmp_path / "set" / "1").stat().st_size == MANY // 2
    monkeypatch.setattr(unpacked_size, "HARMLESS_BYTES", 1 << 10)
    np.savez_compressed(tmp_path / "x.npz", x=np.arange(1 << 18), y=np.zeros(1 << 18, np.uint8))
    assert len(Npz(tmp_path / "x.npz")) == 1 << 18
