"""The trials that this job runs, as the journal and the search know them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from unisono.tuning.search.search import Search
from unisono.tuning.study.store import PendingTrial, Store
from unisono.tuning.study.study import end_record
from unisono.tuning.study.trial_plan import spread_of
from unisono.tuning.workers.blocks import RunningTrial, TrialObserver


class TrialLedger:
    """Keeps journal and search in step for the trials of this job. Local; blocks for as long as the file system takes."""

    def __init__(self, store: Store, search: Search, observer: TrialObserver, clock: Callable[[], float]) -> None:
        self._store, self._search, self._observer, self._clock = store, search, observer, clock
        self._own_trials: set[int] = set()
        """Trials whose records this job writes, so that it need not learn from them."""

    def open(self, pending: PendingTrial) -> RunningTrial:
        """Returns the trial as it is run by a block of this job."""
        assert pending.values is not None
        known = self._store.study.trials.get(pending.number)
        if known is not None:
            self._search.add_known_trial(known)  # another job's may have been read a moment ago
        self._own_trials.add(pending.number)
        last_step = max(known.reports, default=-1) if known is not None else -1
        return RunningTrial(pending, pending.values, self._clock(), last_step=last_step)

    def close(self, number: int) -> None:
        """Notes that no block of this job runs the trial any more."""
        self._own_trials.discard(number)

    def ranges_of(self, pending: PendingTrial) -> dict[str, str] | None:
        """Returns the ranges of a trial's values, where no space has them."""
        return None if self._search.space is not None else self._search.distributions(pending.number)

    def reports_of(self, number: int) -> Mapping[int, float]:
        """Returns the reports of a trial so far."""
        known = self._store.study.trials.get(number)
        return {} if known is None else known.reports

    def num_deaths(self, pending: PendingTrial) -> int:
        """Returns how many attempts ended by the death of a process, this one included."""
        known = self._store.study.trials.get(pending.number)
        return 1 + (0 if known is None else len(known.deaths - {pending.attempt}))

    def record_values(self, pending: PendingTrial) -> None:
        """Records the values of a trial."""
        self._store.record_values(pending, self.ranges_of(pending))

    def record_begin(self, pending: PendingTrial, block: int) -> None:
        """Records the values of a trial, and that a block runs it."""
        self.record_values(pending)
        self._store.record_begin(pending, block)

    def give_back(self, pending: PendingTrial, reason: str, died: bool = False) -> None:
        """Records that this job gives a trial back, so that any job may run it."""
        self.close(pending.number)
        self._store.give_back(pending.number, pending.attempt, reason, died)

    def record_end(self, running: RunningTrial, state: str, values: Sequence[float], took_s: float, reason: str) -> None:
        """Records the result of a trial."""
        pending = running.pending
        parts = [one["values"] for one in running.results if one["values"]]
        details = {"parts": running.results, **({"spread": spread_of(parts)} if parts else {})}
        if self._search.space is None:  # an objective says only when it runs what it wants to know
            ranges = self._search.distributions(pending.number)
            used = {name: text for name, text in ranges.items() if name in running.values}
            details |= {"asked": dict(running.values), "distributions": used}
        self._store.append(end_record(pending.number, pending.attempt, state, values, took_s, reason, details))

    def refresh(self) -> None:
        """Reads new records of the journal, of this job and of others, and shows results."""
        for trial in self._store.refresh():
            if trial.number not in self._own_trials:
                self._search.add_known_trial(trial)
            if trial.result is not None:
                self._observer.trial_ended(trial)
