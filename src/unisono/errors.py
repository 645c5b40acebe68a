"""Every exception Unisono raises on purpose. A message gives the fact, the place and the remedy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path

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


def unknown_name(what: str, name: str, known: Iterable[str], place: str = "", also: Iterable[str] = ()) -> UsageError:
    """Pure: the error for a name that is not among those known, with the nearest of them: `raise unknown_name(...)`. `place`
    follows the name: unknown option 'momentun' of optimizer sgd. `also` may be meant as well, but is not listed."""
    names = sorted(known)
    hint = did_you_mean(name, (*names, *also))
    listed = f"{hint} Known" if hint else "known"
    return UsageError(f"unknown {what} {name!r}{place and ' '}{place}; {listed}: {', '.join(names) or 'none'}")


OTHER_NAMES: Mapping[str, str] = {
    "learning_rate": "lr",
    "batch_size": "global_batch",
    "num_epochs": "epochs",
    "num_workers": "n",
    "nproc_per_node": "n",
    "output_dir": "out",
}
"""What other programs call a setting -> what it is called here."""


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Pure: "did you mean 'lr'?", with at most two names that are spelled like this one or mean the same; `otherwise` if there are
    none. Dashes do not count, and of 'model.width' the last part is enough."""
    names = list(known)
    forms = {_plain(one).rpartition(".")[2]: one for one in reversed(names)}
    forms |= {_plain(one): one for one in reversed(names)}
    asked = _plain(name)
    if asked not in forms and OTHER_NAMES.get(asked) in forms:
        asked = OTHER_NAMES[asked]
    spelled = [asked] if asked in forms else get_close_matches(asked, forms, n=2)
    near = " or ".join(dict.fromkeys(repr(forms[form]) for form in spelled))
    return f"did you mean {near}?" if near else otherwise


def nearest_path(path: Path) -> str:
    """Local: "did you mean runs/digits?" for a path that does not exist, or "check the path" where nothing beside it is called
    alike."""
    near = get_close_matches(path.name, [entry.name for entry in path.parent.iterdir()], 1) if path.parent.is_dir() else []
    return f"did you mean {path.with_name(near[0])}?" if near else "check the path"


def _plain(name: str) -> str:
    """Returns a name without what an option of the command line adds to it."""
    return name.lstrip("-").replace("-", "_")
