"""Every exception Unisono raises on purpose. A message gives the fact, the place and the remedy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

STOPPED_CODE = 75
"""Exit code: stopped, checkpoint saved; the same command resumes. As sysexits.h calls it: try again later."""


class UnisonoError(Exception):
    """Base class of every error that Unisono raises on purpose.

    `except un.UnisonoError` catches them all. The message names what is wrong, where, and what to do about it. Any other
    exception comes from your own code, from a library, or from a bug of ours.
    """


class UsageError(UnisonoError):
    """A mistake in what was asked for: an unknown name, a value out of range, a file that is not there.

    The message says what to change. On the command line it is printed without a traceback, and the exit code is 2.
    """


class ReportedElsewhere(UnisonoError):
    """Another rank reports what went wrong; this one ends with the same exit code and no message."""

    def __init__(self, code: int) -> None:
        super().__init__("another rank reports the error")
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
    """A message or a collective call has failed, and its communicator cannot be used any more.

    The process itself lives on: it may save its work and, except under MPI, open another communicator.
    """


class PeerLost(CommError):
    """Other members of the group died, left, or gave up.

    `ranks` is the tuple of those members, by their rank in the group whose call failed. If a member raised an exception,
    the message holds its text.
    """

    def __init__(self, ranks: Iterable[int], message: str) -> None:
        super().__init__(message)
        self.ranks = tuple(sorted(ranks))


class CollectiveTimeout(CommError):
    """A collective call has waited for longer than its time limit.

    `ranks` is the tuple of the members that had not arrived; the message says what each of them was doing, as far as it is
    known.
    """

    def __init__(self, ranks: Iterable[int], message: str) -> None:
        super().__init__(message)
        self.ranks = tuple(sorted(ranks))


class NotDone(CommError):
    """The time limit of a wait has passed; the call continues, and may be waited for again."""


class MismatchedCall(CommError):
    """Members called different operations, or the same operation with different sizes, element types, or reductions.

    All members must make the same collective calls in the same order. The message shows the two calls that differ.
    """


def join_ranks(ranks: Iterable[int]) -> str:
    """Returns the ranks as text for messages: 'rank 3' or 'ranks 1, 3'."""
    ordered = sorted(ranks)
    return f"rank{'s' if len(ordered) != 1 else ''} {', '.join(map(str, ordered))}"


def unknown_name(what: str, name: str, known: Iterable[str], place: str = "") -> UsageError:
    """Pure: the error for a name that is not among those known, with the nearest of them: `raise unknown_name(...)`. `place`
    follows the name: unknown option 'momentun' of optimizer sgd."""
    names = sorted(known)
    return UsageError(f"unknown {what} {name!r}{place and ' '}{place}; {_known_names(name, names)}")


def _known_names(name: str, names: Sequence[str]) -> str:
    """Pure: the end of a message about an unknown name: "did you mean 'lr'? Known: lr, seed", or "known: lr, seed"."""
    near = " or ".join(repr(one) for one in get_close_matches(name, names, n=2))
    return f"{f'did you mean {near}? Known' if near else 'known'}: {', '.join(names) or 'none'}"
