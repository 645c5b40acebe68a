"""The list of what a folder must hold, sealed: manifest.json has size and hash of every file, and a hash of its own bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unisono.files.hashes import sha256_of
from unisono.files.tensor_file import FileDigest, write_pieces

MANIFEST = "manifest.json"
HEAD = b'{\n  "sha256": "'
"""First bytes of the file; the hash of all that follows the hash comes next, so that a change of any byte is noticed."""
SEAL_LENGTH = 64


class DamagedFolder(Exception):
    """Raised where a folder does not hold what its manifest says; names the file and what is wrong with it."""


def write_manifest(folder: Path, files: Mapping[str, FileDigest], about: Mapping[str, Any]) -> None:
    """Local, blocking: writes the manifest of these files of the folder, with plain values about them."""
    listed = {name: {"sha256": file.sha256, "bytes": file.num_bytes} for name, file in files.items()}
    text = json.dumps({"sha256": "0" * SEAL_LENGTH, **about, "files": listed}, indent=2) + "\n"
    write_pieces(folder / MANIFEST, iter([_sealed(text.encode())]))


def read_manifest(folder: Path) -> dict[str, Any]:
    """Local, blocking: checks every byte of the folder and returns the plain values about it; raises DamagedFolder."""
    try:
        if not folder.is_dir():
            raise DamagedFolder("it is not a directory")
        if not (folder / MANIFEST).is_file():
            raise DamagedFolder(f"it has no {MANIFEST}")
        text = (folder / MANIFEST).read_bytes()
        if text != _sealed(text):
            raise DamagedFolder(f"{MANIFEST} was changed after it was written")
        manifest: dict[str, Any] = json.loads(text)
        _check_files(folder, {name: FileDigest(file["sha256"], file["bytes"]) for name, file in manifest["files"].items()})
    except OSError as error:
        raise DamagedFolder(f"{Path(error.filename or folder).name} cannot be read: {error.strerror or error}") from error
    return manifest


def _check_files(folder: Path, files: Mapping[str, FileDigest]) -> None:
    """Checks that the folder holds exactly these files, with these sizes and hashes; raises `DamagedFolder` otherwise."""
    there = {entry.name for entry in folder.iterdir()} - {MANIFEST}
    if missing := sorted(files.keys() - there):
        raise DamagedFolder(f"{missing[0]} is missing")
    if extra := sorted(there - files.keys()):
        raise DamagedFolder(f"{extra[0]} does not belong there")
    for name, written in files.items():
        if (num_bytes := (folder / name).stat().st_size) != written.num_bytes:
            raise DamagedFolder(f"{name} has {num_bytes} bytes instead of {written.num_bytes}")
        if sha256_of(folder / name) != written.sha256:
            raise DamagedFolder(f"{name} was changed after it was written")


def _sealed(text: bytes) -> bytes:
    """Returns the text of a manifest with its recomputed hash in its head."""
    rest = text[len(HEAD) + SEAL_LENGTH :]
    return HEAD + hashlib.sha256(rest).hexdigest().encode() + rest
