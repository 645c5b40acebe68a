"""Gives trials to blocks, collects what they give, and decides which are hopeless. One thread, which never waits for a block.

a block that is ready gets a trial at once; a part that ends brings the next, and the last of them the result;
a trial whose process dies is given back and begun again from its checkpoints; one that raises has failed, with its reason
"""

from __future__ import annotations

import math
import secrets
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from unisono.tuning.ahead import Proposals
from unisono.tuning.blocks import Block, Crew, Running, Watcher, meeting_of
from unisono.tuning.layout import Layout
from unisono.tuning.letters import Letter
from unisono.tuning.plan import Part, Plan, mean_of, problem_of, spread_of, values_of, values_told
from unisono.tuning.search import Search
from unisono.tuning.store import Due, Store
from unisono.tuning.study import COMPLETE, FAILED, PRUNED, Trial, ended, reported
from unisono.tuning.worker import ERROR, MEMORY, PEER

KILLED, LIMIT, STOPPED = "killed", "limit", "stopped"
"""Kinds of ends besides those that a worker tells."""
GIVES_BACK = (STOPPED, KILLED, PEER)
PEER_WAIT_S = 5.0
"""How long one who lost a peer waits for the peer's own word."""
SHORT_S, MOST_CLAIMED = 10.0, 8
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
        self._block_size = layout.block_size
        self.blocks = {number: Block(number, tuple(layout.ranks_of(number))) for number in range(layout.num_blocks)}
        self._block_of = {rank: block for block in self.blocks.values() for rank in block.ranks}
        self._ready: set[int] = set()
        """Ranks with a process that can be told something."""
        self._spare: list[int] = []
        """Ranks of blocks that lost a member."""
        self._num_blocks = layout.num_blocks
        self.claimed: list[Due] = []
        """Trials that nobody else begins."""
        self._hungry: list[Block] = []
        """Blocks without a trial, the longest waiting first."""
        self._mine: set[int] = set()
        self._stop_by: float | None = None
        self._stop_reason = ""
        self._trial_s: float | None = None
        self.best: Trial | None = None

    # ---- what comes ------------------------------------------------------------------------------------------------

    def heard(self, rank: int, letter: Letter) -> None:
        """Local: a letter of a worker."""
        block, kind = self._block_of.get(rank), letter["is"]
        if kind == "ready":
            self._ready.add(rank)
            if block is not None:
                self._feed(block)
        elif kind == "gone":
            self._ready.discard(rank)
            if block is not None:
                self._gone(block, rank, letter)
            if block is not None or rank in self._spare:
                self._crew.start(rank)
        elif block is not None and block.running is not None and rank in block.running.busy and letter["id"] == block.running.name:
            self._of_running(block, block.running, rank, letter)

    def lost(self, ranks: Sequence[int]) -> None:
        """Local: these ranks are gone with their supervisor and do not come back; what is left of their blocks makes new ones."""
        gone = set(ranks)
        self._ready -= gone
        for block in {block.number: block for rank in ranks if (block := self._block_of.get(rank)) is not None}.values():
            del self.blocks[block.number]
            if block in self._hungry:
                self._hungry.remove(block)
            if block.running is not None:
                for rank in block.ranks:
                    if rank not in gone:
                        self._crew.signal(rank, signal.SIGKILL)
                block.running.busy &= gone
                self._fail(block.running, KILLED, f"its processes are gone (rank {min(gone)})")
                block.running.busy.clear()
                self._conclude(block, block.running)
            left = [rank for rank in block.ranks if rank not in gone]
            self._watcher.say(f"block {block.number} lost {len(block.ranks) - len(left)} of its {len(block.ranks)} processes")
            for rank in block.ranks:
                del self._block_of[rank]
            self._spare += left
        self._spare = [rank for rank in self._spare if rank not in gone]
        while len(self._spare) >= self._block_size:
            members, self._spare = self._spare[: self._block_size], self._spare[self._block_size :]
            block = Block(self._num_blocks, tuple(members))
            self._num_blocks += 1
            self.blocks[block.number] = block
            for rank in members:
                self._block_of[rank] = block
            self._watcher.say(f"block {block.number} is made of processes that were left over")
            self._feed(block)

    def tick(self) -> None:
        """Local: what no letter tells; to be called after every round of letters and at least every second."""
        now = self._clock()
        for block in tuple(self.blocks.values()):
            running = block.running
            if running is None:
                continue
            if running.kill_at is not None and now >= running.kill_at:
                running.kill_at = None
                self._kill(running)
            limit_s = self._plan.limit_s
            if running.failure is None and limit_s is not None and now - running.began > limit_s:
                self._fail(running, LIMIT, f"it ran past its limit of {limit_s:g} s (--trial-limit)")
            if self._stop_by is not None and now >= self._stop_by:
                self._fail(running, STOPPED, self._stop_reason)
                self._kill(running)
        self._learn()
        for block in tuple(self._hungry):
            self._feed(block)
        self._claim_ahead()
        self._store.settle()

    def stop(self, reason: str, wait_s: float = STOP_WAIT_S) -> None:
        """Local: begin nothing more; what runs saves what it has and is given back."""
        self._stop_reason = reason
        self._stop_by = self._clock() + wait_s
        for block in self.blocks.values():
            if block.running is not None:
                for rank in block.running.busy:
                    self._crew.signal(rank, signal.SIGTERM)
                self._answer(block.running)

    @property
    def is_stopping(self) -> bool:
        return self._stop_by is not None

    @property
    def stop_reason(self) -> str:
        return self._stop_reason

    @property
    def num_running(self) -> int:
        """Trials in the hands of this job."""
        return sum(block.running is not None for block in self.blocks.values())

    @property
    def is_idle(self) -> bool:
        """Whether no block of this job has a trial."""
        return not self.num_running

    # ---- giving out ------------------------------------------------------------------------------------------------

    def _feed(self, block: Block) -> None:
        is_ready = block.running is None and block.number in self.blocks and self._ready.issuperset(block.ranks)
        if not is_ready or self.is_stopping:
            return
        if block not in self._hungry:
            self._hungry.append(block)
        if not self.claimed:
            self._claim_ahead(1)
        if not self.claimed:
            return  # nothing left, or all in other hands
        due = self.claimed[0]
        if due.values is None:
            proposal = self._search.planned(due.number) or self._proposals.take(self._trial_s)
            if proposal is None:
                return
            self._search.adopt(due.number, proposal)
            values: Mapping[str, Any] = proposal.values
        else:
            values = due.values
        self.claimed.pop(0)
        self._hungry.remove(block)
        self._mine.add(due.number)
        known = self._store.study.trials.get(due.number)
        block.running = Running(due, values, self._clock(), last_step=max(known.reports, default=-1) if known is not None else -1)
        self._start_wave(block, block.running)
        asked_for = None if self._search.space is not None else self._search.distributions(due.number)
        self._store.begin(due, values, block.number, asked_for)  # after it was sent: the disk is waited for while the block works

    def _claim_ahead(self, least: int | None = None) -> None:
        """What is claimed nobody else begins, so only short trials are claimed before they are needed."""
        is_short = self._trial_s is not None and self._trial_s < SHORT_S
        wanted = (min(len(self.blocks), MOST_CLAIMED) if is_short else 0) if least is None else least
        while len(self.claimed) < wanted and not self.is_stopping:
            due = self._store.next_due()
            if due is None:
                return
            self.claimed.append(due)

    def _start_wave(self, block: Block, running: Running) -> None:
        workers = self._plan.workers
        running.parts, running.busy, running.told, running.epochs = {}, set(), {}, {}
        for place, part in enumerate(self._plan.waves[running.wave]):
            members = block.ranks[place * workers : (place + 1) * workers]
            running.parts[members[0]] = part
            folder = self._store.folder / "trials" / f"{running.due.number:06d}"
            told = self._order(running.due, running.values, part, folder)
            if self._search.space is None:
                told["distributions"] = self._search.distributions(running.due.number)
            token = secrets.token_hex(16)
            places = [self._crew.place_of(rank) for rank in members]
            for index, rank in enumerate(members):
                running.busy.add(rank)
                at = meeting_of(places, index, token, f"trial {running.due.number}")
                self._crew.send(rank, {**told, "id": running.name, "at": at, "threads": places[index]["threads"]})

    # ---- a trial that runs -----------------------------------------------------------------------------------------

    def _of_running(self, block: Block, running: Running, rank: int, letter: Letter) -> None:
        if letter["is"] == "epoch":
            self._epoch(running, rank, letter)
            return
        if letter["is"] == "suggest":
            self._suggest(running, rank, letter)
            return
        if letter["is"] == "report":
            self._report(running, letter["step"], letter["value"])
            self._crew.send(rank, {"go": not running.is_hopeless})
            return
        running.busy.discard(rank)
        if letter["is"] == "failed":
            self._fail(running, letter["kind"], letter["reason"])
        elif letter["reason"] == "interrupted":
            self._fail(running, STOPPED, self._stop_reason or "told to stop")
        elif rank in running.parts:
            running.told[rank] = letter
            self._weigh(running)  # others may wait for it
        if not running.busy:
            self._conclude(block, running)

    def _epoch(self, running: Running, rank: int, letter: Letter) -> None:
        value = values_of(self._plan.objectives, letter["metrics"], self._clock() - running.began)[0]
        running.epochs.setdefault(rank, {})[letter["epoch"]] = value
        if self._plan.prune in ("none", "wilcoxon"):
            return  # it does not ask
        running.asking[rank] = letter["epoch"]
        if running.failure is not None or self.is_stopping:
            self._answer(running)  # nobody else will come as far
        else:
            self._weigh(running)

    def _weigh(self, running: Running) -> None:
        """Once all parts of the wave have come as far: report, and answer those that wait. A part that goes on from a checkpoint
        may be ahead of the others, and waits for them."""
        while running.asking:
            epoch = min(running.asking.values())
            now = [running.value_at(rank, epoch, self._plan.objectives) for rank in running.parts]
            known = [value for value in now if value is not None]
            if len(known) < len(now):
                return
            known += [one["values"][0] for one in running.results]
            self._report(running, running.wave * self._plan.epochs + epoch, math.fsum(known) / len(known))
            if running.is_hopeless:
                self._answer(running, goes_on=False)
            else:
                self._answer(running, up_to=epoch)

    def _report(self, running: Running, step: int, value: float) -> None:
        if step <= running.last_step:
            return  # a life before this one has said it
        running.last_step = step
        number = running.due.number
        self._search.report(number, step, value)
        running.is_hopeless = running.is_hopeless or self._search.is_hopeless(number)
        self._store.append(reported(number, step, value))

    def _answer(self, running: Running, goes_on: bool = True, up_to: float = math.inf) -> None:
        for rank, epoch in tuple(running.asking.items()):
            if epoch <= up_to:
                self._crew.send(rank, {"go": goes_on})
                del running.asking[rank]

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
                self._report(running, len(running.results), one["values"][0])
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
        block.running = None
        self._mine.discard(due.number)
        self._search.tell(due.number, state, values)
        if state != FAILED:
            self._trial_s = took_s if self._trial_s is None else 0.8 * self._trial_s + 0.2 * took_s
        self._proposals.renew(None if self._trial_s is None else self._trial_s / max(len(self.blocks), 1))
        self._feed(block)  # before the disk is waited for
        parts = [one["values"] for one in running.results if one["values"]]
        details = {"parts": running.results, **({"spread": spread_of(parts)} if parts else {})}
        if self._search.space is None:  # an objective says only when it runs what it wants to know
            ranges = {name: text for name, text in self._search.distributions(due.number).items() if name in running.values}
            details |= {"asked": dict(running.values), "distributions": ranges}
        self._store.append(ended(due.number, due.attempt, state, values, took_s, reason, details))
        self._learn()

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
        self._answer(running)
        if kind == PEER:
            running.kill_at = running.kill_at or self._clock() + PEER_WAIT_S
        elif kind != STOPPED:
            self._kill(running)

    def _kill(self, running: Running) -> None:
        for rank in running.busy & self._ready:
            self._crew.signal(rank, signal.SIGKILL)

    def _end_of_failed(self, block: Block, running: Running) -> None:
        assert running.failure is not None
        kind, reason = running.failure
        due = running.due
        if len(block.ranks) > 1 or kind == MEMORY:  # the others may be anywhere in their work
            for rank in self._ready.intersection(block.ranks):
                self._ready.discard(rank)
                self._crew.signal(rank, signal.SIGKILL)
        known = self._store.study.trials.get(due.number)
        num_deaths = 1 + (0 if known is None else len(known.deaths - {due.attempt}))
        if kind in GIVES_BACK and (num_deaths < self._plan.attempts or kind == STOPPED):
            block.running = None
            self._mine.discard(due.number)
            self._store.give_back(due.number, due.attempt, reason, died=kind != STOPPED)
            self._learn()
            if kind != STOPPED:
                self._watcher.say(f"trial {due.number} is given back: {reason}")
            self._feed(block)
            return
        if kind in GIVES_BACK:
            reason = f"{reason}; it was begun {num_deaths} times (--attempts)"
        self._end(block, running, FAILED, (), reason)

    # ---- what is known ---------------------------------------------------------------------------------------------

    def _learn(self) -> None:
        """What the journal says that is new, of this job and of others."""
        for trial in self._store.refresh():
            if trial.number not in self._mine:
                self._search.remember(trial)
            if trial.result is not None:
                self._watcher.trial_ended(trial)
