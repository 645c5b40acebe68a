"""Many workers in one process on a virtual clock: real gradients, the same rules, invented times (`--simulate N`).

Each worker has a speed of its own, and every batch and every message takes a time drawn around the ones that were asked for. The
times are functions of (seed, worker, number), so a simulation can be repeated. The server serves one call after another, each in
`server_s`; a call that comes meanwhile waits its turn.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
from torch import Tensor

from unisono.comm.exchange import Numbers, Reply, Request, Server
from unisono.data.plan import random_bits
from unisono.errors import UsageError
from unisono.training.central.worker import Outgoing, Work

_TIMES = 8
"""What a stream of random bits is for; see data/plan.py."""
_SPEED, _COMPUTE, _THERE, _BACK = range(4)


@dataclass(frozen=True)
class Clock:
    """Of `--simulate`: how long things take, in virtual seconds."""

    compute_s: float = 0.1
    """One batch, on a worker of middle speed."""
    network_s: float = 0.001
    """One message, one way."""
    server_s: float = 0.0001
    """The server's work on one call."""
    speeds: float = 0.1
    """How much workers differ: the standard deviation of the logarithm of their speeds, which stay."""
    jitter: float = 0.1
    """How much single batches and messages differ, likewise."""

    def __post_init__(self) -> None:
        for name in ("compute_s", "network_s", "server_s", "speeds", "jitter"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
                raise UsageError(f"{name} must be a number of at least 0 (--set simulate.{name}); received {value!r}")

    def speed(self, seed: int, worker: int) -> float:
        """Pure: by what factor this worker's batches take longer."""
        return _around(1.0, self.speeds, seed, worker, _SPEED, 0)

    def compute(self, seed: int, worker: int, number: int) -> float:
        """Pure: how long a worker's batch takes."""
        return self.speed(seed, worker) * _around(self.compute_s, self.jitter, seed, worker, _COMPUTE, number)

    def message(self, seed: int, worker: int, number: int, is_reply: bool) -> float:
        """Pure: how long a message is under way."""
        return _around(self.network_s, self.jitter, seed, worker, _BACK if is_reply else _THERE, number)


def _around(middle: float, spread: float, seed: int, worker: int, what: int, number: int) -> float:
    (bits,) = random_bits(1, seed, worker, _TIMES + what, number)
    return middle * float(np.exp(spread * NormalDist().inv_cdf((int(bits) + 1) / (2**64 + 2))))


@dataclass
class SimulatedServer(Server):
    """The server's end of virtual workers, which compute when they are answered."""

    clock: Clock
    seed: int
    work: Mapping[int, Work]
    now_s: float = 0.0
    """Virtual time."""
    busy_s: float = 0.0
    """Of that the server has worked."""
    waited_s: dict[int, float] = field(default_factory=dict)
    """By worker: virtual time between its calls and their answers."""
    _calls: list[tuple[float, int, int, Outgoing]] = field(default_factory=list)
    _num: int = 0
    _sent_at_s: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for caller, work in self.work.items():
            self._send(caller, next(work), 0.0)

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
        self._send(caller, said, arrives_s)

    def is_silent(self) -> bool:
        return not self._calls

    def metrics(self) -> dict[str, float]:
        """Local: for the watchers of an epoch, in virtual seconds since the beginning."""
        if not self.now_s:
            return {}
        waited_s = sum(self.waited_s.values()) / len(self.work)
        return {"virtual_s": self.now_s, "server_load": self.busy_s / self.now_s, "waiting": waited_s / self.now_s}

    def close(self) -> None:
        for work in self.work.values():
            work.close()

    def _send(self, caller: int, said: Outgoing, since_s: float) -> None:
        compute_s = 0.0
        for _ in range(said.num_units):
            self._num += 1
            compute_s += self.clock.compute(self.seed, caller, self._num)
        self._num += 1
        self._sent_at_s[caller] = since_s + compute_s
        arrives_s = since_s + compute_s + self.clock.message(self.seed, caller, self._num, is_reply=False)
        heapq.heappush(self._calls, (arrives_s, self._num, caller, said))
