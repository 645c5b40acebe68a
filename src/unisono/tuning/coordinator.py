"""Gives trials to blocks, collects what they give, and decides which are hopeless. One thread, which never waits for a block.

a block that is ready gets a trial at once; a part that ends brings the next, and the last of them the result;
a trial whose process dies is given back and begun again from its checkpoints; one that raises has failed, with its reason
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

from unisono.tuning.ahead import Proposals
from unisono.tuning.blocks import Block, Crew, Formation, Running, Watcher, meeting_of
from unisono.tuning.layout import Layout
from unisono.tuning.letters import DROPPED, Letter
from unisono.tuning.plan import Part, Plan, mean_of, problem_of, spread_of, values_told
from unisono.tuning.reports import Reports
from unisono.tuning.search import Search
from unisono.tuning.store import Due, Store
from unisono.tuning.study import COMPLETE, FAILED, PRUNED, ended
from unisono.tuning.supply import Soon, Supply
from unisono.tuning.worker import DISK, ERROR, MEMORY, PEER

KILLED, LIMIT, STOPPED = "killed", "limit", "stopped"
"""Kinds of ends besides those that a worker tells."""
GIVES_BACK = (STOPPED, KILLED, PEER, DISK)
NOT_ITS_FAULT = (STOPPED, DISK)
PEER_WAIT_S = 5.0
"""How long one who lost a peer waits for the peer's own word."""
TELL_AHEAD_S, TELL_AFTER = 2.0, 0.5
"""A block whose trials are shorter than this is told the next one when it is half-way through: to ask for it would cost more than
is gained by the results that come in meanwhile."""
FIRST_TELL_S = 0.1
"""By then an objective has said what it wants to know."""
LOOK_EVERY_S = 0.2
"""After limits."""
STOP_WAIT_S = 60.0
"""How long trials have to save what they have when all must stop."""


