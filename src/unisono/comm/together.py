"""One message for one mistake: ranks that prepare the same thing fail together, and one of them says why."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TypeVar

from unisono.comm.base import Communicator
from unisono.errors import AlreadyTold, UsageError

T = TypeVar("T")


def together(comm: Communicator, prepare: Callable[[], T]) -> T:
    """Collective, blocking: `prepare`, which must be local, on every rank. If it fails anywhere, the first rank where it did
    raises its error and the others `AlreadyTold`: nobody goes on alone or waits for one who will not come."""
    failure: Exception | None = None
    try:
        value = prepare()
    except SystemExit as left:  # one who leaves without a word would look like one who died
        failure = UsageError(f"sys.exit({_code(left)}) was called {_place(left)}; raise an error instead, or return")
    except Exception as error:  # noqa: BLE001 - raised below, when the others know
        failure = error
    codes = comm.allgather_object(0 if failure is None else 2 if isinstance(failure, UsageError) else 1)
    first = next((rank for rank, code in enumerate(codes) if code), None)
    if first is None:
        return value
    if first == comm.rank and failure is not None:
        raise failure
    raise AlreadyTold(codes[first])


def _code(left: SystemExit) -> str:
    return "" if left.code is None else repr(left.code)


def _place(left: SystemExit) -> str:
    frame = traceback.extract_tb(left.__traceback__)[-1]
    return f"while the workers prepare ({frame.filename}, line {frame.lineno})"
