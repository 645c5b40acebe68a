"""The arithmetic and the page of `bench.checkpoint`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.checkpoint import SaveCosts, file_system, page_of, save_costs, verdict
from bench.contenders.saving import BY_HAND, OURS, WAYS
from bench.saving_case import NUM_PARAMETERS, STATE_BYTES
from tests.unit.bench.tables import rows_of

QUIET = 4
STEP, SAVE = 20_000.0, 60_000.0
"""Microseconds of a usual step, and of one with a save in it."""


def turn(during: list[float], save: float = SAVE, after: int = 5) -> list[float]:
    """A slow first step, quiet ones, the save, steps during the write, quiet ones."""
    return [3 * STEP, *[STEP] * (QUIET - 1), save, *during, *[STEP] * after]


def saves(*background: float) -> dict[str, list[float]]:
    """Saves that went on for so long after the training had waited for 40 ms; without any, the training waited for all."""
    return {"whole_us": [40_000 + one for one in background], "own_us": [40_000.0 for _ in background]}


def test_the_step_with_the_save_is_blocked_by_what_it_takes_longer() -> None:
    costs = save_costs([turn([])], saves(), QUIET)
    assert (costs.step[0], costs.blocked[0], costs.slower[0], costs.both[0]) == pytest.approx((20.0, 40.0, 0.0, 40.0))
    assert costs.whole[0] == pytest.approx(40.0)


def test_steps_that_begin_before_the_write_is_done_are_not_quiet() -> None:
    during = [STEP + 5_000, STEP + 2_000]
    until_in_the_second = during[0] + 1_000
    costs = save_costs([turn(during)], saves(until_in_the_second), QUIET)
    assert costs.step[0] == pytest.approx(20.0)
    assert costs.slower[0] == pytest.approx(7.0)
    assert costs.both[0] == pytest.approx(47.0)
    assert costs.whole[0] == pytest.approx(66.0)
    assert costs.num_cut == 0
    assert save_costs([turn(during)], saves(1_000), QUIET).slower[0] == pytest.approx(5.0)


def test_a_write_that_outlives_its_turn_is_counted() -> None:
    times = turn([STEP + 1_000] * 5, after=0)
    assert save_costs([times], saves(5 * (STEP + 1_000) + 1), QUIET).num_cut == 1
    assert save_costs([times], saves(5 * (STEP + 1_000)), QUIET).num_cut == 0


@pytest.mark.parametrize(("blocked", "judgement"), [(30.0, "holds"), (60.0, "MISSED")])
def test_fifty_milliseconds(blocked: float, judgement: str) -> None:
    rows = np.full(10, blocked)
    first_is_slow = np.where(np.arange(10) == 0, 200.0, rows)
    found = verdict("2 threads", SaveCosts(rows, first_is_slow, 0 * rows, rows, 0), STATE_BYTES)
    assert (found.verdict, found.asked) == (judgement, "at most 50")
    assert found.found.startswith(f"{blocked:.2f} [{blocked:.2f}, {blocked:.2f}] ms")
    assert "the longest of 10: 200 ms" in found.note
    assert f"{blocked / 300:.2f} % of the time" in found.note


def test_the_state_is_what_the_issue_is_about() -> None:
    assert 0.95e8 < STATE_BYTES < 1.05e8
    assert STATE_BYTES == 12 * NUM_PARAMETERS


def test_the_page(tmp_path: Path) -> None:
    text = page_of(_result()).publish("checkpoint", tmp_path)
    page = (tmp_path / "checkpoint.md").read_text()
    rows = {row[0]: row[1:] for row in rows_of(page)}
    assert rows["2 threads"][-1] == "**holds**" and rows_of(text) == rows_of(page)
    assert rows["unisono"] == ["20.0", "40 [40, 40]", "40", "40", "5 [5, 5]", "45 [45, 45]", "41 [41, 41]", "yes"]
    assert rows["torch.save"] == ["20.0", "180 [180, 180]", "180", "180", "-", "180 [180, 180]", "180 [180, 180]", "no"]
    assert "one of Unisono takes 1.00 times (2 threads) as long as in the loop by hand" in page


def test_bounds_are_not_checked_in_a_quick_run(tmp_path: Path) -> None:
    assert "holds" not in page_of({**_result(), "quick": True}).publish("checkpoint", tmp_path)
    assert "Not a measurement" in (tmp_path / "checkpoint.md").read_text()


def test_a_path_has_a_file_system(tmp_path: Path) -> None:
    assert file_system(tmp_path)


def _result() -> dict[str, Any]:
    ours = {"times_us": [[turn([STEP + 5_000])] * 3], "saves": saves(1_000, 1_000, 1_000)}
    by_hand = {"times_us": [[turn([], save=200_000)] * 3], "saves": saves()}
    found: Mapping[str, Mapping[str, Any]] = {OURS: ours, "torch.save": by_hand}
    block = {
        "threads": 2,
        "versions": {name: {"torch": "1"} for name in found},
        "idle_share_of_a_core": dict.fromkeys(found, 0.0),
        "stolen_cpu_s": 0.0,
        "failed": {},
        "saves": {name: {**one["saves"], "bytes": 1} for name, one in found.items()},
        "times_us": {name: one["times_us"] for name, one in found.items()},
    }
    return {
        "command": "python -m bench.checkpoint",
        "quick": False,
        "machine": {"CPU": "some"},
        "sittings": [{"at": "now", "commit": "none", "load": "0.01"}],
        "took": "1 min",
        "settings": {"about": "a model", "state_bytes": STATE_BYTES, "rounds": 3, "quiet": QUIET, "period": 11, "threads": [2]},
        "ours": OURS,
        "by_hand": BY_HAND,
        "contenders": {way.name: {"kind": way.kind, "about": way.about, "synced": way.synced} for way in WAYS if way.name in found},
        "absent": {},
        "file_system": "ext4",
        "not_measured": ["much"],
        "blocks": {"2 threads": block},
    }
