"""Many workers in one process on a virtual clock: real gradients, the same rules, invented times (`--simulate N`).

Each worker has a speed of its own, and every batch and every message takes a time of the virtual clock (virtual_clock.py), so a
simulation can be repeated. The server serves one call after another, each in `server_s`; a call that comes meanwhile waits.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from unisono.algorithms.server.virtual_clock import VirtualClock
from unisono.algorithms.server.worker import Work, WorkerCall
from unisono.comm.exchange.base import Numbers, Reply, Request, Server


@dataclass
class SimulatedServer(Server):
    """The server's end of virtual workers, which compute when they are answered."""

    clock: VirtualClock
    seed: int
    work: Mapping[int, Work]
    now_s: float = 0.0
    """The virtual time."""
    busy_s: float = 0.0
    """Virtual time that the server has worked."""
    waited_s: dict[int, float] = field(default_factory=dict)
    """Virtual time of each worker between its calls and their answers."""
    _calls: list[tuple[float, int, int, WorkerCall]] = field(default_factory=list)
    _num: int = 0
    _sent_at_s: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for caller, work in self.work.items():
            self._schedule_call(caller, next(work), 0.0)

    def receive(self, timeout_s: float | None = None) -> Request | None:  # noqa: ARG002 - virtual time does not pass by itself
        if not self._calls:
            return None
        arrived_s, _, caller, said = heapq.heappop(self._calls)
        self.now_s = max(self.now_s, arrived_s) + self.clock.server_s
        self.busy_s += self.clock.server_s
        return Request(caller, said.kind, np.asarray(said.tail, dtype=np.float64), said.vector)

    def reply(self, caller: int, kind: int, vector: Tensor | None = None, tail: Sequence[float] | Numbers = ()) -> None:
        self._num += 1
        arrives_s = self.now_s + self.clock.message(self.seed, caller, self._num, is_reply=True)
        self.waited_s[caller] = self.waited_s.get(caller, 0.0) + arrives_s - self._sent_at_s[caller]
        try:
            said = self.work[caller].send(Reply(kind, np.asarray(tail, dtype=np.float64), vector))
        except StopIteration:
            return
        self._schedule_call(caller, said, arrives_s)

    def all_await_replies(self) -> bool:
        return not self._calls

    def metrics(self) -> dict[str, float]:
        """Local: the virtual time in seconds, and the shares of it in which the server worked and workers waited; empty at the
        start."""
        if not self.now_s:
            return {}
        waited_s = sum(self.waited_s.values()) / len(self.work)
        return {"virtual_s": self.now_s, "server_load": self.busy_s / self.now_s, "waiting": waited_s / self.now_s}

    def close(self) -> None:
        for work in self.work.values():
            work.close()

    def _schedule_call(self, caller: int, said: WorkerCall, since_s: float) -> None:
        """Puts a worker's call among those to come, at `since_s` and the simulated times of its steps and its message."""
        compute_s = 0.0
        for _ in range(said.num_units):
            self._num += 1
            compute_s += self.clock.compute(self.seed, caller, self._num)
        self._num += 1
        self._sent_at_s[caller] = since_s + compute_s
        arrives_s = since_s + compute_s + self.clock.message(self.seed, caller, self._num, is_reply=False)
        heapq.heappush(self._calls, (arrives_s, self._num, caller, said))
