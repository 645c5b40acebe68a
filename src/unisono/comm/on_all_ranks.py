"""Runs a local preparation on all ranks; it succeeds on all or fails on all, with one error message for one mistake."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TypeVar

from unisono.comm.base import Communicator
from unisono.errors import ReportedElsewhere, UsageError

T = TypeVar("T")


def on_all_ranks(comm: Communicator, prepare: Callable[[], T]) -> T:
    """Collective, blocking: runs `prepare`, which must be local, on every rank and returns its result. If it fails on any rank, all
    ranks raise: the first failing rank its own error, the others `ReportedElsewhere`. So no rank waits for one that has failed.
    """
    failure: Exception | None = None
    try:
        value = prepare()
    except SystemExit as left:  # a rank that exits without an error would seem to have died
        failure = UsageError(
            f"sys.exit({_exit_code_text(left)}) was called {_place_of_exit(left)}; raise an error instead, or return"
        )
    except Exception as error:  # noqa: BLE001 - raised below, when the others know
        failure = error
    codes = comm.allgather_object(0 if failure is None else 2 if isinstance(failure, UsageError) else 1)
    first = next((rank for rank, code in enumerate(codes) if code), None)
    if first is None:
        return value
    if first == comm.rank and failure is not None:
        raise failure
    raise ReportedElsewhere(codes[first])


def _exit_code_text(left: SystemExit) -> str:
    """Returns the exit code of a `SystemExit` as text; empty for None."""
    return "" if left.code is None else repr(left.code)


def _place_of_exit(left: SystemExit) -> str:
    """Returns file and line at which a `SystemExit` was raised, for messages."""
    frame = traceback.extract_tb(left.__traceback__)[-1]
    return f"while the workers prepare ({frame.filename}, line {frame.lineno})"
