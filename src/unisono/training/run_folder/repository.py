"""The state of the git repository in which a file lies: commit, and what was changed since."""

from __future__ import annotations

import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MOST_BYTES = 1_000_000
"""Most bytes of a diff; more would be data, not a change of the program."""
PATIENCE_S = 20.0


def repository_state(folder: Path, files: Sequence[Path], most_bytes: int = MOST_BYTES) -> dict[str, Any]:
    """Local, blocking: `commit`, `diff` of all tracked files against it, and which of `files` git does not know.

    Where that cannot be had, `missing` says why, and the run continues.
    """
    try:
        top = _git(folder, "rev-parse", "--show-toplevel").rstrip("\n")
        commit = _git(folder, "rev-parse", "HEAD").rstrip("\n")
        diff = _git(folder, "diff", "--no-ext-diff", "--no-textconv", "--no-color", "HEAD", most_bytes=most_bytes + 1)
        unknown = _git(folder, "ls-files", "--others", "--full-name", "-z", "--", *map(str, _files_inside(files, Path(top))))
    except FileNotFoundError:
        return {"missing": "git is not installed"}
    except _GitError as error:
        return {"missing": str(error)}
    return {
        "commit": commit,
        "is_dirty": bool(diff),
        "diff": diff.encode()[:most_bytes].decode(errors="replace"),
        "diff_is_cut": len(diff.encode()) > most_bytes,
        "untracked": sorted(filter(None, unknown.split("\0"))),
    }


class _GitError(Exception):
    """Error: git failed, with its message."""


def _files_inside(files: Sequence[Path], top: Path) -> list[Path]:
    return [file for file in files if file.is_relative_to(top.resolve())]


def _git(folder: Path, *arguments: str, most_bytes: int = MOST_BYTES) -> str:
    """Returns the first `most_bytes` of what a git command prints, as a diff may be larger than the memory. Raises _GitError if git
    fails or takes too long."""
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    with (
        tempfile.TemporaryFile() as complaints,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=complaints) as git,
    ):
        assert git.stdout is not None
        alarm = threading.Timer(PATIENCE_S, git.kill)
        alarm.start()
        try:
            text = git.stdout.read(most_bytes)
            is_cut = bool(git.stdout.read(1))
            git.stdout.close()  # ends a git that has more to say
            status = git.wait()
        finally:
            git.kill()
            alarm.cancel()
            alarm.join()
        complaints.seek(0)
        said = complaints.read(MOST_BYTES).decode(errors="replace").strip()
    if status != 0 and not is_cut:
        raise _GitError(said.splitlines()[0] if said else f"git gave no answer (status {status})")
    return text.decode(errors="replace")
