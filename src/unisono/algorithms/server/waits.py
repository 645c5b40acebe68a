"""Measures of an asynchronous run: how old gradients are, how long workers wait, how busy the server is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter

from unisono.algorithms.server.service import Applied

_KEPT = ("num_updates", "staleness_sum", "staleness_max", "busy_s", "wait_s", "work_s")


@dataclass
class Waits:
    """Staleness, waits and load in one epoch. Local to the server."""

    began_s: float = field(default_factory=perf_counter)
    num_updates: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0
    busy_s: float = 0.0
    """Seconds that the server spent on calls."""
    wait_s: float = 0.0
    """Seconds that all workers together waited for the server."""
    work_s: float = 0.0
    before_s: float = 0.0
    """Seconds that the epoch took in earlier attempts."""

    def add(self, applied: Applied) -> None:
        """Local: counts an update that was applied."""
        self.num_updates += 1
        self.staleness_sum += applied.staleness
        self.staleness_max = max(self.staleness_max, applied.staleness)
        self.wait_s += applied.report.wait_s
        self.work_s += applied.report.work_s

    def add_busy(self, seconds: float) -> None:
        """Local: adds seconds that the server spent on a call."""
        self.busy_s += seconds

    def took_s(self) -> float:
        """Local: seconds since the epoch began in this attempt."""
        return perf_counter() - self.began_s

    def state(self) -> dict[str, float]:
        """Local: the state in plain values, for `restore`."""
        found = {name: getattr(self, name) for name in _KEPT}
        return {**found, "before_s": self.before_s + self.took_s()}

    def restore(self, state: Mapping[str, float]) -> None:
        """Local: resumes with what `state` gave."""
        for name in (*_KEPT, "before_s"):
            setattr(self, name, state[name])

    @property
    def staleness(self) -> float:
        """How many updates old the updates were on average."""
        return self.staleness_sum / max(1, self.num_updates)

    def metrics(self) -> dict[str, float]:
        """Local: the metrics of the epoch: staleness, waiting, load of the server."""
        took_s, workers_s = self.before_s + self.took_s(), self.wait_s + self.work_s
        return {
            "staleness": self.staleness,
            "staleness_max": float(self.staleness_max),
            "updates_per_s": self.num_updates / took_s if took_s else 0.0,
            "waiting": self.wait_s / workers_s if workers_s else 0.0,
            "server_load": self.busy_s / took_s if took_s else 0.0,
        }
