"""The queue of trials that this job has claimed, and the timer for sending them to blocks in advance."""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import replace

from unisono.tuning.search.prefetch import Proposals
from unisono.tuning.search.search import Search
from unisono.tuning.study.store import PendingTrial, Store

SHORT_S, MOST_CLAIMED = 10.0, 8


class TrialQueue:
    """The trials that this job has claimed and not begun. Local; blocks for as long as the file system takes to claim a trial."""

    def __init__(self, store: Store, search: Search, proposals: Proposals) -> None:
        self._store, self._search, self._proposals = store, search, proposals
        self._claimed: deque[PendingTrial] = deque()
        """Trials that no other job begins."""

    def put_back(self, pending: PendingTrial) -> None:
        """Puts a claimed trial that was not begun at the head of the queue."""
        self._claimed.appendleft(pending)

    def next_trial(self, trial_s: float | None) -> PendingTrial | None:
        """Returns the next trial with its settings. None where no trial is left, other jobs have all of them, or its settings are
        still being proposed. `trial_s` is how long a trial takes."""
        if not self._claimed:
            self.claim(1)
        if not self._claimed:
            return None
        pending = self._claimed[0]
        if pending.values is None:
            proposal = self._search.grid_point(pending.number) or self._proposals.next_proposal(trial_s)
            if proposal is None:
                return None
            self._search.start_trial(pending.number, proposal)
            values = proposal.values or self._search.suggest_known_names(pending.number)
            pending = replace(pending, values=values, is_new=True)
        self._claimed.popleft()
        return pending

    def claim(self, wanted: int) -> None:
        """Claims trials until the queue holds `wanted` of them, or no more can be had."""
        while len(self._claimed) < wanted:
            pending = self._store.claim_next()
            if pending is None:
                return
            self._claimed.append(pending)

    def claim_in_advance(self, num_blocks: int, trial_s: float | None) -> None:
        """Claims trials before blocks need them, where trials are short: no other job can begin a claimed trial."""
        if trial_s is not None and trial_s < SHORT_S:
            self.claim(min(num_blocks, MOST_CLAIMED))


class PrefetchTimer:
    """The times at which blocks are sent their next trial in advance. Local."""

    def __init__(self) -> None:
        self._pending: list[tuple[float, int, str]] = []
        """A heap: when, which block, during which trial."""
        self.expired: deque[tuple[int, str]] = deque()
        """Blocks and trials whose time has come."""

    def add(self, at: float, block: int, trial: str) -> None:
        """Adds an entry: at time `at`, this block is sent its next trial if it still runs `trial`."""
        heapq.heappush(self._pending, (at, block, trial))

    def advance(self, now: float) -> None:
        """Moves the entries whose time has come to `expired`."""
        while self._pending and self._pending[0][0] <= now:
            self.expired.append(heapq.heappop(self._pending)[1:])

    @property
    def next_at(self) -> float:
        """The time of the next entry; infinity where there is none."""
        return self._pending[0][0] if self._pending else math.inf
