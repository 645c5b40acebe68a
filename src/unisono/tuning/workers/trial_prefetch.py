"""The next trial of a block, sent before its current one ends, where trials are so short that a request would take too long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from unisono.tuning.search.search import Search
from unisono.tuning.search.trial_queue import PrefetchTimer, TrialQueue
from unisono.tuning.workers.blocks import Block, RunningTrial, Workers
from unisono.tuning.workers.trial_ledger import TrialLedger
from unisono.tuning.workers.wave_start import WaveStarter

PREFETCH_BELOW_S, PREFETCH_AT_SHARE = 2.0, 0.5
"""A block whose trials are shorter than this is sent the next one when it is half-way through: to wait for a request would cost
more than is gained by the results that come in meanwhile."""
FIRST_PREFETCH_S = 0.1
"""By then an objective has asked for its values."""


class TrialPrefetch:
    """Sends blocks their next trial in advance, puts it back or drops it. Local; nothing blocks but for the journal."""

    def __init__(
        self, queue: TrialQueue, ledger: TrialLedger, waves: WaveStarter, workers: Workers, search: Search, is_used: bool
    ) -> None:
        """`is_used`: whether a trial is one part on one worker, as only such trials are prefetched."""
        self._queue, self._ledger, self._waves, self._workers, self._search = queue, ledger, waves, workers, search
        self._is_used = is_used
        self.timer = PrefetchTimer()

    def schedule(self, block: Block, running: RunningTrial, trial_s: float | None, num_blocks: int) -> None:
        """Notes when a block that begins a trial is to be sent the next one."""
        after_s = self._after_s(trial_s, num_blocks) if self._is_used else None
        if after_s is not None:
            self.timer.add(running.began + after_s, block.number, running.wave_id)

    def _after_s(self, trial_s: float | None, num_blocks: int) -> float | None:
        """Seconds after the begin of a trial at which its block is sent the next one; None where a trial is sent only to an idle
        block. While nothing is known of how long calls of an objective take, that is soon, provided that the next points are drawn
        at random in any case."""
        if trial_s is None:
            is_blind = self._search.space is None and self._search.draws_independently(2 * num_blocks)
            return FIRST_PREFETCH_S if is_blind else None
        return PREFETCH_AT_SHARE * trial_s if trial_s < PREFETCH_BELOW_S else None

    def send(self, busy_blocks: Mapping[int, Block], trial_s: float | None) -> None:
        """Sends the next trial to blocks whose time has come."""
        while self.timer.expired:
            number, name = self.timer.expired[0]
            block = busy_blocks.get(number)
            if block is not None and block.running is not None and block.running.wave_id == name and block.running.failure is None:
                pending = self._queue.next_trial(trial_s)
                if pending is None:
                    return
                block.prefetched = self._ledger.open(pending)
                self._waves.start(block, block.prefetched)
                self._ledger.record_values(pending)
                block.prefetched.pending = replace(pending, is_new=False)
            self.timer.expired.popleft()

    def put_back(self, block: Block) -> None:
        """Puts the prefetched trial of a block back into the queue."""
        if block.prefetched is not None:
            self._ledger.close(block.prefetched.pending.number)
            self._queue.put_back(block.prefetched.pending)
            block.prefetched = None

    def drop(self, block: Block) -> None:
        """Gives up the prefetched trial of a block whose current trial takes longer than expected, so that any block may run it. If
        the worker begins it at this very moment, its result is not used."""
        if block.prefetched is not None:
            self._workers.send(block.ranks[0], {"do": "drop", "id": block.prefetched.wave_id})
            self._ledger.give_back(block.prefetched.pending, "its block was busy with a longer trial")
            block.prefetched = None
