"""Directories named by step, which appear and disappear atomically: a final name means complete, whenever a process is killed.

Hidden names beside them are temporary: `.step-00001200.PID.draft` is being written or removed, `.step-00001200.replaced` makes way
for another one of the same step, as directories cannot replace each other.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from unisono.errors import UsageError
from unisono.files.atomic import explain_os_errors, fsync_path

NAME = re.compile(r"(?P<aside>\.)?(?P<name>step-(?P<step>\d{8}|[1-9]\d{8,}))(?(aside)\.replaced)")
DRAFT = re.compile(r"\.step-\d{8,}\.\d+\.draft")


class StepFolders:
    """A parent directory and its step directories. One process at a time writes there; methods are local and blocking."""

    def __init__(self, parent: Path) -> None:
        self.parent = parent

    def path(self, step: int) -> Path:
        """Returns the path of the directory of a step, whether or not it exists."""
        return self.parent / f"step-{step:08d}"

    def list_steps(self) -> list[tuple[int, Path]]:
        """Returns steps and paths, the newest first. Changes nothing. A directory that is being replaced counts until the new
        one has its name."""
        try:
            names = {entry.name for entry in self.parent.iterdir()}
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UsageError(f"cannot read {self.parent}: {error.strerror or error}; give another place (--out)") from error
        matches = [match for name in names if (match := NAME.fullmatch(name))]
        return sorted(
            (
                (int(match["step"]), self.parent / match[0])
                for match in matches
                if match[0] == match["name"] or match["name"] not in names
            ),
            reverse=True,
        )

    @contextmanager
    def new_folder(self, step: int) -> Iterator[Path]:
        """A context that gives an empty directory; what the body wrote there, each file already on the disk, becomes the directory
        of the step at once.

        Removes what killed processes have left, first, as the disk may be full of it. If the body fails, nothing of it is left.
        """
        path = self.path(step)
        draft = _draft_path(path)
        with explain_os_errors(path):
            if not self.parent.is_dir():
                self.parent.mkdir()
                fsync_path(self.parent.parent)
            self._remove_leftovers()
            try:
                draft.mkdir()
                yield draft
                fsync_path(draft)
                aside = path.rename(_replaced_path(path)) if path.exists() else None
                draft.rename(path)
                fsync_path(self.parent)
            finally:
                _remove(draft)
            if aside is not None:
                _remove(aside)

    def remove(self, path: Path) -> None:
        """Removes a step directory: first its name, then the files."""
        with explain_os_errors(path):
            _remove(path.rename(_draft_path(path)))

    def _remove_leftovers(self) -> None:
        """Removes drafts of killed processes. Only one process writes here, so no draft is in use."""
        for entry in list(self.parent.iterdir()):
            if DRAFT.fullmatch(entry.name):
                _remove(entry)
            elif (match := NAME.fullmatch(entry.name)) and match["aside"]:
                if (self.parent / match["name"]).exists():
                    _remove(entry)
                else:
                    entry.rename(self.parent / match["name"])


def _draft_path(path: Path) -> Path:
    """Returns the hidden path under which this process writes a directory before it has its name."""
    return path.with_name(f".{path.name}.{os.getpid()}.draft")


def _replaced_path(path: Path) -> Path:
    """Returns the hidden path that a directory has while a new one takes its name."""
    return path.with_name(f".{path.name}.replaced")


def _remove(path: Path) -> None:
    """Removes a directory; where that fails now, it has a hidden name and is removed before the next one is written."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
