"""Every exception Unisono raises on purpose. A message gives the fact, the place and the remedy."""

from __future__ import annotations

from collections.abc import Iterable


class UnisonoError(Exception):
    """Base of all errors raised on purpose."""


class UsageError(UnisonoError):
    """A user's mistake: the command line shows the message alone and exits with code 2."""


class CommError(UnisonoError):
    """A collective or message failed; the communicator is spent."""


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


class MismatchedCall(CommError):
    """Members called different operations, or the same one with different sizes or types."""


def join_ranks(ranks: Iterable[int]) -> str:
    """'rank 3' or 'ranks 1, 3', for messages."""
    ordered = sorted(ranks)
    return f"rank{'s' if len(ordered) != 1 else ''} {', '.join(map(str, ordered))}"
