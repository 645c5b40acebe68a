"""The coordinator assigns trials to blocks, collects their results and prunes. One thread, which never waits for a block.

a block that is ready gets a trial at once; a part that ends is followed by the next, and the last part by the result;
a trial whose process dies is given back and begun again from its checkpoints; a trial that raises has failed, with its reason
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Sequence
from time import monotonic

from unisono.tuning.search.prefetch import Proposals
from unisono.tuning.search.search import Search
from unisono.tuning.search.trial_queue import TrialQueue
from unisono.tuning.study.store import Store
from unisono.tuning.study.study import FAILED
from unisono.tuning.study.trial_plan import Plan
from unisono.tuning.workers.block_layout import Layout
from unisono.tuning.workers.blocks import Block, Formation, RunningTrial, TrialObserver, Workers
from unisono.tuning.workers.messages import DROPPED, Message
from unisono.tuning.workers.trial_ledger import TrialLedger
from unisono.tuning.workers.trial_outcome import (
    KILLED,
    LIMIT,
    NOT_COUNTED,
    RETRIED,
    STOPPED,
    Outcome,
    is_retried,
    outcome_of,
    part_result,
)
from unisono.tuning.workers.trial_prefetch import PREFETCH_BELOW_S, TrialPrefetch
from unisono.tuning.workers.trial_reports import TrialReports
from unisono.tuning.workers.trial_worker import DISK, ERROR, MEMORY, PEER
from unisono.tuning.workers.wave_start import MakeCommand, WaveStarter

PEER_WAIT_S = 5.0
"""A worker that lost a peer waits this long for the peer's own error message."""
CHECK_LIMITS_EVERY_S = 0.2
"""The interval at which limits are checked."""
STOP_WAIT_S = 60.0
"""How long running trials may take to save a checkpoint when all must stop."""


