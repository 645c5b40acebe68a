"""Interleaved rounds: the order of turns, what a round says, and how sure its median ratio is.

In each round every contender has one turn of a few calls, in an order that is shuffled anew, so that what the machine does
besides hits all alike and nobody always follows the same one. A round gives one value for each contender, the median of its
calls; two contenders are compared round by round. The interval is that of a bootstrap over rounds.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import numpy as np
import numpy.typing as npt

RESAMPLES = 10_000
CONFIDENCE = 0.95

Floats = npt.NDArray[np.float64]
Turn = Callable[[str], Sequence[Sequence[float]]]
"""Given a contender's name: the microseconds of its calls, for each rank."""


@dataclass(frozen=True)
class Estimate:
    """A value with its interval: of a confidence of 95 %, or from the least to the largest of a few."""

    value: float
    low: float
    high: float

    def __format__(self, spec: str) -> str:
        spec = spec or ".2f"
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"

    def __str__(self) -> str:
        return format(self)


@dataclass(frozen=True)
class Samples:
    """All calls of one contender in one block: `times[rank, round, call]` in microseconds."""

    times: Floats

    @property
    def calls(self) -> Floats:
        """Time of each call by round: that of its slowest rank, for which the program would wait."""
        return np.asarray(self.times.max(axis=0))

    @property
    def median(self) -> float:
        return float(np.median(self.calls))

    @property
    def by_round(self) -> Floats:
        return np.asarray(np.median(self.calls, axis=1))


def orders(names: Sequence[str], num_rounds: int, seed: int) -> Iterator[list[str]]:
    """Local: the order of turns in each round."""
    source = random.Random(seed)
    for _ in range(num_rounds):
        order = list(names)
        source.shuffle(order)
        yield order


def interleave(
    names: Sequence[str], num_rounds: int, seed: int, turn: Turn, progress: Callable[[int], None] = lambda _: None
) -> dict[str, Samples]:
    """Blocking: let all have their turn in every round. A contender whose turn gives nothing has dropped out and is left out."""
    times: dict[str, list[Sequence[Sequence[float]]]] = {name: [] for name in names}
    for number, order in enumerate(orders(names, num_rounds, seed)):
        progress(number)
        for name in order:
            if name in times:
                measured = turn(name)
                if measured:
                    times[name].append(measured)
                else:
                    del times[name]
    return {name: Samples(np.asarray(rounds, dtype=np.float64).transpose(1, 0, 2)) for name, rounds in times.items()}


def estimate(values: Floats, of: Callable[..., Any] = np.median) -> Estimate:
    """Pure: median (or mean) of the rounds' values, with its bootstrap interval."""
    picks = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.quantile(of(values[picks], axis=1), ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    return Estimate(float(of(values)), float(low), float(high))


def spread(values: Sequence[float]) -> Estimate:
    """Pure: the mean of a few runs, with the least and the largest."""
    return Estimate(mean(values), min(values), max(values))


def ratio(above: Samples, below: Samples) -> Estimate:
    """Pure: how many times as long one takes as the other, compared in each round."""
    return estimate(above.by_round / below.by_round)


def difference(above: Samples, below: Samples) -> Estimate:
    """Pure: how many microseconds longer one takes than the other, compared in each round."""
    return estimate(above.by_round - below.by_round)


def rounded(samples: Mapping[str, Samples]) -> dict[str, list[list[list[float]]]]:
    """Local: raw data for a file, `[rank][round][call]`, to a tenth of a microsecond."""
    return {name: np.round(sample.times, 1).tolist() for name, sample in samples.items()}


def restored(raw: Mapping[str, Sequence[Sequence[Sequence[float]]]]) -> dict[str, Samples]:
    """Local: the opposite of `rounded`."""
    return {name: Samples(np.asarray(times, dtype=np.float64)) for name, times in raw.items()}


class Stopwatch:
    """How long something has taken, in words."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def __str__(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._start), 60)
        return f"{minutes} min {seconds:02d} s"
