"""The sums of steps come in their order, some steps later, at times that the number of steps alone decides."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unisono.model.late_sums import GROUP, LateSums, Row
from unisono.model.tail import LATEST


def sums(step: int) -> list[float]:
    return [float(step), step / 3.0, -1.0]


def add(late: LateSums, vector: torch.Tensor, step: int, as_recorded: bool) -> list[Row]:
    """The sums of a step, kept by recorded work or not."""
    vector.copy_(torch.tensor(sums(step), dtype=torch.float64))
    if as_recorded:
        late.find_place()
        late.keep()
    return late.add(step, is_kept=as_recorded)


@pytest.mark.parametrize("recorded", ["none", "all", "some"])
@pytest.mark.parametrize("flushed", [set[int](), {3}, {0, 1, 2, 9}, {4, 5, 13}, set(range(40))])
def test_each_step_comes_once_in_order_and_in_time(recorded: str, flushed: set[int]) -> None:
    vector = torch.zeros(3, dtype=torch.float64)
    late, found, returned_at = LateSums(vector), list[Row](), dict[int, int]()
    for step in range(40):
        as_recorded = recorded == "all" or (recorded == "some" and step % 3 != 1)
        rows = add(late, vector, step, as_recorded)
        if step in flushed:
            rows = [*rows, *late.flush()]
        found += rows
        returned_at |= {row[0]: step for row in rows}
        assert step - min(set(range(step + 1)) - returned_at.keys(), default=step) < LATEST
    found += late.flush()
    assert [step for step, _ in found] == list(range(40))
    for step, row in found:
        assert row.tolist() == sums(step)
    assert late.flush() == []


def test_groups_travel_together() -> None:
    vector = torch.zeros(3, dtype=torch.float64)
    late = LateSums(vector)
    known = [[step for step, _ in add(late, vector, number, False)] for number in range(3 * GROUP)]
    filled = [[], list(range(GROUP)), list(range(GROUP, 2 * GROUP))]
    assert [found for found in known if found] == filled[1:]
    assert [number for number, found in enumerate(known) if found] == [2 * GROUP - 1, 3 * GROUP - 1]


def test_rows_are_copies() -> None:
    """Their memory is used again."""
    vector = torch.zeros(3, dtype=torch.float64)
    late, found = LateSums(vector), list[Row]()
    for step in range(5 * GROUP):
        found += add(late, vector, step, True)
    assert all(np.array_equal(row, sums(step)) for step, row in found)