class Coordinator:
    """Assigns trials to blocks and collects their results. Local; one loop calls `on_message` and `tick`; nothing blocks but for
    the journal."""

    def __init__(
        self,
        plan: Plan,
        layout: Layout,
        workers: Workers,
        store: Store,
        search: Search,
        proposals: Proposals,
        observer: TrialObserver,
        make_command: MakeCommand,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._plan, self._workers, self._store, self._search = plan, workers, store, search
        self._proposals, self._observer, self._clock = proposals, observer, clock
        self.trial_queue = TrialQueue(store, search, proposals)
        self._reports = TrialReports(plan, workers, store, search, clock)
        self._ledger = TrialLedger(store, search, observer, clock)
        self._waves = WaveStarter(plan, workers, self._ledger, make_command, store.folder)
        is_single = layout.block_size == 1 and plan.num_parts == 1 and not search.is_sequential
        self._prefetch = TrialPrefetch(self.trial_queue, self._ledger, self._waves, workers, search, is_single)
        self.formation = Formation(layout)
        self._ready: set[int] = set()
        """Ranks whose process can receive commands."""
        self._idle_blocks: dict[int, Block] = {}
        """Blocks without a trial, the longest waiting first."""
        self._busy_blocks: dict[int, Block] = {}
        """Blocks that run a trial."""
        self._check_limits_at = -math.inf
        self._stop_by: float | None = None
        self._stop_reason = ""
        self._trial_s: float | None = None
        self.fatal_reason: str | None = None
        """Why no trial can continue, where the cause is not a trial (the disk is full)."""

    # ---- incoming --------------------------------------------------------------------------------------------------

    def on_message(self, rank: int, message: Message) -> None:
        """Handles a message of a worker. Local."""
        block, kind = self.formation.block_of(rank), message["is"]
        if kind == "ready":
            self._ready.add(rank)
            if block is not None:
                self._assign_trial(block)
        elif kind == "gone":
            self._ready.discard(rank)
            if block is not None:
                self._prefetch.put_back(block)
                self._idle_blocks.pop(block.number, None)
                self._on_process_end(block, rank, message)
            if block is not None or self.formation.is_spare(rank):
                self._workers.start(rank)
        elif (
            block is not None
            and block.running is not None
            and rank in block.running.busy_ranks
            and message["id"] == block.running.wave_id
        ):
            self._on_trial_message(block, block.running, rank, message)
        elif block is not None and self._expects_answer(message):  # its trial was dropped at the moment it began
            self._workers.send(rank, {DROPPED: message["id"]})

    def _expects_answer(self, message: Message) -> bool:
        """Whether the sender of a message waits for an answer. Pure."""
        return message["is"] in ("suggest", "report") or (message["is"] == "epoch" and self._plan.prune not in ("none", "wilcoxon"))

    def on_ranks_lost(self, ranks: Sequence[int]) -> None:
        """Handles the loss of ranks together with their supervisor: they do not come back, and the remaining ranks of their blocks
        form new blocks. Local."""
        gone = set(ranks)
        self._ready -= gone
        for block in self.formation.break_up(gone):
            self._idle_blocks.pop(block.number, None)
            self._prefetch.put_back(block)
            if block.running is not None:
                for rank in block.ranks:
                    if rank not in gone:
                        self._ready.discard(rank)
                        self._workers.signal(rank, signal.SIGKILL)
                block.running.busy_ranks &= gone
                self._fail(block.running, KILLED, f"its processes are gone (rank {min(gone)})")
                block.running.busy_ranks.clear()
                self._conclude_wave(block, block.running)
            num_lost = len(gone.intersection(block.ranks))
            self._observer.say(f"block {block.number} lost {num_lost} of its {len(block.ranks)} processes")
        for block in self.formation.form_new_blocks():
            self._observer.say(f"block {block.number} is formed of the remaining processes")
            self._assign_trial(block)

    def tick(self) -> None:
        """Does what no message triggers: limits, the journal, trials for idle blocks. To be called after every round of messages
        and at least every second. Local."""
        now = self._clock()
        if now >= self._check_limits_at:
            self._check_limits_at = now + CHECK_LIMITS_EVERY_S
            self._check_limits(now)
        self._prefetch.timer.advance(now)
        self._ledger.refresh()
        for block in tuple(self._idle_blocks.values()):
            self._assign_trial(block)
            if block.number in self._idle_blocks:
                break  # there is nothing for the others either
        else:
            if not self.is_stopping:
                self._prefetch.send(self._busy_blocks, self._trial_s)
        if not self.is_stopping:
            self.trial_queue.claim_in_advance(len(self.formation.blocks), self._trial_s)
        self._store.sync()

    def max_wait_s(self, most_s: float) -> float:
        """Returns how long `tick` need not be called unless a message comes, at most `most_s`. Local."""
        return min(most_s, max(0.0, self._prefetch.timer.next_at - self._clock()))

    def _check_limits(self, now: float) -> None:
        """Ends trials that ran past --trial-limit or past the time of a stop, and kills processes that do not end."""
        for block in tuple(self._busy_blocks.values()):
            running = block.running
            assert running is not None
            if running.kill_at is not None and now >= running.kill_at:
                running.kill_at = None
                self._kill(running)
            limit_s = self._plan.limit_s
            if now - running.began > PREFETCH_BELOW_S:
                self._prefetch.drop(block)
            if running.failure is None and limit_s is not None and now - running.began > limit_s:
                self._fail(running, LIMIT, f"it ran past its limit of {limit_s:g} s (--trial-limit)")
            if self._stop_by is not None and now >= self._stop_by:
                self._fail(running, STOPPED, self._stop_reason)
                self._kill(running)

    def stop(self, reason: str, wait_s: float = STOP_WAIT_S) -> None:
        """Begins no further trial; running trials save a checkpoint and are given back. Local."""
        self._stop_reason = reason
        self._stop_by = self._clock() + wait_s
        for block in self._busy_blocks.values():
            if block.running is not None:
                for rank in block.running.busy_ranks:
                    self._workers.signal(rank, signal.SIGTERM)
                self._reports.answer(block.running)

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stop_by is not None

    @property
    def stop_reason(self) -> str:
        """The reason given to `stop`; empty before."""
        return self._stop_reason

    @property
    def num_running(self) -> int:
        """Number of trials that this job is running."""
        return len(self._busy_blocks)

    @property
    def is_idle(self) -> bool:
        """Whether no block of this job has a trial."""
        return not self.num_running

    # ---- assigning -------------------------------------------------------------------------------------------------

    def _assign_trial(self, block: Block) -> None:
        """Starts the next trial on a block that is free and whose workers are ready; without a trial the block stays idle."""
        is_ready = block.running is None and block.number in self.formation.blocks and self._ready.issuperset(block.ranks)
        if not is_ready or self.is_stopping:
            return
        self._idle_blocks.setdefault(block.number, block)
        pending = self.trial_queue.next_trial(self._trial_s)
        if pending is None:
            return
        del self._idle_blocks[block.number]
        running = self._ledger.open(pending)
        self._waves.start(block, running)
        self._record_begin(block, running)

    def _record_begin(self, block: Block, running: RunningTrial) -> None:
        """Records that a block runs a trial, after the command was sent: the block works while the disk is waited for."""
        running.began = self._clock()
        block.running = running
        self._busy_blocks[block.number] = block
        self._prefetch.schedule(block, running, self._trial_s, len(self.formation.blocks))
        self._ledger.record_begin(running.pending, block.number)

    def _release(self, block: Block) -> None:
        """Frees a block that has ended its trial, and assigns the next one."""
        block.running = None
        self._busy_blocks.pop(block.number, None)
        if block.prefetched is None:
            self._assign_trial(block)
        elif self.is_stopping or not self._ready.issuperset(block.ranks):  # it may have begun the next trial, or is being ended
            self._prefetch.put_back(block)
            self._kill_workers(block)
        else:
            running, block.prefetched = block.prefetched, None
            self._record_begin(block, running)

    # ---- running trials --------------------------------------------------------------------------------------------

    def _on_trial_message(self, block: Block, running: RunningTrial, rank: int, message: Message) -> None:
        """Handles a message on a running part: an epoch, a request for a value, a report, or the end of the part."""
        if message["is"] == "epoch":
            self._reports.on_epoch(running, rank, message, running.failure is not None or self.is_stopping)
            return
        if message["is"] == "suggest":
            self._suggest(running, rank, message)
            return
        if message["is"] == "report":
            self._reports.record(running, message["step"], message["value"])
            self._workers.send(rank, {"go": not running.should_prune})
            return
        running.busy_ranks.discard(rank)
        if message["is"] == "failed":
            self._fail(running, message["kind"], message["reason"])
        elif message["reason"] == "interrupted":
            self._fail(running, STOPPED, self._stop_reason or "stop requested")
        elif rank in running.parts:
            running.final_messages[rank] = message
            self._reports.report_common_epochs(running)  # others may wait for it
        if not running.busy_ranks:
            self._conclude_wave(block, running)

    def _suggest(self, running: RunningTrial, rank: int, message: Message) -> None:
        """Answers a trial that asks for one more value."""
        try:
            value = self._search.suggest(running.pending.number, message["name"], message["distribution"])
        except ValueError as error:  # an objective that asks for a number first and then for a name
            self._fail(running, ERROR, f"{message['name']}: {error}")
            return
        running.values = {**running.values, message["name"]: value}
        self._workers.send(rank, {"value": value})

    def _conclude_wave(self, block: Block, running: RunningTrial) -> None:
        """Handles the end of all parts of a wave: starts the next wave, or concludes the trial."""
        if running.failure is not None:
            self._conclude_failed(block, running)
            return
        for rank, part in running.parts.items():
            message = running.final_messages[rank]
            running.values = message.get("params", running.values)  # an objective may not want all that was proposed
            running.results.append(part_result(self._plan, part, message))
            values = running.results[-1]["values"]
            if self._plan.prune == "wilcoxon" and values:
                self._reports.record(running, len(running.results), values[0])
        running.wave += 1
        outcome = outcome_of(self._plan, running, self._ledger.reports_of(running.pending.number))
        if outcome is not None:
            self._conclude_trial(block, running, outcome)
        elif self.is_stopping:
            self._fail(running, STOPPED, self._stop_reason)
            self._conclude_failed(block, running)
        else:
            self._waves.start(block, running)

    def _conclude_trial(self, block: Block, running: RunningTrial, outcome: Outcome) -> None:
        """Records a trial's outcome, tells the search, and gives its block the next trial."""
        number, took_s = running.pending.number, self._clock() - running.began
        self._ledger.close(number)
        self._search.tell(number, outcome.state, outcome.values)
        if outcome.state != FAILED:
            self._trial_s = took_s if self._trial_s is None else 0.8 * self._trial_s + 0.2 * took_s
        self._proposals.on_result(None if self._trial_s is None else self._trial_s / max(len(self.formation.blocks), 1))
        try:
            self._release(block)  # before the disk is waited for
        finally:
            self._ledger.record_end(running, outcome.state, outcome.values, took_s, outcome.reason)
        self._ledger.refresh()

    # ---- failures --------------------------------------------------------------------------------------------------

    def _on_process_end(self, block: Block, rank: int, message: Message) -> None:
        """Notes that a worker's process has ended; fails the trial that it was running."""
        status = message["status"]
        running = block.running
        if running is not None and rank in running.busy_ranks:
            running.busy_ranks.discard(rank)
            how = f"signal {-status}" if status < 0 else f"exit code {status}"
            if self.is_stopping:
                self._fail(running, STOPPED, self._stop_reason)
            elif message.get("no_memory"):
                self._fail(running, MEMORY, "out of memory (the system ended its process)")
            else:
                self._fail(running, KILLED if status < 0 else ERROR, f"its process ended by {how}")
            if not running.busy_ranks:
                self._conclude_wave(block, running)

    def _fail(self, running: RunningTrial, kind: str, reason: str) -> None:
        """Notes why a trial fails and ends its remaining workers. The first reason counts, except that a peer's own error replaces
        the loss of the peer."""
        if running.failure is None or (running.failure[0] == PEER and kind != PEER):  # a peer's own error says more
            running.failure = (kind, reason)
        self._reports.answer(running)
        if kind == PEER:
            running.kill_at = running.kill_at or self._clock() + PEER_WAIT_S
        elif kind != STOPPED:
            self._kill(running)

    def _kill(self, running: RunningTrial) -> None:
        """Kills the processes that still work on a trial."""
        for rank in running.busy_ranks & self._ready:
            self._ready.discard(rank)
            self._workers.signal(rank, signal.SIGKILL)

    def _conclude_failed(self, block: Block, running: RunningTrial) -> None:
        """Gives a failed trial back to be begun again, or records it as failed."""
        assert running.failure is not None
        kind, reason = running.failure
        pending = running.pending
        if len(block.ranks) > 1 or kind == MEMORY:  # the others may be anywhere in their work
            self._prefetch.put_back(block)
            self._kill_workers(block)
        num_deaths = self._ledger.num_deaths(pending)
        if is_retried(kind, num_deaths, self._plan.attempts):
            self._ledger.give_back(pending, reason, died=kind not in NOT_COUNTED)
            self._ledger.refresh()
            if kind != STOPPED:
                self._observer.say(f"trial {pending.number} goes back to the queue: {reason}")
            if kind == DISK and not self.is_stopping:
                self.fatal_reason = reason
                self.stop(reason)
            self._release(block)
            return
        if kind in RETRIED:
            reason = f"{reason}; it was started {num_deaths} times (--attempts)"
        self._conclude_trial(block, running, Outcome(FAILED, (), reason))

    def _kill_workers(self, block: Block) -> None:
        """Kills the workers of a block that have started, also those in the middle of a trial."""
        for rank in self._ready.intersection(block.ranks):
            self._ready.discard(rank)
            self._workers.signal(rank, signal.SIGKILL)
