"""The size to which a compressed file may unpack: a small file that fills memory or disk is not unpacked."""

from __future__ import annotations

import gzip
import tarfile
import zipfile
from pathlib import Path

from unisono.errors import UsageError

MOST_TIMES = 500
"""Zeros shrink about 1000 times, data that somebody measured seldom more than ten times."""
HARMLESS_BYTES = 256 << 20
"""What unpacks to no more is never refused."""


def most_bytes(path: Path) -> int:
    """Local: returns the size to which a compressed file may unpack."""
    return max(HARMLESS_BYTES, MOST_TIMES * path.stat().st_size)


def check_zip(path: Path) -> None:
    """Local, blocking: refuses a zip or npz file whose members unpack to too much; what they say of themselves is also what can be
    read of them."""
    with zipfile.ZipFile(path) as archive:
        if sum(member.file_size for member in archive.infolist()) > most_bytes(path):
            raise unpacks_to_too_much(path)


def read_gzip(path: Path) -> bytes:
    """Local, blocking: returns the content of a gzip file."""
    most = most_bytes(path)
    with gzip.open(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise unpacks_to_too_much(path)
    return content


class TarLimit:
    """A filter for the members of a tar file, which refuses places outside of the folder, and too much in all."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._left = most_bytes(path)

    def __call__(self, member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
        """Returns the member as it may be unpacked. Called for each before it is written."""
        self._left -= member.size
        if self._left < 0:
            raise unpacks_to_too_much(self._path)
        return tarfile.data_filter(member, folder)


def unpacks_to_too_much(path: Path) -> UsageError:
    """Returns the error for a file that would fill memory or disk."""
    return UsageError(
        f"{path} has {path.stat().st_size} bytes and unpacks to more than {most_bytes(path)}, {MOST_TIMES} times its size or more, "
        "which could fill the memory or the disk; if you trust it, unpack it yourself and give the files"
    )
