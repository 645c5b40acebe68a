"""How the ranks of a set find out what all of them have submitted, in whatever order each did. Pure: no thread, no communication.

In every round each rank shows one short vector of marks, of which all learn the minimum:

    byte 0      0 if this rank has requests to send in full
    byte 1      1 if this rank leaves the set
    byte 2+s    1 if it has submitted, unchanged, what slot s of the cache says

What all have marked is agreed. Only if some rank has requests to send do all exchange full requests: those that the cache does not
know, or that differ from it. All ranks remember a request, so it is sent once. Every rank receives the same in the same order and
so decides the same; no rank is special.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from unisono.errors import join_ranks
from unisono.horovod._impl.engine.agreed_operation import Agreement, reason_against_joined
from unisono.horovod._impl.engine.agreement_cache import Cache
from unisono.horovod._impl.engine.operation_request import JOIN, Request, disagreement

HEAD = 2
"""Bytes before the marks of the cache."""

Marks = NDArray[np.uint8]


class Negotiation:
    """One rank's view of the negotiation. `ranks` are the ranks in the whole job, by rank of the set, for errors."""

    def __init__(self, rank: int, ranks: Sequence[int], capacity: int) -> None:
        self._rank = rank
        self._ranks = tuple(ranks)
        self._cache = Cache(capacity)
        self._marked: dict[str, tuple[int, Request]] = {}
        """Requests of this rank that equal the cached ones, with their slots."""
        self._unsent: dict[str, Request] = {}
        """Requests of this rank that the others do not know yet."""
        self._pending: dict[str, dict[int, Request]] = {}
        """Name -> the requests received so far, by rank, of operations that are not agreed yet."""
        self._joined: dict[int, Request] = {}
        """In the order in which they joined."""

    # ---- this rank's side ------------------------------------------------------------------------------------------

    @property
    def is_waiting(self) -> bool:
        """Whether an operation that was submitted here is not agreed yet."""
        return bool(self._marked or self._unsent) or any(self._rank in heard for heard in self._pending.values())

    @property
    def has_joined(self) -> bool:
        """Whether this rank has joined, and so takes part in whatever the others do."""
        return self._rank in self._joined

    @property
    def num_marks(self) -> int:
        """Length of the vector of marks, the same on all ranks: two flags and one mark for each slot of the cache."""
        return HEAD + self._cache.num_slots

    def submit(self, request: Request) -> None:
        """Adds a request of this rank. A name must not be submitted again before it is agreed."""
        if request.kind == JOIN:  # what is only marked would be lost if all join in one round, so from now on it is sent in full
            for name in list(self._marked):
                self._unmark(name)
        slot = self._cache.slot(request.name)
        if slot is not None and self._cache.at(slot).requests[self._rank] == request:
            self._marked[request.name] = slot, request
        else:
            self._unsent[request.name] = request

    def mark(self, marks: Marks, leaving: bool = False) -> None:
        """Writes this rank's flags and marks into the vector `marks`."""
        marks[:] = 1 if self.has_joined else 0  # a rank that has joined agrees to everything but its own open requests
        marks[0] = 0 if self._unsent else 1
        marks[1] = leaving
        for slot, _ in self._marked.values():
            marks[HEAD + slot] = 1
        for name in self._unsent:
            known = self._cache.slot(name)
            if known is not None:
                marks[HEAD + known] = 0

    def take_unsent(self) -> list[Request]:
        """Returns the requests that the others do not know yet, which count as sent from now on."""
        requests = list(self._unsent.values())
        self._unsent.clear()
        return requests

    # ---- what all receive ------------------------------------------------------------------------------------------

    def apply_marks(self, least: Marks) -> list[Agreement]:
        """Returns the agreements that follow from the minimum of all vectors, in the order in which all ranks carry them out."""
        agreed = []
        for slot in np.flatnonzero(least[HEAD:]).tolist():
            agreement = self._cache.use(slot)
            self._marked.pop(agreement.name, None)
            agreed.append(self._despite_joined(agreement) if self._joined else agreement)
        return agreed

    def apply_requests(self, everybody: Sequence[Iterable[Request]]) -> list[Agreement]:
        """Returns the agreements that are complete with these requests, given by rank."""
        before = len(self._joined)
        changed: dict[str, None] = {}
        for rank, requests in enumerate(everybody):
            for request in requests:
                if request.kind == JOIN:
                    self._joined[rank] = request
                    continue
                if self._cache.slot(request.name) is not None:  # a rank means something else by it than before
                    self._drop_from_cache(request.name)
                self._pending.setdefault(request.name, {})[rank] = request
                changed[request.name] = None
        names = list(self._pending) if len(self._joined) > before else list(changed)
        agreed = [agreement for name in names if (agreement := self._agreement_if_complete(name)) is not None]
        if len(self._joined) == len(self._ranks):
            requests_of_join = tuple(self._joined[rank] for rank in range(len(self._ranks)))
            agreed.append(Agreement(requests_of_join, last_joined=list(self._joined)[-1]))
            self._joined.clear()
        return agreed

    def _agreement_if_complete(self, name: str) -> Agreement | None:
        """Returns the agreement, or refusal, of a name once every rank has submitted it or joined, and caches it; None before."""
        heard = self._pending[name]
        if not all(rank in heard or rank in self._joined for rank in range(len(self._ranks))):
            return None
        del self._pending[name]
        error = disagreement({self._ranks[rank]: heard[rank] for rank in sorted(heard)})
        agreement = Agreement(tuple(heard.get(rank) for rank in range(len(self._ranks))), error)
        if error is None and self._joined:
            agreement = self._despite_joined(agreement)
        elif error is None and agreement.first.comes_again:
            gone = self._cache.put(agreement)
            if gone is not None:
                self._unmark(gone)
        return agreement

    def _despite_joined(self, agreement: Agreement) -> Agreement:
        """Returns the agreement with the ranks that have joined; a refusal if it cannot be done without their data."""
        absent = [self._ranks[rank] for rank in self._joined]
        return Agreement(agreement.requests, reason_against_joined(agreement.first, join_ranks(absent)), joined=self._joined)

    def _drop_from_cache(self, name: str) -> None:
        """Removes the agreement of that name from the cache; this rank's request for it is sent in full again."""
        self._cache.drop(name)
        self._unmark(name)

    def _unmark(self, name: str) -> None:
        """Moves a marked request back to the unsent ones, as its slot is gone."""
        marked = self._marked.pop(name, None)
        if marked is not None:
            self._unsent[name] = marked[1]
