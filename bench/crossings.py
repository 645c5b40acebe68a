"""Where the lines of two algorithms cross, and what that says about the choice by size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from bench.rounds import Samples, ratio

BySize = Mapping[int, Mapping[str, Samples]]
"""Samples by bytes and name."""


def clear_ratios(by_size: BySize, first: str, second: str) -> list[tuple[int, float]]:
    """Local: how many times as long the second takes, at the sizes where the interval of that does not hold 1."""
    found = [(size, ratio(samples[second], samples[first])) for size, samples in sorted(by_size.items())]
    return [(size, times.median) for size, times in found if times.low > 1 or times.high < 1]


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


def best_threshold(by_size: BySize, below: str, above: str) -> int | None:
    """Local: up to which size `below` should be taken and beyond it `above`, so that the sum of the logarithms of the times is
    least; a power of two. 0 where `below` never pays, None where `above` never does."""
    sizes = sorted(by_size)

    def cost(num_below: int) -> float:
        chosen = [below] * num_below + [above] * (len(sizes) - num_below)
        return sum(math.log(by_size[size][name].median) for size, name in zip(sizes, chosen, strict=True))

    num_below = min(range(len(sizes) + 1), key=cost)
    if num_below == 0:
        return 0
    if num_below == len(sizes):
        return None
    middle = math.sqrt(sizes[num_below - 1] * sizes[num_below])
    near = [size for size, _ in crossings(by_size, below, above) if sizes[num_below - 1] <= size <= sizes[num_below]]
    return _power_of_two(near[0] if near else middle)


def loss(by_size: BySize, choose: Callable[[int], str], among: Sequence[str]) -> dict[int, float]:
    """Local: how many times as long as the fastest the chosen algorithm takes at each size."""
    return {
        size: samples[choose(size)].median / samples[fastest(samples, among)].median for size, samples in sorted(by_size.items())
    }


def _power_of_two(value: float) -> int:
    return int(2 ** round(math.log2(value)))
