"""Many workers in one process on a virtual clock: real gradients, the same rules, invented times (`--simulate N`).

Each worker has a speed of its own, and every batch and every message takes a time of the virtual clock (virtual_clock.py), so a
simulation can be repeated. The server serves one call after another, each in `server_s`; a call that comes meanwhile waits.

A save takes no virtual time, and needs not wait for any call: the state of a worker is that behind its last call, which is saved
with it where the server has not received it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from unisono.algorithms.server.protocol import SEND_STATE, TAKE_STATE
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
    _beside: deque[tuple[int, WorkerCall]] = field(default_factory=deque)
    """Calls that belong to a save or a resumed run, which take no time."""
    _num: int = 0
    _sent_at_s: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for caller, work in self.work.items():
            self._schedule_call(caller, next(work), 0.0)

    def receive(self, timeout_s: float | None = None) -> Request | None:  # noqa: ARG002 - virtual time does not pass by itself
        if self._beside:
            caller, said = self._beside.popleft()
            return Request(caller, said.kind, np.asarray(said.tail, dtype=np.float64), said.vector)
        if not self._calls:
            return None
        arrived_s, _, caller, said = heapq.heappop(self._calls)
        self.now_s = max(self.now_s, arrived_s) + self.clock.server_s
        self.busy_s += self.clock.server_s
        return Request(caller, said.kind, np.asarray(said.tail, dtype=np.float64), said.vector)

    def reply(self, caller: int, kind: int, vector: Tensor | None = None, tail: Sequence[float] | Numbers = ()) -> None:
        content = Reply(kind, np.asarray(tail, dtype=np.float64), vector)
        if kind in (SEND_STATE, TAKE_STATE):
            self._beside.append((caller, self.work[caller].send(content)))
            return
        self._num += 1
        arrives_s = self.now_s + self.clock.message(self.seed, caller, self._num, is_reply=True)
        self.waited_s[caller] = self.waited_s.get(caller, 0.0) + arrives_s - self._sent_at_s.get(caller, self.now_s)
        try:
            said = self.work[caller].send(content)
        except StopIteration:
            return
        self._schedule_call(caller, said, arrives_s)

    def all_await_replies(self) -> bool:
        return not (self._calls or self._beside)

    def metrics(self) -> dict[str, float]:
        """Local: the virtual time in seconds, and the shares of it in which the server worked and workers waited; empty at the
        start."""
        if not self.now_s:
            return {}
        waited_s = sum(self.waited_s.values()) / len(self.work)
        return {"virtual_s": self.now_s, "server_load": self.busy_s / self.now_s, "waiting": waited_s / self.now_s}

    def state(self) -> dict[str, Any]:
        """Local: what `restore` needs: the clock, and the calls that were not received yet. Tensors are not copied."""
        return {
            "now_s": self.now_s,
            "busy_s": self.busy_s,
            "waited_s": list(self.waited_s.items()),
            "sent_at_s": list(self._sent_at_s.items()),
            "num": self._num,
            "calls": [
                [arrives_s, number, caller, said.kind, [float(one) for one in said.tail], said.vector]
                for arrives_s, number, caller, said in self._calls
            ],
        }

    def restore(self, state: Mapping[str, Any], workers_rejoin: bool) -> None:
        """Local, before any call is received: resumes with what `state` gave. If workers do not rejoin with the states that they
        had, only the clock is that of before."""
        self.now_s, self.busy_s = state["now_s"], state["busy_s"]
        self.waited_s = dict(state["waited_s"])
        if not workers_rejoin:
            self._calls = [(self.now_s + arrives_s, number, caller, said) for arrives_s, number, caller, said in self._calls]
            self._sent_at_s = {caller: self.now_s + sent_s for caller, sent_s in self._sent_at_s.items()}
            return
        self._beside.extend((caller, said) for _, _, caller, said in sorted(self._calls))
        self._sent_at_s = dict(state["sent_at_s"])
        self._num = state["num"]
        self._calls = [
            (arrives_s, number, caller, WorkerCall(kind, vector, tuple(tail)))
            for arrives_s, number, caller, kind, tail, vector in state["calls"]
        ]

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
