"""The arithmetic, the page and the turns of `bench.train`."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench.contenders.training import BY_HAND, OURS, WAYS
from bench.ranks.learning import Batches, Turns, make_model
from bench.rounds import Samples, rounded
from bench.train_page import publish
from bench.training_bounds import BOUNDS, difference, verdicts
from bench.training_cases import CASES, DIGITS, write_data

KINDS = {way.name: way.kind for way in WAYS}


def steady(value: float, num_rounds: int = 30) -> Samples:
    """One rank, one epoch in each round, 0.2 % of noise."""
    return Samples(np.asarray([[[value * (1 + 0.001 * (number % 3))] for number in range(num_rounds)]]))


@pytest.mark.parametrize(("ours", "verdict"), [(1020.0, "holds"), (1040.0, "MISSED")])
def test_three_percent_over_the_loop_by_hand(ours: float, verdict: str) -> None:
    ((text, found),) = verdicts("mnist_cnn", 1, {OURS: steady(ours), BY_HAND: steady(1000)}, KINDS, OURS)
    assert found == verdict
    assert "times as long as by hand, at most 1.03 asked" in text


@pytest.mark.parametrize(("ours", "verdict"), [(390.0, "holds"), (410.0, "MISSED")])
def test_a_hundred_microseconds_over_the_loop_by_hand(ours: float, verdict: str) -> None:
    ((text, found),) = verdicts("digits", 1, {OURS: steady(ours), BY_HAND: steady(300)}, KINDS, OURS)
    assert found == verdict
    assert "us a step more than by hand, at most 100 asked" in text


def test_the_faster_of_two_ddps_counts_and_lightning_has_a_bound_of_its_own() -> None:
    samples = {OURS: steady(500), "ddp": steady(1100), "ddp, bound": steady(900), "lightning": steady(2000)}
    ddp, lightning = verdicts("digits", 2, samples, KINDS, OURS)
    assert "as fast as ddp, bound" in ddp[0] and ddp[1] == "MISSED"
    assert "as fast as lightning" in lightning[0] and lightning[1] == "holds"


def test_a_bound_without_its_contender_is_not_judged() -> None:
    assert [verdict for _, verdict in verdicts("digits", 2, {OURS: steady(1)}, KINDS, OURS)] == ["not judged"] * 2


def test_every_bound_is_about_a_case_and_a_contender_that_there_is() -> None:
    for bound in BOUNDS:
        assert bound.case in CASES
        assert any(way.kind == bound.kind and bound.workers in way.workers for way in WAYS)


def test_differences_are_taken_within_rounds() -> None:
    drift = np.linspace(100.0, 900.0, 40)[None, :, None]
    found = difference(Samples(drift + 50), Samples(drift))
    assert (found.low, found.median, found.high) == pytest.approx((50.0, 50.0, 50.0))


def test_page_and_raw_data_say_the_same(tmp_path: Path) -> None:
    result = _result({OURS: steady(310), "unisono A/A": steady(311), BY_HAND: steady(300), "lightning": steady(900)})
    text = publish(result, tmp_path)
    page = (tmp_path / "train.md").read_text()
    assert "**holds**: digits, 1 worker" in text and "**holds**: digits, 1 worker" in page
    row = next(line for line in page.splitlines() if line.startswith("| lightning"))
    assert [cell.strip() for cell in row.split("|")[1:-1]] == ["lightning", "901", "3.00 [3.00, 3.00]", "601 [600, 601]", "0.010"]
    assert publish(json.loads((tmp_path / "train.json").read_text()), tmp_path) == text


def test_a_quick_run_is_not_judged(tmp_path: Path) -> None:
    result = {**_result({OURS: steady(310), BY_HAND: steady(300)}), "quick": True}
    assert "holds" not in publish(result, tmp_path)
    assert "Not a measurement" in (tmp_path / "train.md").read_text()


def test_turns_give_as_many_epochs_as_asked_and_end_the_training() -> None:
    turns, seen = Turns(), list[list[float]]()

    def ask() -> None:
        seen.append(turns.take(3))
        seen.append(turns.take(1))
        turns.end()

    def train() -> None:
        while True:
            turns.epoch_done()

    asking = threading.Thread(target=ask)
    asking.start()
    turns.run(train)
    asking.join(10)
    assert [len(times) for times in seen] == [3, 1]
    assert all(0 <= seconds < 10 for times in seen for seconds in times)


def test_an_error_of_the_training_reaches_the_one_who_asks() -> None:
    turns, seen = Turns(), list[str]()

    def ask() -> None:
        with pytest.raises(ArithmeticError, match="no number") as error:
            turns.take(1)
        seen.append(str(error.value))

    def train() -> None:
        raise ArithmeticError("no number")

    asking = threading.Thread(target=ask)
    asking.start()
    turns.run(train)
    asking.join(10)
    assert seen == ["no number"]


def test_workers_share_every_batch_and_an_epoch_has_every_sample_once() -> None:
    inputs = torch.arange(24.0)[:, None]
    targets = torch.arange(24)

    def epoch(rank: int, size: int) -> list[torch.Tensor]:
        batches = Batches(inputs, targets, 8, rank, size, torch.Generator().manual_seed(1))
        return [labels for _, labels in batches]

    whole, parts = epoch(0, 1), list(zip(epoch(0, 2), epoch(1, 2), strict=True))
    assert sorted(torch.cat(whole).tolist()) == list(range(24))
    for batch, (first, second) in zip(whole, parts, strict=True):
        assert torch.equal(torch.cat([first, second]), batch)


@pytest.mark.parametrize("name", list(CASES))
def test_data_and_model_of_a_case_fit(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    write_data(case, tmp_path / "data.npz")
    with np.load(tmp_path / "data.npz") as data:
        inputs, targets = torch.from_numpy(data["inputs"]), torch.from_numpy(data["targets"])
    assert len(inputs) == len(targets) == case.num_samples
    assert make_model(case)(inputs[:2]).shape == (2, 10)
    assert set(targets.tolist()) == set(range(10))
    assert inputs.dtype == torch.float32 and targets.dtype == torch.int64


def _result(samples: Mapping[str, Samples]) -> dict[str, Any]:
    block = {
        "case": DIGITS.name,
        "workers": 1,
        "versions": {name: {"torch": "1"} for name in samples},
        "idle_share_of_a_core": dict.fromkeys(samples, 0.0),
        "stolen_cpu_s": 0.0,
        "failed": {},
        "loss_after": dict.fromkeys(samples, 0.01),
        "times_us": rounded(samples),
    }
    return {
        "command": "python -m bench.train",
        "quick": False,
        "machine": {"CPU": "some"},
        "sittings": [{"at": "now", "commit": "none", "load": "0.01"}],
        "took": "1 min",
        "settings": {
            "effort": {DIGITS.name: {"rounds": 30, "epochs": 1, "warm_up": 2}},
            "cases": {DIGITS.name: {"about": "a model", "global_batch": 64, "steps": 20, "optimizer": "SGD"}},
        },
        "ours": OURS,
        "by_hand": BY_HAND,
        "contenders": {way.name: {"kind": way.kind, "about": way.about} for way in WAYS if way.name in samples},
        "absent": {},
        "not_measured": ["much"],
        "blocks": {"digits, 1 worker": block},
    }
