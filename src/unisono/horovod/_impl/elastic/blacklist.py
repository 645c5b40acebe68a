"""Which hosts get no new workers because workers failed there. Pure: the present time is an argument."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

TOO_MANY = 3
"""Failures in a row, without a commit by a worker that was started afterwards."""
KILLS_FOR_ONE = 4
"""This many kills from outside count as one failure: a program that fails does so again, and one that was killed may not be."""
REST_AFTER_KILLS_S = (1.0, 30.0)
"""Seconds for which a host rests after kills. Only failures of the program itself exclude a host for good."""

MOST_DOUBLINGS = 64
MANY_FAILED = "too many workers failed there without a commit in between"


@dataclass
class _Record:
    num_faults: int = 0
    num_kills: int = 0
    num_rests: int = 0
    last_worker: int = -1
    rests_until: float = -math.inf


@dataclass
class Blacklist:
    """The failures of each host, and the hosts that rest or are excluded because of them."""

    cooldown_range: tuple[float, float] | None
    jitter: Callable[[], float]
    """A number in 0..1, so that hosts do not all come back at once."""
    _records: dict[str, _Record] = field(default_factory=dict)

    def on_failure(self, host: str, worker: int, killed: bool, now: float) -> str | None:
        """Notes that a worker failed on a host and returns a message where that excludes the host or makes it rest. `worker` is at
        least the number of every worker that was started before."""
        record = self._records.setdefault(host, _Record())
        record.num_kills += killed
        record.num_faults += not killed
        record.last_worker = max(record.last_worker, worker)
        if self.cooldown_range is None and record.num_faults >= TOO_MANY:
            was_reported, record.rests_until = record.rests_until == math.inf, math.inf
            return None if was_reported else f"host {host} gets no more workers: {MANY_FAILED}"
        if record.num_faults + record.num_kills / KILLS_FOR_ONE < TOO_MANY or record.rests_until > now:
            return None
        return f"{self.suspend(host, now)}: {MANY_FAILED}"

    def suspend(self, host: str, now: float) -> str:
        """Gives a host no new workers for a while, as workers cannot be started there; returns the message on it."""
        record = self._records.setdefault(host, _Record())
        least, most = self.cooldown_range or REST_AFTER_KILLS_S
        rest_s = min(most, least * 2 ** min(record.num_rests, MOST_DOUBLINGS) * (1 + self.jitter()))
        record.num_rests += 1
        record.num_kills = 0
        if self.cooldown_range is not None:
            record.num_faults = 0
        record.rests_until = now + rest_s
        return f"host {host} gets no new workers for {rest_s:.3g} s"

    def on_commit(self, host: str, newest_worker: int) -> None:
        """Notes a commit of the job with this worker: if it was started after the last failure, the host is good again."""
        record = self._records.get(host)
        if record is not None and newest_worker > record.last_worker:
            del self._records[host]

    def allows(self, host: str, now: float) -> bool:
        """Whether a host may get new workers now."""
        record = self._records.get(host)
        return record is None or record.rests_until <= now

    def is_hopeless(self, hosts: Collection[str]) -> bool:
        """Whether none of these hosts will ever get a worker again."""
        return all(host in self._records and self._records[host].rests_until == math.inf for host in hosts)
