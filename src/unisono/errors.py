"""Every exception Unisono raises on purpose. A message gives the fact, the place and the remedy."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

STOPPED_CODE = 75
"""Exit code: stopped, checkpoint saved; the same command resumes. As sysexits.h calls it: try again later."""


class UnisonoError(Exception):
    """Base of all errors raised on purpose."""


class UsageError(UnisonoError):
    """A user's mistake: the command line shows the message alone and exits with code 2."""


class ReportedElsewhere(UnisonoError):
    """Another rank reports what went wrong; this one ends with the same exit code and no message."""

    def __init__(self, code: int) -> None:
        super().__init__("another rank says what went wrong")
        self.code = code


class CannotWrite(UsageError):
    """The system refuses to write a file: a full disk, a path without permission or that is gone."""


class InUse(UsageError):
    """Another process has the run directory; it may be about to end."""


class AnotherRun(UsageError):
    """The run directory holds another run, or what is left of one."""


class TrainingFailed(UnisonoError):
    """A training that cannot continue, e.g. as its loss is not finite: the message alone, and exit code 1."""


class CommError(UnisonoError):
    """A collective or message failed; the communicator cannot be used any more."""


class PeerLost(CommError):
    """Members of the group died, left or gave up. `ranks` are of the group in hand."""

    def __init__(self, ranks: Iterable[int], message: str) -> None:
        super().__init__(message)
        self.ranks = tuple(sorted(ranks))


class CollectiveTimeout(CommError):
    """The time limit passed before all members arrived. `ranks` are those that had not."""

    def __init__(self, ranks: Iterable[int], message: str) -> None:
        super().__init__(message)
        self.ranks = tuple(sorted(ranks))


class NotDone(CommError):
    """The time limit of a wait has passed; the call continues, and may be waited for again."""


class MismatchedCall(CommError):
    """Members called different operations, or the same one with different sizes or types."""


def join_ranks(ranks: Iterable[int]) -> str:
    """'rank 3' or 'ranks 1, 3', for messages."""
    ordered = sorted(ranks)
    return f"rank{'s' if len(ordered) != 1 else ''} {', '.join(map(str, ordered))}"


def unknown_name(what: str, name: str, known: Iterable[str]) -> UsageError:
    """Pure: the error for a name that is not among those known, with the nearest of them: `raise unknown_name(...)`."""
    names = sorted(known)
    near = " or ".join(repr(one) for one in get_close_matches(name, names, n=2))
    hint = f"did you mean {near}? " if near else ""
    return UsageError(f"unknown {what} {name!r}; {hint}Known: {', '.join(names) or 'none'}")
