"""The judgement and the page of `bench.keras`, its data, and its count of copies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.contenders.keras import OURS, OURS_TWICE, PEER_TWICE, PLAIN, WAYS, missing
from bench.groups import RankSlot
from bench.keras import ASKED, block_key, page_of
from bench.ranks.keras_copies import Tally
from bench.rounds import Samples, rounded
from bench.training_cases import BACKENDS, KERAS_CASES, KERAS_CNN, write_data
from tests.unit.bench.tables import rows_of


def steady(value: float, num_ranks: int = 1) -> Samples:
    """One epoch in each of 30 rounds, 0.2 % of noise; ranks other than the first do not know the time."""
    first = [[value * (1 + 0.001 * (number % 3))] for number in range(30)]
    return Samples(np.asarray([first, *[[[0.0]] * 30] * (num_ranks - 1)]))


@pytest.mark.parametrize(("ours", "verdict"), [(900.0, "holds"), (1090.0, "holds"), (1120.0, "MISSED")])
def test_ten_percent_over_plain_keras(ours: float, verdict: str) -> None:
    kinds = {way.name: way.kind for way in WAYS}
    bound = ASKED.judge("mlp on jax", {OURS: steady(ours), PLAIN: steady(1000)}, kinds, OURS)
    assert (bound.where, bound.verdict, bound.asked) == ("mlp on jax", verdict, "at most 1.1")
    assert bound.found.endswith("times as long as keras fit")


def test_the_page(tmp_path: Path) -> None:
    samples = {OURS: steady(1000), PLAIN: steady(1000), OURS_TWICE: steady(500, 2), PEER_TWICE: steady(750, 2)}
    rows = rows_of(page_of(_result(samples)).publish("keras", tmp_path))
    assert rows == rows_of((tmp_path / "keras.md").read_text())
    assert any(row[0] == "mnist_cnn on tensorflow" and row[-1] == "**holds**" for row in rows)
    assert ["mnist_cnn on tensorflow", "1001", "500", "751", "2.00 [2.00, 2.00]", "1.50 [1.50, 1.50]"] in rows
    assert ["mnist_cnn on tensorflow", "5 (24000.0)", "0"] in rows


def test_what_did_not_run_leaves_gaps_and_is_named(tmp_path: Path) -> None:
    samples = {OURS: steady(1000), PLAIN: steady(1000), OURS_TWICE: steady(500, 2)}
    result = _result(samples, {PEER_TWICE: "no port"})
    assert "| - |" not in page_of(_result({OURS: steady(1), PLAIN: steady(1)})).publish("keras", tmp_path)
    assert [cell for row in rows_of(page_of(result).publish("keras", tmp_path)) for cell in row].count("-") == 2
    assert f"`{PEER_TWICE}` at `mnist_cnn on tensorflow`: no port" in (tmp_path / "keras.md").read_text()


def test_bounds_are_not_checked_in_a_quick_run(tmp_path: Path) -> None:
    result = {**_result({OURS: steady(1000), PLAIN: steady(1000)}), "quick": True}
    assert "holds" not in page_of(result).publish("keras", tmp_path)
    assert "Not a measurement" in (tmp_path / "keras.md").read_text()


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_ways_on_a_backend_have_the_same_surroundings(backend: str, tmp_path: Path) -> None:
    seen = []
    for way in WAYS:
        if backend in way.backends:
            launches = way.given(backend, KERAS_CNN.name, tmp_path / "data.npz").start(
                way.workers, RankSlot("here", way.name, tmp_path)
            )
            seen += [{name: value for name, value in one.environment.items() if name != "TF_CONFIG"} for one in launches]
    assert seen[0]["KERAS_BACKEND"] == backend
    assert all(one == seen[0] for one in seen)


def test_a_backend_that_is_not_installed_is_named_with_its_remedy() -> None:
    assert "no_such_backend is not installed; pip install 'unisono[no_such_backend]'" in missing("no_such_backend")


@pytest.mark.parametrize("name", list(KERAS_CASES))
def test_data_have_the_shape_and_ten_classes(name: str, tmp_path: Path) -> None:
    write_data(KERAS_CASES[name], tmp_path / "data.npz")
    with np.load(tmp_path / "data.npz") as data:
        inputs, targets = data["inputs"], data["targets"]
    assert inputs.shape == (KERAS_CASES[name].num_samples, *KERAS_CASES[name].shape) and inputs.dtype == np.float32
    assert set(targets.tolist()) == set(range(10))


def test_only_copies_during_a_step_count() -> None:
    tally = Tally()
    tally.add("stored", 16)
    with tally.inside():
        tally.add("stored", 16)
        tally.add("stored", 0)
    tally.num_steps = 2
    assert tally.per_step()["stored"] == {"num": 0.5, "bytes": 8.0}
    assert tally.per_step()["packed"] == {"num": 0.0, "bytes": 0.0}


def _result(samples: Mapping[str, Samples], failed: Mapping[str, str] | None = None) -> dict[str, Any]:
    block = {
        "case": KERAS_CNN.name,
        "backend": "tensorflow",
        "versions": {name: {"keras": "3"} for name in samples},
        "idle_share_of_a_core": dict.fromkeys(samples, 0.0),
        "stolen_cpu_s": 0.0,
        "failed": dict(failed or {}),
        "after": {name: {"loss": 0.01, "cores": 1.0} for name in samples},
        "copies": {"packed": {"num": 5.0, "bytes": 24e6}, "stored": {"num": 0.0, "bytes": 0.0}},
        "times_us": rounded(samples),
    }
    return {
        "command": "python -m bench.keras",
        "quick": False,
        "machine": {"CPU": "some"},
        "sittings": [{"at": "now", "commit": "none", "load": "0.01"}],
        "took": "1 min",
        "settings": {
            "effort": {KERAS_CNN.name: {"rounds": 30, "epochs": 1, "warm_up": 2}},
            "cases": {KERAS_CNN.name: {"about": "a model", "global_batch": 64, "steps": 4, "optimizer": "Adam"}},
        },
        "contenders": {way.name: {"kind": way.kind, "about": way.about, "workers": way.workers} for way in WAYS},
        "absent": {},
        "not_measured": ["much"],
        "blocks": {block_key(KERAS_CNN, "tensorflow"): block},
    }
