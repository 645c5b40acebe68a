"""The arithmetic, the page and the turns of `bench.train`."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench.bounds import Bound
from bench.contenders.training import BY_HAND, OURS, WAYS, of_checkout
from bench.groups import RankSlot
from bench.ranks.learning import Batches, Turns, make_model
from bench.rounds import Samples, difference, rounded
from bench.train import BOUNDS, page_of
from bench.training_cases import CASES, DIGITS, write_data
from tests.unit.bench.tables import rows_of, verdicts_of

KINDS = {way.name: way.kind for way in WAYS}


def steady(value: float, num_rounds: int = 30) -> Samples:
    """One rank, one epoch in each round, 0.2 % of noise."""
    return Samples(np.asarray([[[value * (1 + 0.001 * (number % 3))] for number in range(num_rounds)]]))


def verdicts(key: str, samples: Mapping[str, Samples]) -> list[Bound]:
    return [asked.judge(key, samples, KINDS, OURS) for asked in BOUNDS[key]]


@pytest.mark.parametrize(("ours", "verdict"), [(1020.0, "holds"), (1040.0, "MISSED")])
def test_three_percent_over_the_loop_by_hand(ours: float, verdict: str) -> None:
    (bound,) = verdicts("mnist_cnn, 1 worker", {OURS: steady(ours), BY_HAND: steady(1000)})
    assert (bound.verdict, bound.asked) == (verdict, "at most 1.03")
    assert bound.found.endswith("times as long as by hand")


@pytest.mark.parametrize(("ours", "verdict"), [(390.0, "holds"), (410.0, "MISSED")])
def test_a_hundred_microseconds_over_the_loop_by_hand(ours: float, verdict: str) -> None:
    (bound,) = verdicts("digits, 1 worker", {OURS: steady(ours), BY_HAND: steady(300)})
    assert (bound.verdict, bound.asked) == (verdict, "at most 100")
    assert bound.found.endswith("us more than by hand")


def test_the_faster_of_two_ddps_counts_and_lightning_has_a_bound_of_its_own() -> None:
    samples = {OURS: steady(500), "ddp": steady(1100), "ddp, bound": steady(900), "lightning": steady(2000)}
    ddp, lightning = verdicts("digits, 2 workers", samples)
    assert "as fast as ddp, bound" in ddp.found and ddp.verdict == "MISSED"
    assert "as fast as lightning" in lightning.found and lightning.verdict == "holds"


def test_a_bound_without_its_contender_is_not_checked() -> None:
    assert [bound.verdict for bound in verdicts("digits, 2 workers", {OURS: steady(1)})] == ["not judged"] * 2


def test_every_bound_is_about_a_case_and_a_contender_that_there_is() -> None:
    for key, all_asked in BOUNDS.items():
        name, workers = key.split(", ")
        assert name in CASES
        for asked in all_asked:
            assert any(way.kind == asked.kind and int(workers[0]) in way.workers for way in WAYS)


def test_the_ranks_of_another_checkout_run_its_own_code(tmp_path: Path) -> None:
    program = tmp_path / "bench" / "ranks" / "train_unisono.py"
    for file, text in {
        program: "import sys, unisono; print(unisono.HERE, *sys.argv[1:])",
        tmp_path / "src/unisono/__init__.py": "HERE = 'other'",
    }.items():
        file.parent.mkdir(parents=True)
        file.write_text(text)
    (launch,) = of_checkout(tmp_path).start("digits", Path("data.npz"), 1, RankSlot("socket", "group", Path("folder")))
    done = subprocess.run(launch.command, env={**os.environ, **launch.environment}, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["other", "socket", "group", "digits", "data.npz", "folder"], done.stderr


def test_differences_are_taken_within_rounds() -> None:
    drift = np.linspace(100.0, 900.0, 40)[None, :, None]
    found = difference(Samples(drift + 50), Samples(drift))
    assert (found.low, found.value, found.high) == pytest.approx((50.0, 50.0, 50.0))


def test_the_page(tmp_path: Path) -> None:
    result = _result({OURS: steady(310), "unisono A/A": steady(311), BY_HAND: steady(300), "lightning": steady(900)})
    text = page_of(result).publish("train", tmp_path)
    page = (tmp_path / "train.md").read_text()
    assert rows_of(text) == rows_of(page) and verdicts_of(page) == ["holds"]
    assert ["lightning", "901", "3.00 [3.00, 3.00]", "601 [600, 601]", "0.010"] in rows_of(page)


def test_bounds_are_not_checked_in_a_quick_run(tmp_path: Path) -> None:
    result = {**_result({OURS: steady(310), BY_HAND: steady(300)}), "quick": True}
    assert "holds" not in page_of(result).publish("train", tmp_path)
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


def test_an_error_of_the_training_reaches_the_caller() -> None:
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
