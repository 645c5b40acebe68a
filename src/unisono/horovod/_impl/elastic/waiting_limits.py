"""How long an elastic job waits for workers, and why it ends after waiting in vain. Local; the present time is an argument."""

from __future__ import annotations

from dataclasses import dataclass

from unisono.horovod._impl.elastic.elastic_worker import START_S, worker_count

MOST_IN_VAIN = 20
"""Generations that lost a worker, without any commit: then it is not bad luck."""


@dataclass
class WaitingLimits:
    """What the job waits for, since when, and for how long at most."""

    least: int
    """The number of workers that are needed (--min-np)."""
    timeout_s: float
    """How long there may be fewer (--elastic-timeout)."""
    start_timeout_s: float | None
    """How long the first start may take (--start-timeout); None: as long as any other."""
    waits_since: float | None
    """Since when no generation is at work; None while one is."""
    _begun: bool = False
    _short_since: float | None = None
    """Since when there are too few workers."""
    _num_stillborn: int = 0
    """Workers that died before they had a rank, since the last generation began."""
    _num_in_vain: int = 0
    """Generations since the last commit that lost a worker."""
    _in_vain_since: float = 0.0
    _in_vain_s: float = 0.0
    """From the first such loss to the last."""

    @property
    def limit_s(self) -> float:
        """The limit for everything that includes the start of workers."""
        return max(self.timeout_s, START_S)

    @property
    def start_s(self) -> float:
        """The limit for started workers to call `hvd.init()`."""
        if self.start_timeout_s is None:
            return self.limit_s
        return max(self.timeout_s, self.start_timeout_s) if self._begun else self.start_timeout_s

    @property
    def slots_s(self) -> float:
        """The limit for the slots of the first start, where there are enough to begin but fewer than were asked for."""
        return self.timeout_s if self.start_timeout_s is None else self.start_timeout_s

    def waited_s(self, now: float) -> float:
        """Seconds for which no generation has been at work; 0 while one is."""
        return 0.0 if self.waits_since is None else now - self.waits_since

    def start_waiting(self, now: float) -> None:
        """Notes that no generation is at work."""
        if self.waits_since is None:
            self.waits_since = now
            self._num_stillborn = 0

    def is_late(self, now: float) -> bool:
        """Whether started workers have not all called `hvd.init()` within the limit."""
        return self.waits_since is not None and self.waited_s(now) >= self.start_s

    def on_generation_begin(self) -> None:
        """Notes that a generation begins."""
        self._begun = True
        self.waits_since = None
        self._num_stillborn = 0

    def on_commit(self) -> None:
        """Notes a commit: generations that failed before it no longer count."""
        self._num_in_vain = 0
        self._in_vain_s = 0.0

    def on_worker_lost(self, was_assigned: bool, in_vain: bool, now: float) -> None:
        """Notes that a worker died; `in_vain`: as the first of its generation, before a commit."""
        self._num_stillborn += not was_assigned
        if in_vain:
            if not self._num_in_vain:
                self._in_vain_since = now
            self._num_in_vain += 1
            self._in_vain_s = now - self._in_vain_since

    def why_end(self, num_present: int, now: float) -> str | None:
        """Returns why the job must end, or None. `num_present`: workers that are alive and stay, also those that have only been
        started."""
        if self._num_in_vain >= MOST_IN_VAIN and self._in_vain_s >= self.limit_s:
            return (
                f"{self._num_in_vain} generations in {self._in_vain_s:.0f} s lost a worker before their first commit; check the "
                "memory of the hosts, or commit more often"
            )
        if num_present < self.least:
            if self._short_since is None:
                self._short_since = now
            if now - self._short_since < self.timeout_s:
                return None
            return (
                f"only {worker_count(num_present)} for {self.timeout_s:g} s, fewer than --min-np {self.least}; "
                "give more hosts, or more time (--elastic-timeout)"
            )
        if self._short_since is not None:
            self._short_since = None
            if self.waits_since is not None and not self._num_stillborn:
                self.waits_since = now  # the workers that have come at last need time to start
        if not self.is_late(now):
            return None
        if self._num_stillborn:
            dead = worker_count(self._num_stillborn)
            return f"{dead} died before hvd.init(), and no generation began for {self.start_s:g} s; see the output of the workers"
        return (
            f"not all workers have called hvd.init() within {self.start_s:g} s; see their output, or give them more time "
            "(--start-timeout)"
        )
