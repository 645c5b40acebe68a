"""Lists of files as users give them: a path, a pattern, a list of paths, or a text file that lists paths. Checked before
reading."""

from __future__ import annotations

import difflib
import glob
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeAlias

from unisono.errors import UsageError

PathName: TypeAlias = str | PathLike[str]
Files: TypeAlias = PathName | Sequence[PathName]

LISTED_FILES = 64
"""Maximum number of files that the record of a run lists."""


def expand(files: Files, what: str, folders: bool = False) -> tuple[Path, ...]:
    """Local: returns the files that a path, a pattern (`*.h5`, sorted by name), a list of these or a text file (`.txt`, one path
    a line, relative to the text file) stands for. Each is there and not empty; `folders` allows folders (Zarr)."""
    names = [files] if isinstance(files, (str, PathLike)) else list(files)
    found = [path for name in names for path in _expand_name(fspath(name), what)]
    if not found:
        raise UsageError(f"{what}: the list of files is empty; give at least one")
    for path in found:
        require_file(path, what, folders)
    return tuple(found)


def _expand_name(name: str, what: str) -> list[Path]:
    """Returns the files that a name stands for: the lines of a .txt list, the matches of a pattern, or the path itself."""
    path = Path(name).expanduser()
    if path.suffix == ".txt" and path.is_file():
        lines = [line.strip() for line in path.read_text().splitlines()]
        listed = [path.parent / line for line in lines if line and not line.startswith("#")]
        if not listed:
            raise UsageError(f"{what}: the list of files {path} is empty; write one path on each line")
        return listed
    if glob.has_magic(name) and not path.exists():
        matching = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207 - absolute patterns too
        if not matching:
            raise UsageError(
                f"{what}: no file matches {name}; check the pattern "
                f"(the nearest folder that exists is {_nearest_existing_folder(path)})"
            )
        return matching
    return [path]


def require_file(path: Path, what: str, folders: bool = False) -> Path:
    """Local: returns the path; refuses one that is no file or an empty file."""
    if not path.exists():
        raise UsageError(f"{what}: {path} does not exist{_nearest_file(path)}")
    if not os.access(path, os.R_OK):
        raise UsageError(f"{what}: you have no permission to read {path}; ask its owner (ls -l {path})")
    if path.is_dir():
        if not folders:
            raise UsageError(f"{what}: {path} is a folder; give a file")
    elif not path.stat().st_size:
        raise UsageError(f"{what}: {path} is empty (0 bytes); copy or download it again")
    return path


def _nearest_existing_folder(path: Path) -> Path:
    return next(parent for parent in path.absolute().parents if parent.exists())


def _nearest_file(path: Path) -> str:
    """Returns the end of a message about a missing file: similar names, or which folder exists."""
    if not path.parent.is_dir():
        return f"; neither does its folder (the nearest that exists is {_nearest_existing_folder(path)})"
    near = difflib.get_close_matches(path.name, [entry.name for entry in path.parent.iterdir()], n=3)
    return f"; did you mean {', '.join(near)}?" if near else f"; its folder {path.parent.absolute()} exists"


def missing_key(key: str, known: Iterable[str], where: str) -> UsageError:
    """Makes the error of a key that is not there, with the nearest names and all that are."""
    names = sorted(known)
    near = difflib.get_close_matches(key, names, n=3, cutoff=0.5) or [name for name in names if name.lower() == key.lower()]
    hint = f"did you mean {' or '.join(repr(name) for name in near)}? Known" if near else "known"
    return UsageError(f"there is no {key!r} in {where}; {hint}: {', '.join(names) or 'nothing'}")


def unreadable(path: Path, kind: str, error: Exception) -> UsageError:
    """Makes the error of a file that its reader refuses."""
    return UsageError(f"{path} cannot be read as {kind} ({error}); the file is truncated or in another format: get it again")


def file_facts(paths: Iterable[Path]) -> list[Mapping[str, Any]]:
    """Local: returns names and sizes, for the record of a run. A folder has no size (a Zarr store may hold a million files), and
    very many files become one entry."""
    files = list(paths)
    facts: list[dict[str, Any]] = [
        {"name": str(path), **({} if path.is_dir() else {"num_bytes": path.stat().st_size})} for path in files
    ]
    if len(files) <= LISTED_FILES:
        return list(facts)
    total = sum(entry.get("num_bytes", 0) for entry in facts)
    return [{"name": f"{files[0]} ...", "num_files": len(files), "num_bytes": total, "names_sha256": names_sha256(files)}]


def names_sha256(paths: Iterable[Path]) -> str:
    """Pure: returns a hash of the names of many files and their order, without their folders."""
    return hashlib.sha256("\n".join(path.name for path in paths).encode()).hexdigest()
