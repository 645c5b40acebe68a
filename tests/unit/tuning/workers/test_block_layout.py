"""Blocks of ranks: the layout of a talk, every rank used, and a clear word where that cannot be."""

from __future__ import annotations

import re

import pytest

from unisono.errors import UsageError
from unisono.tuning.workers.block_layout import layout_of


def test_thirteen_ranks_are_a_coordinator_and_two_blocks_of_six() -> None:
    found = layout_of(13, workers=3, parallel_folds=2)
    assert (found.num_blocks, found.block_size, found.first) == (2, 6, 1)
    assert [list(found.ranks_of(block)) for block in (0, 1)] == [[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]]
    assert "2 trials at a time on 6 ranks each (3 workers per model, 2 folds at a time); rank 0 only coordinates" in str(found)


@pytest.mark.parametrize(("num_ranks", "workers", "blocks"), [(1, 1, 1), (4, 1, 4), (4, 2, 2), (6, 6, 1)])
def test_without_a_rest_a_thread_coordinates(num_ranks: int, workers: int, blocks: int) -> None:
    found = layout_of(num_ranks, workers)
    assert found.num_blocks == blocks and found.first == 0
    assert sorted(rank for block in range(blocks) for rank in found.ranks_of(block)) == list(range(num_ranks))
    assert "rank 0 also coordinates" in str(found)


@pytest.mark.parametrize(
    ("numbers", "trials", "message"),
    [
        ((2, 3, 1), None, r"2 ranks are too few for one block of 3 .*; use -n 3, or fewer --workers"),
        (
            (15, 3, 2),
            None,
            r"of 15 ranks, 12 make blocks of 6, one coordinates, and 2 would .*; use -n 12, 13 or 18",
        ),
        ((8, 1, 1), 3, r"8 ranks make 8 blocks, but 3 trials can use only 3; use -n 3"),
        ((4, 0, 1), None, r"--workers must be at least 1; received 0"),
        ((0, 1, 1), None, r"-n must be at least 1; received 0"),
        ((-2, 1, 1), None, r"-n must be at least 1; received -2"),
        ((4, 1, 0), None, r"--parallel-folds must be at least 1; received 0"),
        ((13, 3, 1), 3, r"13 ranks make 4 blocks, but 3 trials can use only 3; use -n 9"),
        ((3, 2, 2), None, r"3 ranks are too few for one block of 4 \(2 workers times 2 folds at a time\); use -n 4"),
    ],
)
def test_ranks_that_would_do_nothing_are_refused(numbers: tuple[int, int, int], trials: int | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        layout_of(*numbers, num_trials=trials)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("folds", [1, 2, 5])
def test_every_rank_has_one_place_or_the_remedy_has(workers: int, folds: int) -> None:
    for num_ranks in range(1, 40):
        try:
            found = layout_of(num_ranks, workers, folds)
        except UsageError as error:
            remedies = [int(text) for text in re.findall(r"\d+", str(error).partition("use -n")[2])]
            assert remedies, "a refusal says what would do"
            for other in remedies:
                layout_of(other, workers, folds)
            continue
        blocks = [list(found.ranks_of(block)) for block in range(found.num_blocks)]
        assert [rank for block in blocks for rank in block] == list(range(found.first, num_ranks))
        assert {len(block) for block in blocks} == {workers * folds}


@pytest.mark.parametrize("num_trials", [1, 2, 5])
def test_as_many_blocks_as_trials_are_enough(num_trials: int) -> None:
    assert layout_of(num_trials * 3, 3, num_trials=num_trials).num_blocks == num_trials
    assert layout_of(num_trials * 3 + 1, 3, num_trials=num_trials).num_blocks == num_trials
    with pytest.raises(UsageError, match=f"use -n {num_trials * 3}, or more --workers"):
        layout_of(num_trials * 3 + 3, 3, num_trials=num_trials)


def test_one_rank_says_so_in_one_way() -> None:
    assert str(layout_of(2, 2)) == "2 ranks: 1 trial at a time on 2 ranks; rank 0 also coordinates"
    assert str(layout_of(3, 1)) == "3 ranks: 3 trials at a time on 1 rank each; rank 0 also coordinates"
