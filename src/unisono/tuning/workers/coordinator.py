"""The coordinator assigns trials to blocks, collects their results and prunes. One thread, which never waits for a block.

a block that is ready gets a trial at once; a part that ends is followed by the next, and the last part by the result;
a trial whose process dies is given back and begun again from its checkpoints; a trial that raises has failed, with its reason
"""

from __future__ import annotations

import math
import secrets
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

from unisono.tuning.search.prefetch import Proposals
from unisono.tuning.search.search import Search
from unisono.tuning.search.trial_queue import PrefetchTimer, TrialQueue
from unisono.tuning.study.store import PendingTrial, Store
from unisono.tuning.study.study import COMPLETE, FAILED, PRUNED, end_record
from unisono.tuning.study.trial_plan import Part, Plan, final_values, mean_of, problem_of, spread_of
from unisono.tuning.workers.block_layout import Layout
from unisono.tuning.workers.blocks import Block, Formation, RunningTrial, TrialObserver, Workers, topology_fields
from unisono.tuning.workers.messages import DROPPED, Message
from unisono.tuning.workers.trial_reports import TrialReports
from unisono.tuning.workers.trial_worker import DISK, ERROR, MEMORY, PEER

KILLED, LIMIT, STOPPED = "killed", "limit", "stopped"
"""Kinds of failures besides those that a worker reports."""
RETRIED = (STOPPED, KILLED, PEER, DISK)
NOT_COUNTED = (STOPPED, DISK)
PEER_WAIT_S = 5.0
"""A worker that lost a peer waits this long for the peer's own error message."""
PREFETCH_BELOW_S, PREFETCH_AT_SHARE = 2.0, 0.5
"""A block whose trials are shorter than this is sent the next one when it is half-way through: to wait for a request would cost
more than is gained by the results that come in meanwhile."""
FIRST_PREFETCH_S = 0.1
"""By then an objective has asked for its values."""
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
        make_command: Callable[[PendingTrial, Mapping[str, Any], Part, Path], dict[str, Any]],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`make_command` returns the command that starts one part of a trial, without the fields by which its workers meet."""
        self._plan, self._workers, self._store, self._search = plan, workers, store, search
        self._proposals, self._observer, self._make_command, self._clock = proposals, observer, make_command, clock
        self.trial_queue = TrialQueue(store, search, proposals)
        self._reports = TrialReports(plan, workers, store, search, clock)
        self.formation = Formation(layout)
        self._ready: set[int] = set()
        """Ranks whose process can receive commands."""
        self._idle_blocks: dict[int, Block] = {}
        """Blocks without a trial, the longest waiting first."""
        self._busy_blocks: dict[int, Block] = {}
        """Blocks that run a trial."""
        self._prefetches = layout.block_size == 1 and plan.num_parts == 1
        self._prefetch_timer = PrefetchTimer()
        self._own_trials: set[int] = set()
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
                self._return_prefetched(block)
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
            self._return_prefetched(block)
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
            self._observer.say(f"block {block.number} is made of processes that were left over")
            self._assign_trial(block)

    def tick(self) -> None:
        """Does what no message triggers: limits, the journal, trials for idle blocks. To be called after every round of messages
        and at least every second. Local."""
        now = self._clock()
        if now >= self._check_limits_at:
            self._check_limits_at = now + CHECK_LIMITS_EVERY_S
            self._check_limits(now)
        self._prefetch_timer.advance(now)
        self._read_journal()
        for block in tuple(self._idle_blocks.values()):
            self._assign_trial(block)
            if block.number in self._idle_blocks:
                break  # there is nothing for the others either
        else:
            self._send_prefetched()
        if not self.is_stopping:
            self.trial_queue.claim_in_advance(len(self.formation.blocks), self._trial_s)
        self._store.sync()

    def max_wait_s(self, most_s: float) -> float:
        """Returns how long `tick` need not be called unless a message comes, at most `most_s`. Local."""
        return min(most_s, max(0.0, self._prefetch_timer.next_at - self._clock()))

    def _check_limits(self, now: float) -> None:
        for block in tuple(self._busy_blocks.values()):
            running = block.running
            assert running is not None
            if running.kill_at is not None and now >= running.kill_at:
                running.kill_at = None
                self._kill(running)
            limit_s = self._plan.limit_s
            if now - running.began > PREFETCH_BELOW_S:
                self._drop_prefetched(block)
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
        return self._stop_by is not None

    @property
    def stop_reason(self) -> str:
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
        is_ready = block.running is None and block.number in self.formation.blocks and self._ready.issuperset(block.ranks)
        if not is_ready or self.is_stopping:
            return
        self._idle_blocks.setdefault(block.number, block)
        pending = self.trial_queue.next_trial(self._trial_s)
        if pending is None:
            return
        del self._idle_blocks[block.number]
        running = self._running_of(pending)
        self._start_wave(block, running)
        self._record_begin(block, running)

    def _record_begin(self, block: Block, running: RunningTrial) -> None:
        """Records that a block runs a trial, after the command was sent: the block works while the disk is waited for."""
        running.began = self._clock()
        block.running = running
        self._busy_blocks[block.number] = block
        if self._prefetches and self._prefetch_after_s is not None:
            self._prefetch_timer.add(running.began + self._prefetch_after_s, block.number, running.wave_id)
        self._store.record_values(running.pending, self._ranges_of(running.pending))
        self._store.record_begin(running.pending, block.number)

    @property
    def _prefetch_after_s(self) -> float | None:
        """Seconds after the begin of a trial at which its block is sent the next one; None where a trial is sent only to an idle
        block. While nothing is known of how long calls of an objective take, that is soon, provided that the next points are drawn
        at random in any case."""
        if self._trial_s is None:
            is_blind = self._search.space is None and self._search.draws_independently(2 * len(self.formation.blocks))
            return FIRST_PREFETCH_S if is_blind else None
        return PREFETCH_AT_SHARE * self._trial_s if self._trial_s < PREFETCH_BELOW_S else None

    def _send_prefetched(self) -> None:
        """Send the next trial to blocks that will soon be free."""
        while self._prefetch_timer.expired and not self.is_stopping:
            number, name = self._prefetch_timer.expired[0]
            block = self._busy_blocks.get(number)
            if block is not None and block.running is not None and block.running.wave_id == name and block.running.failure is None:
                pending = self.trial_queue.next_trial(self._trial_s)
                if pending is None:
                    return
                block.prefetched = self._running_of(pending)
                self._start_wave(block, block.prefetched)
                self._store.record_values(pending, self._ranges_of(pending))
                block.prefetched.pending = replace(pending, is_new=False)
            self._prefetch_timer.expired.popleft()

    def _return_prefetched(self, block: Block) -> None:
        """Put the prefetched trial of a block back into the queue."""
        if block.prefetched is not None:
            self._own_trials.discard(block.prefetched.pending.number)
            self.trial_queue.put_back(block.prefetched.pending)
            block.prefetched = None

    def _drop_prefetched(self, block: Block) -> None:
        """Gives up the prefetched trial of a block whose current trial takes longer than expected, so that any block may run it. If
        the worker begins it at this very moment, its result is not used."""
        if block.prefetched is not None:
            self._workers.send(block.ranks[0], {"do": "drop", "id": block.prefetched.wave_id})
            self._own_trials.discard(block.prefetched.pending.number)
            self._store.give_back(
                block.prefetched.pending.number, block.prefetched.pending.attempt, "its block was at a longer trial"
            )
            block.prefetched = None

    def _release(self, block: Block) -> None:
        """Frees a block that has ended its trial, and assigns the next one."""
        block.running = None
        self._busy_blocks.pop(block.number, None)
        if block.prefetched is None:
            self._assign_trial(block)
        elif self.is_stopping or not self._ready.issuperset(block.ranks):  # it may have begun the next trial, or is being ended
            self._return_prefetched(block)
            self._end_processes(block)
        else:
            running, block.prefetched = block.prefetched, None
            self._record_begin(block, running)

    def _running_of(self, pending: PendingTrial) -> RunningTrial:
        assert pending.values is not None
        known = self._store.study.trials.get(pending.number)
        if known is not None:
            self._search.add_known_trial(known)  # another job's may have been read a moment ago
        self._own_trials.add(pending.number)
        return RunningTrial(
            pending, pending.values, self._clock(), last_step=max(known.reports, default=-1) if known is not None else -1
        )

    def _ranges_of(self, pending: PendingTrial) -> dict[str, str] | None:
        """The ranges of a trial's values, where no space has them."""
        return None if self._search.space is not None else self._search.distributions(pending.number)

    def _start_wave(self, block: Block, running: RunningTrial) -> None:
        workers = self._plan.workers
        running.parts, running.busy_ranks, running.final_messages, running.epochs = {}, set(), {}, {}
        for place, part in enumerate(self._plan.waves[running.wave]):
            members = block.ranks[place * workers : (place + 1) * workers]
            running.parts[members[0]] = part
            folder = self._store.folder / "trials" / f"{running.pending.number:06d}"
            command = self._make_command(running.pending, running.values, part, folder)
            if (ranges := self._ranges_of(running.pending)) is not None:
                command["distributions"] = ranges
            token = secrets.token_hex(16)
            places = [self._workers.place_of(rank) for rank in members]
            for index, rank in enumerate(members):
                running.busy_ranks.add(rank)
                at = topology_fields(places, index, token, f"trial {running.pending.number}")
                self._workers.send(rank, {**command, "id": running.wave_id, "at": at, "threads": places[index]["threads"]})

    # ---- running trials --------------------------------------------------------------------------------------------

    def _on_trial_message(self, block: Block, running: RunningTrial, rank: int, message: Message) -> None:
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
            one = {
                **part._asdict(),
                "values": final_values(self._plan.objectives, message),
                "epochs": message.get("epochs"),
                "took_s": message["took_s"],
            }
            running.values = message.get("params", running.values)  # an objective may not want all that was proposed
            if message.get("user"):
                one["user"] = message["user"]
            running.results.append(one)
            if self._plan.prune == "wilcoxon" and one["values"]:
                self._reports.record(running, len(running.results), one["values"][0])
        running.wave += 1
        is_pruned = any(message["reason"] == "pruned" for message in running.final_messages.values())
        is_last = running.wave == len(self._plan.waves)
        if is_pruned or (running.should_prune and not is_last):
            known = self._store.study.trials.get(running.pending.number)
            reports = {} if known is None else known.reports
            self._conclude_trial(block, running, PRUNED, [reports[max(reports)]] if reports else (), "")
        elif problem := problem_of(self._plan.objectives, [one["values"] for one in running.results]):
            self._conclude_trial(block, running, FAILED, (), problem)
        elif is_last:
            self._conclude_trial(block, running, COMPLETE, mean_of([one["values"] for one in running.results]), "")
        elif self.is_stopping:
            self._fail(running, STOPPED, self._stop_reason)
            self._conclude_failed(block, running)
        else:
            self._start_wave(block, running)

    def _conclude_trial(self, block: Block, running: RunningTrial, state: str, values: Sequence[float], reason: str) -> None:
        pending, took_s = running.pending, self._clock() - running.began
        self._own_trials.discard(pending.number)
        self._search.tell(pending.number, state, values)
        if state != FAILED:
            self._trial_s = took_s if self._trial_s is None else 0.8 * self._trial_s + 0.2 * took_s
        self._proposals.on_result(None if self._trial_s is None else self._trial_s / max(len(self.formation.blocks), 1))
        try:
            self._release(block)  # before the disk is waited for
        finally:
            self._write_end(pending, running, state, values, took_s, reason)
        self._read_journal()

    def _write_end(
        self, pending: PendingTrial, running: RunningTrial, state: str, values: Sequence[float], took_s: float, reason: str
    ) -> None:
        parts = [one["values"] for one in running.results if one["values"]]
        details = {"parts": running.results, **({"spread": spread_of(parts)} if parts else {})}
        if self._search.space is None:  # an objective says only when it runs what it wants to know
            ranges = {name: text for name, text in self._search.distributions(pending.number).items() if name in running.values}
            details |= {"asked": dict(running.values), "distributions": ranges}
        self._store.append(end_record(pending.number, pending.attempt, state, values, took_s, reason, details))

    # ---- failures --------------------------------------------------------------------------------------------------

    def _on_process_end(self, block: Block, rank: int, message: Message) -> None:
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
        for rank in running.busy_ranks & self._ready:
            self._ready.discard(rank)
            self._workers.signal(rank, signal.SIGKILL)

    def _conclude_failed(self, block: Block, running: RunningTrial) -> None:
        assert running.failure is not None
        kind, reason = running.failure
        pending = running.pending
        if len(block.ranks) > 1 or kind == MEMORY:  # the others may be anywhere in their work
            self._return_prefetched(block)
            self._end_processes(block)
        known = self._store.study.trials.get(pending.number)
        num_deaths = 1 + (0 if known is None else len(known.deaths - {pending.attempt}))
        if kind in NOT_COUNTED or (kind in RETRIED and num_deaths < self._plan.attempts):
            self._own_trials.discard(pending.number)
            self._store.give_back(pending.number, pending.attempt, reason, died=kind not in NOT_COUNTED)
            self._read_journal()
            if kind != STOPPED:
                self._observer.say(f"trial {pending.number} is given back: {reason}")
            if kind == DISK and not self.is_stopping:
                self.fatal_reason = reason
                self.stop(reason)
            self._release(block)
            return
        if kind in RETRIED:
            reason = f"{reason}; it was begun {num_deaths} times (--attempts)"
        self._conclude_trial(block, running, FAILED, (), reason)

    def _end_processes(self, block: Block) -> None:
        for rank in self._ready.intersection(block.ranks):
            self._ready.discard(rank)
            self._workers.signal(rank, signal.SIGKILL)

    # ---- the journal -----------------------------------------------------------------------------------------------

    def _read_journal(self) -> None:
        """Reads new journal records, of this job and of others."""
        for trial in self._store.refresh():
            if trial.number not in self._own_trials:
                self._search.add_known_trial(trial)
            if trial.result is not None:
                self._observer.trial_ended(trial)
