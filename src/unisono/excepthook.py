"""How a program of ours ends when nobody catches our errors: one message with its place, instead of a traceback."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from types import TracebackType

from unisono.errors import PeerLost, UsageError


def show_errors_plainly() -> None:
    """Local: from now on an uncaught user's mistake is one line and exit code 2, a lost peer one line and exit code 1.

    A hook that somebody else installed stays; every other error keeps its traceback.
    """
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not isinstance(error, (UsageError, PeerLost)):
        sys.__excepthook__(kind, error, trace)
        return
    print(f"unisono: error: {error}{_place(trace)}", file=sys.stderr, flush=True)
    raise SystemExit(2 if isinstance(error, UsageError) else 1)  # the interpreter takes the exit code from here


def _place(trace: TracebackType | None) -> str:
    """The innermost line of the user's own code."""
    ours = Path(__file__).parent
    frames = [frame for frame in traceback.extract_tb(trace) if ours not in Path(frame.filename).parents]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
