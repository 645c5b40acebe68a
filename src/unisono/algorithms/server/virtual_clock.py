"""How long things take in a simulation: drawn around the given times, as functions of (seed, worker, number)."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from unisono.data.sharding_plan import random_bits
from unisono.errors import UsageError
from unisono.task.options import option

_TIMES = 8
"""What a stream of random bits is for; see data/sharding_plan.py."""
_SPEED, _COMPUTE, _THERE, _BACK = range(4)


@dataclass(frozen=True)
class VirtualClock:
    """How long things take with `--simulate`, in virtual seconds."""

    compute_s: float = option(0.1, "time of one batch, on a worker of average speed", least=0)
    network_s: float = option(0.001, "time of one message, one way", least=0)
    server_s: float = option(0.0001, "time in which the server handles one call", least=0)
    speeds: float = option(0.1, "how much the speeds of workers differ: standard deviation of their logarithm", least=0)
    jitter: float = option(0.1, "how much the times of batches and messages vary: standard deviation of their logarithm", least=0)

    def __post_init__(self) -> None:
        for name in ("compute_s", "network_s", "server_s", "speeds", "jitter"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
                raise UsageError(f"{name} must be a number of at least 0 (--set simulate.{name}); received {value!r}")

    def speed(self, seed: int, worker: int) -> float:
        """Pure: the factor by which this worker's batches take longer."""
        return _draw_around(1.0, self.speeds, seed, worker, _SPEED, 0)

    def compute(self, seed: int, worker: int, number: int) -> float:
        """Pure: the virtual seconds that a worker's batch takes."""
        return self.speed(seed, worker) * _draw_around(self.compute_s, self.jitter, seed, worker, _COMPUTE, number)

    def message(self, seed: int, worker: int, number: int, is_reply: bool) -> float:
        """Pure: the virtual seconds that a message travels."""
        return _draw_around(self.network_s, self.jitter, seed, worker, _BACK if is_reply else _THERE, number)


def _draw_around(middle: float, spread: float, seed: int, worker: int, what: int, number: int) -> float:
    """Returns a log-normal time with the median `middle`, the same for the same seed, worker, kind and number."""
    (bits,) = random_bits(1, seed, worker, _TIMES + what, number)
    return middle * float(np.exp(spread * NormalDist().inv_cdf((int(bits) + 1) / (2**64 + 2))))


NO_TIME = VirtualClock(0.0, 0.0, 0.0, 0.0, 0.0)