class Coordinator:
    """Local. `heard` and `tick` are called by one loop; nothing blocks but for the journal."""

    def __init__(
        self,
        plan: Plan,
        layout: Layout,
        crew: Crew,
        store: Store,
        search: Search,
        proposals: Proposals,
        watcher: Watcher,
        order: Callable[[Due, Mapping[str, Any], Part, Path], dict[str, Any]],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`order` makes what a worker is told of a part, besides where it meets the others."""
        self._plan, self._crew, self._store, self._search = plan, crew, store, search
        self._proposals, self._watcher, self._order, self._clock = proposals, watcher, order, clock
        self.supply = Supply(store, search, proposals)
        self._reports = Reports(plan, crew, store, search, clock)
        self.formation = Formation(layout)
        self._ready: set[int] = set()
        """Ranks with a process that can be told something."""
        self._hungry: dict[int, Block] = {}
        """Blocks without a trial, the longest waiting first."""
        self._busy: dict[int, Block] = {}
        """Blocks that have one."""
        self._tells_ahead = layout.block_size == 1 and plan.num_parts == 1
        self._soon = Soon()
        self._mine: set[int] = set()
        self._look_at = -math.inf
        self._stop_by: float | None = None
        self._stop_reason = ""
        self._trial_s: float | None = None
        self.fault: str | None = None
        """Why no trial can go on, where it is nothing that a trial has done."""

    # ---- what comes ------------------------------------------------------------------------------------------------

    def heard(self, rank: int, letter: Letter) -> None:
        """Local: a letter of a worker."""
        block, kind = self.formation.block_of(rank), letter["is"]
        if kind == "ready":
            self._ready.add(rank)
            if block is not None:
                self._feed(block)
        elif kind == "gone":
            self._ready.discard(rank)
            if block is not None:
                self._take_back(block)
                self._hungry.pop(block.number, None)
                self._gone(block, rank, letter)
            if block is not None or self.formation.is_spare(rank):
                self._crew.start(rank)
        elif block is not None and block.running is not None and rank in block.running.busy and letter["id"] == block.running.name:
            self._of_running(block, block.running, rank, letter)
        elif block is not None and self._waits(letter):  # it had begun what was dropped
            self._crew.send(rank, {DROPPED: letter["id"]})

    def _waits(self, letter: Letter) -> bool:
        """Pure: whether its sender waits for an answer."""
        return letter["is"] in ("suggest", "report") or (letter["is"] == "epoch" and self._plan.prune not in ("none", "wilcoxon"))

    def lost(self, ranks: Sequence[int]) -> None:
        """Local: these ranks are gone with their supervisor and do not come back; what is left of their blocks makes new ones."""
        gone = set(ranks)
        self._ready -= gone
        for block in self.formation.broken_by(gone):
            self._hungry.pop(block.number, None)
            self._take_back(block)
            if block.running is not None:
                for rank in block.ranks:
                    if rank not in gone:
                        self._ready.discard(rank)
                        self._crew.signal(rank, signal.SIGKILL)
                block.running.busy &= gone
                self._fail(block.running, KILLED, f"its processes are gone (rank {min(gone)})")
                block.running.busy.clear()
                self._conclude(block, block.running)
            num_lost = len(gone.intersection(block.ranks))
            self._watcher.say(f"block {block.number} lost {num_lost} of its {len(block.ranks)} processes")
        for block in self.formation.made_anew():
            self._watcher.say(f"block {block.number} is made of processes that were left over")
            self._feed(block)

    def tick(self) -> None:
        """Local: what no letter tells; to be called after every round of letters and at least every second."""
        now = self._clock()
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY_S
            self._look_after_limits(now)
        self._soon.pass_on(now)
        self._learn()
        for block in tuple(self._hungry.values()):
            self._feed(block)
            if block.number in self._hungry:
                break  # there is nothing for the others either
        else:
            self._tell_ahead()
        if not self.is_stopping:
            self.supply.claim_ahead(len(self.formation.blocks), self._trial_s)
        self._store.settle()

    def rest_s(self, most_s: float) -> float:
        """Local: how long `tick` need not be called, unless a letter comes."""
        return min(most_s, max(0.0, self._soon.next_at - self._clock()))

    def _look_after_limits(self, now: float) -> None:
        for block in tuple(self._busy.values()):
            running = block.running
            assert running is not None
            if running.kill_at is not None and now >= running.kill_at:
                running.kill_at = None
                self._kill(running)
            limit_s = self._plan.limit_s
            if now - running.began > TELL_AHEAD_S:
                self._drop(block)
            if running.failure is None and limit_s is not None and now - running.began > limit_s:
                self._fail(running, LIMIT, f"it ran past its limit of {limit_s:g} s (--trial-limit)")
            if self._stop_by is not None and now >= self._stop_by:
                self._fail(running, STOPPED, self._stop_reason)
                self._kill(running)

    def stop(self, reason: str, wait_s: float = STOP_WAIT_S) -> None:
        """Local: begin nothing more; what runs saves what it has and is given back."""
        self._stop_reason = reason
        self._stop_by = self._clock() + wait_s
        for block in self._busy.values():
            if block.running is not None:
                for rank in block.running.busy:
                    self._crew.signal(rank, signal.SIGTERM)
                self._reports.answer(block.running)

    @property
    def is_stopping(self) -> bool:
        return self._stop_by is not None

    @property
    def stop_reason(self) -> str:
        return self._stop_reason

    @property
    def num_running(self) -> int:
        """Trials in the hands of this job."""
        return len(self._busy)

    @property
    def is_idle(self) -> bool:
        """Whether no block of this job has a trial."""
        return not self.num_running

    # ---- giving out ------------------------------------------------------------------------------------------------

    def _feed(self, block: Block) -> None:
        is_ready = block.running is None and block.number in self.formation.blocks and self._ready.issuperset(block.ranks)
        if not is_ready or self.is_stopping:
            return
        self._hungry.setdefault(block.number, block)
        due = self.supply.take(self._trial_s)
        if due is None:
            return
        del self._hungry[block.number]
        running = self._running_of(due)
        self._start_wave(block, running)
        self._begin(block, running)

    def _begin(self, block: Block, running: Running) -> None:
        """Note that a block is at a trial. It was told before: the disk is waited for while it works."""
        running.began = self._clock()
        block.running = running
        self._busy[block.number] = block
        if self._tells_ahead and self._tell_after_s is not None:
            self._soon.add(running.began + self._tell_after_s, block.number, running.name)
        self._store.ask(running.due, self._ranges_of(running.due))
        self._store.begin(running.due, block.number)

    @property
    def _tell_after_s(self) -> float | None:
        """How long after the begin of a trial its block is told the next; None where it is to ask. As long as nobody knows how long
        calls of an objective take, soon, where what is told is drawn at random in any case."""
        if self._trial_s is None:
            is_blind = self._search.space is None and self._search.draws_blindly(2 * len(self.formation.blocks))
            return FIRST_TELL_S if is_blind else None
        return TELL_AFTER * self._trial_s if self._trial_s < TELL_AHEAD_S else None

    def _tell_ahead(self) -> None:
        """Blocks that will soon be free need not ask."""
        while self._soon.now and not self.is_stopping:
            number, name = self._soon.now[0]
            block = self._busy.get(number)
            if block is not None and block.running is not None and block.running.name == name and block.running.failure is None:
                due = self.supply.take(self._trial_s)
                if due is None:
                    return
                block.next = self._running_of(due)
                self._start_wave(block, block.next)
                self._store.ask(due, self._ranges_of(due))
                block.next.due = replace(due, is_new=False)
            self._soon.now.popleft()

    def _take_back(self, block: Block) -> None:
        """What it was told ahead it will not do."""
        if block.next is not None:
            self._mine.discard(block.next.due.number)
            self.supply.add(block.next.due)
            block.next = None

    def _drop(self, block: Block) -> None:
        """It is longer at its trial than was thought: anybody may have the next one. Should it begin that at this moment, it
        does it for nothing."""
        if block.next is not None:
            self._crew.send(block.ranks[0], {"do": "drop", "id": block.next.name})
            self._mine.discard(block.next.due.number)
            self._store.give_back(block.next.due.number, block.next.due.attempt, "its block was at a longer trial")
            block.next = None

    def _free(self, block: Block) -> None:
        """It is at no trial any more."""
        block.running = None
        self._busy.pop(block.number, None)
        if block.next is None:
            self._feed(block)
        elif self.is_stopping or not self._ready.issuperset(block.ranks):  # it may have begun what it was told, or is being ended
            self._take_back(block)
            self._end_processes(block)
        else:
            running, block.next = block.next, None
            self._begin(block, running)

    def _running_of(self, due: Due) -> Running:
        assert due.values is not None
        known = self._store.study.trials.get(due.number)
        if known is not None:
            self._search.remember(known)  # another job's may have been read a moment ago
        self._mine.add(due.number)
        return Running(due, due.values, self._clock(), last_step=max(known.reports, default=-1) if known is not None else -1)

    def _ranges_of(self, due: Due) -> dict[str, str] | None:
        """From which ranges its values are, where no space says it."""
        return None if self._search.space is not None else self._search.distributions(due.number)

    def _start_wave(self, block: Block, running: Running) -> None:
        workers = self._plan.workers
        running.parts, running.busy, running.told, running.epochs = {}, set(), {}, {}
        for place, part in enumerate(self._plan.waves[running.wave]):
            members = block.ranks[place * workers : (place + 1) * workers]
            running.parts[members[0]] = part
            folder = self._store.folder / "trials" / f"{running.due.number:06d}"
            told = self._order(running.due, running.values, part, folder)
            if (ranges := self._ranges_of(running.due)) is not None:
                told["distributions"] = ranges
            token = secrets.token_hex(16)
            places = [self._crew.place_of(rank) for rank in members]
            for index, rank in enumerate(members):
                running.busy.add(rank)
                at = meeting_of(places, index, token, f"trial {running.due.number}")
                self._crew.send(rank, {**told, "id": running.name, "at": at, "threads": places[index]["threads"]})

    # ---- a trial that runs -----------------------------------------------------------------------------------------

    def _of_running(self, block: Block, running: Running, rank: int, letter: Letter) -> None:
        if letter["is"] == "epoch":
            self._reports.epoch(running, rank, letter, running.failure is not None or self.is_stopping)
            return
        if letter["is"] == "suggest":
            self._suggest(running, rank, letter)
            return
        if letter["is"] == "report":
            self._reports.note(running, letter["step"], letter["value"])
            self._crew.send(rank, {"go": not running.is_hopeless})
            return
        running.busy.discard(rank)
        if letter["is"] == "failed":
            self._fail(running, letter["kind"], letter["reason"])
        elif letter["reason"] == "interrupted":
            self._fail(running, STOPPED, self._stop_reason or "told to stop")
        elif rank in running.parts:
            running.told[rank] = letter
            self._reports.weigh(running)  # others may wait for it
        if not running.busy:
            self._conclude(block, running)

    def _suggest(self, running: Running, rank: int, letter: Letter) -> None:
        try:
            value = self._search.suggest(running.due.number, letter["name"], letter["distribution"])
        except ValueError as error:  # an objective that asks for a number first and then for a name
            self._fail(running, ERROR, f"{letter['name']}: {error}")
            return
        running.values = {**running.values, letter["name"]: value}
        self._crew.send(rank, {"value": value})

    def _conclude(self, block: Block, running: Running) -> None:
        """Nobody is at the wave any more."""
        if running.failure is not None:
            self._end_of_failed(block, running)
            return
        for rank, part in running.parts.items():
            told = running.told[rank]
            one = {
                **part._asdict(),
                "values": values_told(self._plan.objectives, told),
                "epochs": told.get("epochs"),
                "took_s": told["took_s"],
            }
            running.values = told.get("params", running.values)  # an objective may not want all that was proposed
            if told.get("user"):
                one["user"] = told["user"]
            running.results.append(one)
            if self._plan.prune == "wilcoxon" and one["values"]:
                self._reports.note(running, len(running.results), one["values"][0])
        running.wave += 1
        is_pruned = any(told["reason"] == "pruned" for told in running.told.values())
        is_last = running.wave == len(self._plan.waves)
        if is_pruned or (running.is_hopeless and not is_last):
            known = self._store.study.trials.get(running.due.number)
            reports = {} if known is None else known.reports
            self._end(block, running, PRUNED, [reports[max(reports)]] if reports else (), "")
        elif problem := problem_of(self._plan.objectives, [one["values"] for one in running.results]):
            self._end(block, running, FAILED, (), problem)
        elif is_last:
            self._end(block, running, COMPLETE, mean_of([one["values"] for one in running.results]), "")
        elif self.is_stopping:
            self._fail(running, STOPPED, self._stop_reason)
            self._end_of_failed(block, running)
        else:
            self._start_wave(block, running)

    def _end(self, block: Block, running: Running, state: str, values: Sequence[float], reason: str) -> None:
        due, took_s = running.due, self._clock() - running.began
        self._mine.discard(due.number)
        self._search.tell(due.number, state, values)
        if state != FAILED:
            self._trial_s = took_s if self._trial_s is None else 0.8 * self._trial_s + 0.2 * took_s
        self._proposals.renew(None if self._trial_s is None else self._trial_s / max(len(self.formation.blocks), 1))
        try:
            self._free(block)  # before the disk is waited for
        finally:
            self._write_end(due, running, state, values, took_s, reason)
        self._learn()

    def _write_end(self, due: Due, running: Running, state: str, values: Sequence[float], took_s: float, reason: str) -> None:
        parts = [one["values"] for one in running.results if one["values"]]
        details = {"parts": running.results, **({"spread": spread_of(parts)} if parts else {})}
        if self._search.space is None:  # an objective says only when it runs what it wants to know
            ranges = {name: text for name, text in self._search.distributions(due.number).items() if name in running.values}
            details |= {"asked": dict(running.values), "distributions": ranges}
        self._store.append(ended(due.number, due.attempt, state, values, took_s, reason, details))

    # ---- what goes wrong -------------------------------------------------------------------------------------------

    def _gone(self, block: Block, rank: int, letter: Letter) -> None:
        status = letter["status"]
        running = block.running
        if running is not None and rank in running.busy:
            running.busy.discard(rank)
            how = f"signal {-status}" if status < 0 else f"exit code {status}"
            if self.is_stopping:
                self._fail(running, STOPPED, self._stop_reason)
            elif letter.get("no_memory"):
                self._fail(running, MEMORY, "out of memory (the system ended its process)")
            else:
                self._fail(running, KILLED if status < 0 else ERROR, f"its process ended by {how}")
            if not running.busy:
                self._conclude(block, running)

    def _fail(self, running: Running, kind: str, reason: str) -> None:
        """Note what went wrong; the first word counts. Those who are still at it are ended."""
        if running.failure is None or (running.failure[0] == PEER and kind != PEER):  # a peer's own word says more
            running.failure = (kind, reason)
        self._reports.answer(running)
        if kind == PEER:
            running.kill_at = running.kill_at or self._clock() + PEER_WAIT_S
        elif kind != STOPPED:
            self._kill(running)

    def _kill(self, running: Running) -> None:
        for rank in running.busy & self._ready:
            self._ready.discard(rank)
            self._crew.signal(rank, signal.SIGKILL)

    def _end_of_failed(self, block: Block, running: Running) -> None:
        assert running.failure is not None
        kind, reason = running.failure
        due = running.due
        if len(block.ranks) > 1 or kind == MEMORY:  # the others may be anywhere in their work
            self._take_back(block)
            self._end_processes(block)
        known = self._store.study.trials.get(due.number)
        num_deaths = 1 + (0 if known is None else len(known.deaths - {due.attempt}))
        if kind in NOT_ITS_FAULT or (kind in GIVES_BACK and num_deaths < self._plan.attempts):
            self._mine.discard(due.number)
            self._store.give_back(due.number, due.attempt, reason, died=kind not in NOT_ITS_FAULT)
            self._learn()
            if kind != STOPPED:
                self._watcher.say(f"trial {due.number} is given back: {reason}")
            if kind == DISK and not self.is_stopping:
                self.fault = reason
                self.stop(reason)
            self._free(block)
            return
        if kind in GIVES_BACK:
            reason = f"{reason}; it was begun {num_deaths} times (--attempts)"
        self._end(block, running, FAILED, (), reason)

    def _end_processes(self, block: Block) -> None:
        for rank in self._ready.intersection(block.ranks):
            self._ready.discard(rank)
            self._crew.signal(rank, signal.SIGKILL)

    # ---- what is known ---------------------------------------------------------------------------------------------

    def _learn(self) -> None:
        """What the journal says that is new, of this job and of others."""
        for trial in self._store.refresh():
            if trial.number not in self._mine:
                self._search.remember(trial)
            if trial.result is not None:
                self._watcher.trial_ended(trial)
