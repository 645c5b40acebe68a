"""Proposals made in advance, so that no block waits for one: a thread fills a small store, and replaces its proposals when new
results have come in, where that costs little. A single block gets proposals on demand, so that the seed alone decides them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from unisono.tuning.search.search import Proposal, Search

MAX_PREFETCHED = 32
SMOOTHING = 0.2
RENEW_SHARE = 0.25
"""Proposals are replaced only where all of them take less than this share of the time between two results."""
WAIT_SHARE = 0.05
"""A block does not wait longer than this share of a trial where the search has a fallback."""
FRESH_SHARE = 0.005
"""A block waits for a proposal that knows all results where that costs less than this share of a trial; then none is prefetched."""


class Proposals(Protocol):
    """The source of points for a coordinator."""

    def next_proposal(self, trial_s: float | None) -> Proposal | None:
        """Returns a proposal, made with all results if there is one; None while one is being made (the coordinator is then
        woken). Where waiting would cost too much of a trial, the search's fallback. Raises what ended the thread. Not
        blocking."""

    def on_result(self, result_every_s: float | None) -> None:
        """Notes that results have come in, about one every `result_every_s` seconds. Not blocking."""

    def close(self) -> None:
        """Ends the thread. Blocks until the proposal that is being made is done."""


class NoPrefetch:
    """Proposals of a search whose points are determined by the number of the trial: there is nothing to make in advance."""

    def next_proposal(self, trial_s: float | None) -> Proposal | None:  # noqa: ARG002
        """Returns None: the number of a trial determines its point."""
        return None

    def on_result(self, result_every_s: float | None) -> None:
        """Does nothing: results do not change the points."""

    def close(self) -> None:
        """Does nothing: no thread is running."""


class ProposalsOnDemand(NoPrefetch):
    """Proposals for a single block, made with all results in the thread that asks: how long things take decides no point."""

    def __init__(self, search: Search) -> None:
        self._search = search

    def next_proposal(self, trial_s: float | None) -> Proposal:  # noqa: ARG002
        """Returns a proposal that knows all results. Blocks while the search makes it."""
        return self._search.propose()


@dataclass
class _Prefetched:
    proposal: Proposal
    version: int


class Prefetcher:
    """Makes proposals in a thread, which calls `wake` whenever one is ready or making one has failed."""

    def __init__(self, search: Search, depth: int, wake: Callable[[], None]) -> None:
        self._search = search
        self._depth = min(max(depth, 1), MAX_PREFETCHED)
        self._wake = wake
        self._ready: deque[_Prefetched] = deque()
        self._version = 0
        self._proposal_s = 0.0
        self._result_every_s: float | None = None
        self._making_since: float | None = None
        """When the proposal that is being made was begun."""
        self._is_closed = self._is_awaited = self._is_on_demand = False
        self._changed = threading.Condition()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="unisono-proposals", daemon=True)
        self._warming = threading.Thread(target=search.warm_up, name="unisono-warm-up", daemon=True)
        self._thread.start()
        self._warming.start()

    def next_proposal(self, trial_s: float | None) -> Proposal | None:
        """As `Proposals.next_proposal`: a prefetched proposal, the fallback's, or None, after which the thread makes one and
        wakes."""
        with self._changed:
            if self.failure is not None:
                raise self.failure
            if (
                not self._ready
                and trial_s is not None
                and self._search.has_fallback
                and self._expected_wait_s() > WAIT_SHARE * trial_s
            ):
                return self._search.propose_by_fallback()
            self._is_on_demand = trial_s is not None and self._proposal_s < FRESH_SHARE * trial_s and self._is_cheap(1)
            if not self._ready or (self._is_on_demand and self._is_old(self._ready[-1])):
                self._is_awaited = True
                self._changed.notify()
                return None
            found = self._ready.pop() if self._is_old(self._ready[0]) else self._ready.popleft()
            self._is_awaited = False
            self._changed.notify()
            return found.proposal

    def on_result(self, result_every_s: float | None) -> None:
        """Notes that results have come in: proposals made before are now old."""
        with self._changed:
            self._version += 1
            self._result_every_s = result_every_s
            self._changed.notify()

    def close(self) -> None:
        """Ends the threads; blocks until the proposal that is being made is done."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()
        self._warming.join()

    def _run(self) -> None:
        """Makes proposals in the thread until `close`; keeps an error in `failure`, and wakes the coordinator."""
        try:
            while True:
                with self._changed:
                    while not self._is_closed and not self._has_work():
                        self._changed.wait()
                    if self._is_closed:
                        return
                    version, self._making_since = self._version, perf_counter()
                self._withdraw_old()
                self._make(version)
                self._wake()
        except BaseException as error:  # noqa: BLE001 - raised again by `next_proposal`
            self.failure = error
            self._wake()

    def _expected_wait_s(self) -> float:
        """Seconds that a proposal usually takes, or that the current one has taken if that is longer."""
        return max(self._proposal_s, 0.0 if self._making_since is None else perf_counter() - self._making_since)

    def _has_work(self) -> bool:
        """Whether a proposal should be made now: one is awaited, too few are ready, or old ones are cheap to replace."""
        if self._is_awaited and (not self._ready or self._is_old(self._ready[-1])):
            return True
        if self._is_on_demand:
            return False
        return len(self._ready) < self._depth or (self._is_cheap(self._depth) and self._is_old(self._ready[0]))

    def _is_cheap(self, num_proposals: int) -> bool:
        """Whether so many proposals can be replaced before the next result comes in."""
        return self._result_every_s is not None and num_proposals * self._proposal_s < RENEW_SHARE * self._result_every_s

    def _is_old(self, ready: _Prefetched) -> bool:
        """Whether results have come in since a proposal was made, and matter to the search."""
        return self._search.learns and ready.version != self._version

    def _withdraw_old(self) -> None:
        """Withdraws the proposals that are about to be replaced, before that is done, as a search avoids points that it has
        proposed. The last one stays for a block that does not wait for a better one."""
        old = list[_Prefetched]()
        with self._changed:
            if self._is_awaited or self._is_cheap(self._depth):
                while len(self._ready) > (not self._is_awaited) and self._is_old(self._ready[0]):
                    old.append(self._ready.popleft())
        for one in old:
            self._search.withdraw(one.proposal)

    def _make(self, version: int) -> None:
        """Makes one proposal, measures how long it takes, and stores it. `version`: number of results that it knows."""
        began = perf_counter()
        proposal = self._search.propose()
        took_s = perf_counter() - began
        with self._changed:
            self._proposal_s += (took_s - self._proposal_s) * (SMOOTHING if self._proposal_s else 1.0)
            self._ready.append(_Prefetched(proposal, version))
            self._making_since = None


def make_proposals(search: Search, num_blocks: int, wake: Callable[[], None]) -> Proposals:
    """Returns the source of points for so many blocks, which calls `wake` whenever a prefetched one is ready. Local."""
    if search.name == "grid":
        return NoPrefetch()
    return ProposalsOnDemand(search) if search.is_sequential else Prefetcher(search, num_blocks, wake)
