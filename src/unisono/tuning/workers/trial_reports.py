"""Reports of running trials, and the answers to them: continue or be pruned. All parts of a trial get the answer at the same
epoch."""

from __future__ import annotations

import math
from collections.abc import Callable

from unisono.tuning.search.search import Search
from unisono.tuning.study.store import Store
from unisono.tuning.study.study import report_record
from unisono.tuning.study.trial_plan import Plan, values_of
from unisono.tuning.workers.blocks import RunningTrial, Workers
from unisono.tuning.workers.messages import Message


class TrialReports:
    """Records the reports of trials and answers them. Local; nothing blocks but for the journal."""

    def __init__(self, plan: Plan, workers: Workers, store: Store, search: Search, clock: Callable[[], float]) -> None:
        self._plan, self._workers, self._store, self._search, self._clock = plan, workers, store, search, clock

    def on_epoch(self, running: RunningTrial, rank: int, message: Message, is_ending: bool) -> None:
        """Handles the end of an epoch of a part, which waits for an answer where trials are pruned by epochs. A part of a trial
        that `is_ending` waits for no other part."""
        value = values_of(self._plan.objectives, message["metrics"], self._clock() - running.began)[0]
        running.epochs.setdefault(rank, {})[message["epoch"]] = value
        if self._plan.prune in ("none", "wilcoxon"):
            return  # it does not ask
        running.waiting_at[rank] = message["epoch"]
        if is_ending:
            self.answer(running)  # the other parts may never come that far
        else:
            self.report_common_epochs(running)

    def report_common_epochs(self, running: RunningTrial) -> None:
        """Once all parts of the wave have reached an epoch: reports the trial and answers the parts that wait there. A part that
        resumed from a checkpoint may be ahead of the others, and waits for them."""
        while running.waiting_at:
            epoch = min(running.waiting_at.values())
            now = [running.value_at(rank, epoch, self._plan.objectives) for rank in running.parts]
            known = [value for value in now if value is not None]
            if len(known) < len(now):
                return
            known += [one["values"][0] for one in running.results]
            self.record(running, running.wave * self._plan.epochs + epoch, math.fsum(known) / len(known))
            if running.should_prune:
                self.answer(running, should_continue=False)
            else:
                self.answer(running, up_to=epoch)

    def record(self, running: RunningTrial, step: int, value: float) -> None:
        """Records the objective at a step, and decides whether to prune the trial."""
        if step <= running.last_step:
            return  # an earlier attempt has reported it
        running.last_step = step
        number = running.pending.number
        self._search.report(number, step, value)
        running.should_prune = self._search.should_prune(number)  # an objective may continue, and then improve
        self._store.append(report_record(number, step, value, self._search.num_rungs(number)))

    def answer(self, running: RunningTrial, should_continue: bool = True, up_to: float = math.inf) -> None:
        """Answers the parts that wait at this epoch or an earlier one."""
        for rank, epoch in tuple(running.waiting_at.items()):
            if epoch <= up_to:
                self._workers.send(rank, {"go": should_continue})
                del running.waiting_at[rank]
