"""The journal of a study: what happened, record after record, in a folder that any number of jobs may share.

Every writer has a separate file, so that no lock is needed, also on network file systems. A record is

    RS  checksum  space  JSON  LF          RS = 0x1e, which never occurs in JSON; the checksum is that of the JSON

A byte that is lost or changed costs the record in which it lies: a reader continues with the next RS, and reports what it lost.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from unisono.errors import CannotWrite
from unisono.files.atomic import explain_os_errors, fsync_path

START, END = b"\x1e", b"\n"
SUFFIX = ".journal"
CHECKSUM_BYTES = 8


class Record(NamedTuple):
    """One record of one writer."""

    writer: str
    number: int
    """Its number among the readable records of its writer."""
    value: Mapping[str, Any]


class Damage(NamedTuple):
    """A stretch of a file that is no record."""

    file: Path
    offset: int
    num_bytes: int

    def __str__(self) -> str:
        return f"{self.file}: {self.num_bytes} bytes at {self.offset} cannot be read; at most one record is lost there"


def encode_record(value: Mapping[str, Any]) -> bytes:
    """Pure: returns the bytes of a record in a file."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=True, default=plain).encode()
    return b"%c%08x %s%c" % (START, zlib.crc32(text), text, END)


def plain(value: Any) -> Any:
    """Pure, for `json.dumps`: returns a number of another library as a Python number."""
    if hasattr(value, "item"):  # a number of NumPy's
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be written into a journal")


def decode_record(body: bytes) -> Mapping[str, Any] | None:
    """Pure: returns the record between START and END; None where it is damaged."""
    checksum, space, text = body[:CHECKSUM_BYTES], body[CHECKSUM_BYTES : CHECKSUM_BYTES + 1], body[CHECKSUM_BYTES + 1 :]
    if space != b" " or not text or checksum != b"%08x" % zlib.crc32(text):
        return None
    found: Mapping[str, Any] = json.loads(text)
    return found


class Writer:
    """Writes one job's file. Local; a record is on the disk when `append` returns, or with `later` when `flush_to_disk` returns."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{name}{SUFFIX}"
        self._is_synced = True
        with explain_os_errors(self.path):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                self._handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
            except FileExistsError:
                raise CannotWrite(f"{self.path} belongs to another writer; a restarted job must write under a new name") from None
            fsync_path(folder)

    def append(self, value: Mapping[str, Any], later: bool = False) -> None:
        """Local, blocking: writes one record."""
        record = encode_record(value)
        with explain_os_errors(self.path):
            while record:  # a full disk may take a part of it, which a reader then skips
                record = record[os.write(self._handle, record) :]
        self._is_synced = False
        if not later:
            self.flush_to_disk()

    def flush_to_disk(self) -> None:
        """Local, blocking: returns when all records written so far are on the disk; one wait for many records."""
        if not self._is_synced:
            with explain_os_errors(self.path):
                os.fsync(self._handle)
            self._is_synced = True

    def close(self) -> None:
        """Local: closes the file."""
        os.close(self._handle)


@dataclass
class _File:
    path: Path
    offset: int = 0
    """Position up to which it was read."""
    num_records: int = 0


@dataclass
class Reader:
    """Reads all files of a folder; each call continues where the last one ended. Local; writers may write meanwhile."""

    folder: Path
    left_out_writer: str = ""
    """The writer whose file is not read."""
    damages: list[Damage] = field(default_factory=list)
    """All stretches that could not be read so far."""
    _files: dict[str, _File] = field(default_factory=dict)

    def read(self, is_over: bool = False) -> list[Record]:
        """Blocking: returns the new records, those of one writer in their order. Bytes at the end of a file that are no whole
        record are left for the next call, as the writer may still be writing it; with `is_over` they count as damage."""
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            if path.name != f"{self.left_out_writer}{SUFFIX}":
                self._files.setdefault(path.name, _File(path))
        return [record for file in self._files.values() for record in self._read_file(file, is_over)]

    def unfinished(self) -> list[Path]:
        """Blocking, after `read`: returns the files that end within a record, because the writer is writing it or died."""
        return [file.path for file in self._files.values() if file.path.stat().st_size > file.offset]

    def _read_file(self, file: _File, is_over: bool) -> list[Record]:
        """Returns the complete new records of one file and moves its offset behind them; damaged bytes are noted in `damages`."""
        with file.path.open("rb") as opened:
            opened.seek(file.offset)
            data = opened.read()
        found, place = list[Record](), 0
        while place < len(data):
            start = data.find(START, place)
            if start != place:  # something stands before the next record
                stop = len(data) if start < 0 else start
                if start < 0 and not is_over:
                    break
                self.damages.append(Damage(file.path, file.offset + place, stop - place))
                place = stop
                continue
            after = data.find(START, start + 1)
            end = data.find(END, start + 1, len(data) if after < 0 else after)
            if end < 0 and after < 0 and not is_over:
                break
            body = data[start + 1 : end] if end >= 0 else data[start + 1 : after - 1] if after >= 0 else data[start + 1 :]
            value = decode_record(body)
            if value is None and after < 0 and not is_over:
                break  # a network file system may show the end of a record before its middle
            if value is None:
                stop = after if after >= 0 else len(data)
                self.damages.append(Damage(file.path, file.offset + start, stop - start))
                place = stop
                continue
            found.append(Record(file.path.name.removesuffix(SUFFIX), file.num_records, value))
            file.num_records += 1
            place = end + 1 if end >= 0 else after if after >= 0 else len(data)
        file.offset += place
        return found
