"""How a program of ours ends when nobody catches our errors: one message with its place, instead of a traceback."""

from __future__ import annotations

import dataclasses
import sys
import traceback
from pathlib import Path
from types import TracebackType

from unisono.errors import AlreadyTold, PeerLost, TrainingFailed, UsageError


def show_errors_plainly() -> None:
    """Local: from now on an uncaught user's mistake is one line and exit code 2; a lost peer, or a training that cannot go on, one
    line and exit code 1; and what another rank tells is not told again.

    A hook that somebody else installed stays; every other error keeps its traceback.
    """
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, AlreadyTold):
        raise SystemExit(error.code)
    if not isinstance(error, (UsageError, PeerLost, TrainingFailed)):
        sys.__excepthook__(kind, error, trace)
        return
    print(f"unisono: error: {error}{place_of(trace)}", file=sys.stderr, flush=True)
    raise SystemExit(2 if isinstance(error, UsageError) else 1)  # the interpreter takes the exit code from here


def place_of(trace: TracebackType | None, *others: Path) -> str:
    """Pure: the innermost line of the user's own code, neither here nor in the folders of others; empty if there is none."""
    strange = {Path(__file__).parent, *others}
    frames = [
        frame
        for frame in traceback.extract_tb(trace)
        if strange.isdisjoint(Path(frame.filename).parents)
        and frame.filename != dataclasses.__file__
        and (frame.filename, frame.name) != ("<string>", "__init__")  # which dataclasses write
    ]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
