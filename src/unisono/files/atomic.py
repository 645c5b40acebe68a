"""Atomic writes: a file is written under another name, then renamed. Errors of the file system become messages with a remedy."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from unisono.errors import CannotWrite

REMEDIES = (
    ((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free some space, or write elsewhere (--out)"),
    ((errno.EACCES, errno.EPERM, errno.EROFS), "give a place where you may write (--out)"),
    ((errno.ENOTDIR, errno.EEXIST), "a file is where a directory should be; give another place (--out)"),
)


@contextmanager
def atomic_replacement(path: Path) -> Iterator[Path]:
    """Local, blocking: a context that gives another name beside `path` to write to; that file replaces `path` once all is on the
    disk.

    If the body fails, what was at `path` stays as it was and nothing is left of the attempt.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        with explain_os_errors(path):
            draft.touch()
            usual = draft.stat().st_mode
            yield draft
            draft.chmod(usual)  # some writers put a file of their own there that only its owner may read
            fsync_path(draft)
            draft.replace(path)
            fsync_path(path.parent)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def explain_os_errors(path: Path) -> Iterator[None]:
    """A context that turns an error of the file system into one message with the path, the reason and the remedy."""
    try:
        yield
    except OSError as error:
        raise CannotWrite(f"cannot write {path}: {error.strerror or error}; {remedy_for(error)}") from error


def remedy_for(error: OSError) -> str:
    """Pure: what to do about a file that cannot be written."""
    return next((text for numbers, text in REMEDIES if error.errno in numbers), "give another place (--out)")


def fsync_path(path: Path) -> None:
    """Local, blocking: returns when the content of a file or directory is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
