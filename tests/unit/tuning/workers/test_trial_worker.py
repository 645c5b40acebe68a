"""What a failure of a trial was, in a word: by it is decided whether the trial has failed, is begun again, or the job stops."""

from __future__ import annotations

import errno

import pytest

from unisono.errors import CannotWrite, CommError, InUse, TrainingFailed, UsageError
from unisono.tuning.workers.trial_worker import DISK, DIVERGED, ERROR, MEMORY, MISTAKE, PEER, classify_failure


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error, kind",
    [
        (ValueError("x"), ERROR),
        (MemoryError(), MEMORY),
        (RuntimeError("CUDA out of memory"), MEMORY),
        (TrainingFailed("the loss is nan"), DIVERGED),
        (UsageError("no such layer"), MISTAKE),
        (InUse("another process is there"), PEER),
        (CommError("rank 1 is gone"), PEER),
        (CannotWrite("no space"), DISK),
        (caused(TrainingFailed("no space"), CannotWrite("no space")), DISK),
        (OSError(errno.ENOSPC, "No space left on device"), DISK),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), DISK),
        (caused(RuntimeError("cannot save"), OSError(errno.ENOSPC, "No space left on device")), DISK),
        (FileNotFoundError(errno.ENOENT, "No such file"), ERROR),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{type(value).__name__} {value}",
)
def test_kinds_of_failures(error: Exception, kind: str) -> None:
    assert classify_failure(error)[0] == kind
