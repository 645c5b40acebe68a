"""What trials say of themselves while they run, and what they hear: whether to go on. All parts of a trial hear it at one epoch."""

from __future__ import annotations

import math
from collections.abc import Callable

from unisono.tuning.blocks import Crew, Running
from unisono.tuning.letters import Letter
from unisono.tuning.plan import Plan, values_of
from unisono.tuning.search import Search
from unisono.tuning.store import Store
from unisono.tuning.study import reported


class Reports:
    """Local; nothing blocks but for the journal."""

    def __init__(self, plan: Plan, crew: Crew, store: Store, search: Search, clock: Callable[[], float]) -> None:
        self._plan, self._crew, self._store, self._search, self._clock = plan, crew, store, search, clock

    def epoch(self, running: Running, rank: int, letter: Letter, ends: bool) -> None:
        """A part has come to the end of an epoch, and waits for an answer where trials are pruned by epochs. A trial that `ends`
        waits for no other part."""
        value = values_of(self._plan.objectives, letter["metrics"], self._clock() - running.began)[0]
        running.epochs.setdefault(rank, {})[letter["epoch"]] = value
        if self._plan.prune in ("none", "wilcoxon"):
            return  # it does not ask
        running.asking[rank] = letter["epoch"]
        if ends:
            self.answer(running)  # nobody else will come as far
        else:
            self.weigh(running)

    def weigh(self, running: Running) -> None:
        """Once all parts of the wave have come as far: report, and answer those that wait. A part that goes on from a checkpoint
        may be ahead of the others, and waits for them."""
        while running.asking:
            epoch = min(running.asking.values())
            now = [running.value_at(rank, epoch, self._plan.objectives) for rank in running.parts]
            known = [value for value in now if value is not None]
            if len(known) < len(now):
                return
            known += [one["values"][0] for one in running.results]
            self.note(running, running.wave * self._plan.epochs + epoch, math.fsum(known) / len(known))
            if running.is_hopeless:
                self.answer(running, goes_on=False)
            else:
                self.answer(running, up_to=epoch)

    def note(self, running: Running, step: int, value: float) -> None:
        """The objective at a step; from then on the trial may be hopeless."""
        if step <= running.last_step:
            return  # a life before this one has said it
        running.last_step = step
        number = running.due.number
        self._search.report(number, step, value)
        running.is_hopeless = running.is_hopeless or self._search.is_hopeless(number)
        self._store.append(reported(number, step, value))

    def answer(self, running: Running, goes_on: bool = True, up_to: float = math.inf) -> None:
        """To those that wait at this epoch or an earlier one."""
        for rank, epoch in tuple(running.asking.items()):
            if epoch <= up_to:
                self._crew.send(rank, {"go": goes_on})
                del running.asking[rank]
