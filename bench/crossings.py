"""Where the lines of two algorithms cross, and what that says about the choice by size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from bench.by_size import BySize
from bench.rounds import Samples, ratio


def clear_ratios(by_size: BySize, first: str, second: str) -> list[tuple[int, float]]:
    """Local: how many times as long the second takes, at the sizes where the interval of that does not hold 1."""
    found = [(size, ratio(samples[second], samples[first])) for size, samples in sorted(by_size.items())]
    return [(size, times.value) for size, times in found if times.low > 1 or times.high < 1]


def crossings(by_size: BySize, first: str, second: str) -> list[tuple[int, str]]:
    """Local: at which sizes the order of two algorithms changes, and who is faster from there on.

    Between two sizes with a clear difference the logarithm of the ratio is taken as a straight line over that of the size.
    """
    points = [(size, math.log(times)) for size, times in clear_ratios(by_size, first, second)]
    found = []
    for (low, below), (high, above) in itertools.pairwise(points):
        if (below < 0) != (above < 0):
            share = below / (below - above)
            found.append((round(low * (high / low) ** share), first if above > 0 else second))
    return found


def fastest(samples: Mapping[str, Samples], among: Sequence[str]) -> str:
    """Local: who has the smallest median."""
    return min(among, key=lambda name: samples[name].median)


def loss(by_size: BySize, choose: Callable[[int], str], among: Sequence[str]) -> dict[int, float]:
    """Local: how many times as long as the fastest the chosen algorithm takes at each size."""
    return {
        size: samples[choose(size)].median / samples[fastest(samples, among)].median for size, samples in sorted(by_size.items())
    }
