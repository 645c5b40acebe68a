"""Ends a process with one message and its place, instead of a traceback, when an error of Unisono is not caught."""

from __future__ import annotations

import dataclasses
import sys
import traceback
from pathlib import Path
from types import TracebackType

from unisono.errors import PeerLost, ReportedElsewhere, TrainingFailed, UsageError


def install_excepthook() -> None:
    """Local: prints uncaught errors of Unisono as one line. A user's mistake ends with exit code 2; a lost peer, or a training that
    cannot continue, with exit code 1; an error that another rank reports is not repeated.

    A hook that was installed before stays; every other error keeps its traceback.
    """
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show_error


def _show_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Prints an uncaught error of Unisono on one line and ends with its exit code; other errors get Python's own traceback."""
    if isinstance(error, ReportedElsewhere):
        raise SystemExit(error.code)
    if not isinstance(error, (UsageError, PeerLost, TrainingFailed)):
        sys.__excepthook__(kind, error, trace)
        return
    print(f"unisono: error: {error}{user_code_line(trace)}", file=sys.stderr, flush=True)
    raise SystemExit(2 if isinstance(error, UsageError) else 1)  # the interpreter takes the exit code from here


def user_code_line(trace: TracebackType | None, *others: Path) -> str:
    """Pure: returns ' (file, line N)' of the innermost frame in the user's code, outside of this package and of `others`; empty
    if there is none."""
    not_user_code = {Path(__file__).parents[1], *others}
    frames = [
        frame
        for frame in traceback.extract_tb(trace)
        if not_user_code.isdisjoint(Path(frame.filename).parents)
        and frame.filename != dataclasses.__file__
        and (frame.filename, frame.name) != ("<string>", "__init__")  # which dataclasses write
    ]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
