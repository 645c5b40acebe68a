"""Redirection of what a trial and its libraries print to a file of the trial. A trial that prints nothing leaves no file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MOST_TRIES = 3


class TrialOutput:
    """The output of one process, trial after trial. Local."""

    def __init__(self) -> None:
        self._empty: tuple[Path, int] | None = None
        """The file of a trial that has printed nothing, and its descriptor."""

    @contextmanager
    def redirected_to(self, file: Path, is_only_writer: bool, is_only_file: bool) -> Iterator[None]:
        """Appends what is printed meanwhile to a file. `is_only_writer`: no other process writes to it; `is_only_file`: its folder
        holds nothing else."""
        _flush()
        target = self._open(file)
        before = [os.dup(descriptor) for descriptor in (1, 2)]
        for descriptor in (1, 2):
            os.dup2(target, descriptor)
        try:
            yield
        finally:
            _flush()
            for descriptor, kept in zip((1, 2), before, strict=True):
                os.dup2(kept, descriptor)
                os.close(kept)
            if is_only_writer and not os.fstat(target).st_size:
                self._empty = (file, target)
                if not is_only_file:
                    self.remove_empty()
            else:
                os.close(target)

    def remove_empty(self) -> None:
        """Removes the empty file of a silent trial, and its folder where that is empty."""
        if self._empty is not None:
            (file, target), self._empty = self._empty, None
            os.close(target)
            with suppress(OSError):
                file.unlink()
                file.parent.rmdir()

    def _open(self, file: Path) -> int:
        """Opens the file of a trial for appending, in a new folder; the null device if that fails. Returns a descriptor."""
        if self._empty is not None and self._empty[0].name == file.name:  # the folder of a silent trial becomes the next one's
            with suppress(OSError):
                self._empty[0].parent.rename(file.parent)
                target, self._empty = self._empty[1], None
                return target
        self.remove_empty()
        for _ in range(MOST_TRIES):  # another part of the trial may remove its folder between
            with suppress(OSError):
                file.parent.mkdir(parents=True, exist_ok=True)
                return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        return os.open(os.devnull, os.O_WRONLY)  # the journal reports the cause, where it matters


def _flush() -> None:
    """Flushes what Python has buffered of standard output and error."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
