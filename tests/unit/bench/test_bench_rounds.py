"""The arithmetic of the benchmarks: rounds, intervals, judgements, crossings, sizes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench.algorithms import crossings
from bench.bounds import judge
from bench.collectives import verdicts
from bench.page import Table
from bench.rounds import Estimate, Samples, estimate, interleave, orders, ratio, restored, rounded
from bench.sizes import parse_size, show_size


def samples(*rounds: float) -> Samples:
    """Two ranks, one call in each round; the second rank is the faster one."""
    times = np.asarray(rounds, dtype=np.float64)
    return Samples(np.stack([times, times / 2])[:, :, None])


def steady(value: float, num_rounds: int = 20) -> Samples:
    return samples(*(value * (1 + 0.001 * (number % 3)) for number in range(num_rounds)))


def test_a_call_takes_as_long_as_its_slowest_rank() -> None:
    assert samples(4.0, 6.0, 5.0).median == 5.0


def test_each_contender_has_one_turn_in_every_round_in_changing_order() -> None:
    order = list(orders("abcd", 30, seed=1))
    assert all(sorted(names) == ["a", "b", "c", "d"] for names in order)
    assert len({tuple(names) for names in order}) > 5
    assert order == list(orders("abcd", 30, seed=1))


def test_raw_data_come_back_as_they_were() -> None:
    taken = iter(range(1000))

    def turn(name: str) -> list[list[float]]:
        return [[next(taken) + 0.25 for _ in range(3)] for _ in range(2)]

    measured = interleave(["a", "b"], 4, 0, turn)
    assert measured["a"].times.shape == (2, 4, 3)
    again = restored(rounded(measured))
    assert np.abs(again["b"].times - measured["b"].times).max() <= 0.05 + 1e-9


def test_a_contender_that_drops_out_is_left_out() -> None:
    turns = {"good": 0, "bad": 0}

    def turn(name: str) -> list[list[float]]:
        turns[name] += 1
        return [] if name == "bad" and turns[name] == 3 else [[1.0]]

    assert list(interleave(["good", "bad"], 5, 0, turn)) == ["good"]
    assert turns == {"good": 5, "bad": 3}


def test_the_interval_holds_the_median_and_shrinks_with_the_number_of_rounds() -> None:
    source = np.random.default_rng(1)
    few, many = (estimate(source.normal(10, 1, size)) for size in (20, 1000))
    assert few.low < few.value < few.high
    assert many.high - many.low < (few.high - few.low) / 4
    assert many.low < 10 < many.high


def test_ratios_are_taken_within_rounds() -> None:
    # The machine was three times as slow in the second half; the ratio must not notice.
    ours, peer = samples(*[10.0] * 10, *[30.0] * 10), samples(*[20.0] * 10, *[60.0] * 10)
    found = ratio(peer, ours)
    assert (found.low, found.value, found.high) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize(
    ("low", "median", "high", "at_least", "verdict"),
    [
        (4.9, 5.1, 5.3, True, "holds"),
        (4.7, 4.9, 5.1, True, "holds within the noise"),
        (4.5, 4.7, 4.9, True, "MISSED"),
        (4.7, 4.9, 5.1, False, "holds"),
        (4.9, 5.1, 5.3, False, "holds within the noise"),
        (5.1, 5.2, 5.3, False, "MISSED"),
    ],
)
def test_a_bound_is_missed_when_the_whole_interval_lies_beyond_it(
    low: float, median: float, high: float, at_least: bool, verdict: str
) -> None:
    found = Estimate(median, low, high)
    assert (judge("here", found, at_least=5.0) if at_least else judge("here", found, at_most=5.0)).verdict == verdict


def test_bounds_are_relative_to_the_best_mpi_of_each_size() -> None:
    kinds = {"ours": "ours", "gloo": "gloo", "slow": "mpi", "fast": "mpi"}
    block = {"ours": steady(100), "gloo": steady(450), "slow": steady(1000), "fast": steady(310)}
    gloo, mpi = verdicts(2, {4_000_000: block}, kinds, "ours")
    assert "as fast as gloo" in gloo.found and gloo.verdict == "MISSED"
    assert "as fast as fast" in mpi.found and mpi.verdict == "holds"


def test_two_lines_cross_where_they_meet() -> None:
    sizes = [2**power for power in range(10, 24, 2)]
    by_size = {size: {"few": steady(100 + size / 1000), "little": steady(200 + size / 4000)} for size in sizes}
    meet = 100 / (1 / 1000 - 1 / 4000)
    ((size, winner),) = crossings(by_size, "few", "little")
    assert winner == "little"
    assert math.isclose(size, meet, rel_tol=0.3)


def test_a_contender_that_is_always_better_has_no_crossing() -> None:
    by_size = {size: {"good": steady(size), "bad": steady(2 * size)} for size in (1024, 4096)}
    assert crossings(by_size, "good", "bad") == []


@pytest.mark.parametrize(
    ("text", "num_bytes", "shown"),
    [("4KB", 4000, "4 KB"), ("64kib", 65536, "64 KiB"), ("100 MB", 10**8, "100 MB"), ("12", 12, "12 B")],
)
def test_sizes(text: str, num_bytes: int, shown: str) -> None:
    assert parse_size(text) == num_bytes
    assert show_size(num_bytes) == shown


@pytest.mark.parametrize("text", ["", "4 KG", "-4KB", "6", "0", "1.5MB"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="received"):
        parse_size(text)


def test_columns_line_up() -> None:
    lines = str(Table(["a", "long"], [["name", "1"]])).splitlines()
    assert len({len(line) for line in lines}) == 1
