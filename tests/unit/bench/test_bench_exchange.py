"""The judgements and the page of the exchange benchmark."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.exchange import page_of, unevenness
from bench.ranks.serving import Ends, Serving
from tests.unit.bench.tables import rows_of, verdicts_of


def result(ours_us: float, peer_us: float, served: list[list[int]]) -> dict[str, Any]:
    def times(value: float) -> list[list[list[float]]]:
        return [[[0.0]] * 4, [[value + 0.1 * number] for number in range(4)]]

    versions = {name: {"torch": "2"} for name in ("unisono-shm", "torch gloo")}
    block = {
        "workers": 1,
        "bytes": 1_000_000,
        "versions": versions,
        "idle_share_of_a_core": dict.fromkeys(versions, 0.0),
        "stolen_cpu_s": 0.0,
        "failed": {},
        "times_us": {"unisono-shm": times(ours_us), "torch gloo": times(peer_us)},
    }
    effort = {"short_bytes": 4_200_000, "short_rounds": 4, "short_calls": 1, "long_rounds": 1, "long_calls": 1}
    return {
        "command": "python -m bench.exchange",
        "quick": False,
        "machine": {"cores": "2"},
        "sittings": [{"at": "now", "commit": "1", "load": "0.1"}],
        "settings": {"effort": effort},
        "ours": "unisono-shm",
        "peer": "torch gloo",
        "contenders": {name: {"kind": kind, "about": name} for name, kind in zip(versions, ("ours", "peer"), strict=True)},
        "absent": {},
        "not_measured": ("several machines",),
        "blocks": {"1 worker, 1 MB": block},
        "shares": {"workers": 2, "num_bytes": 1_000_000, "rounds": 3, "seconds": 1.0, "served": {"unisono-shm": served}},
    }


def test_bounds_hold_and_are_missed(tmp_path: Path) -> None:
    text = page_of(result(250.0, 1000.0, [[100, 110], [100, 100], [95, 100]])).publish("exchange", tmp_path)
    assert verdicts_of(text) == ["holds", "holds"]
    assert ["1 worker, 1 MB", "4.00 [4.00, 4.00] times as fast as torch gloo", "at least 3", "**holds**"] in rows_of(text)
    assert (tmp_path / "exchange.md").read_text().startswith("# How many round trips a second")
    text = page_of(result(500.0, 1000.0, [[100, 150], [100, 140], [150, 100]])).publish("exchange", tmp_path)
    assert verdicts_of(text) == ["MISSED", "MISSED"]


def test_rates_count_both_directions(tmp_path: Path) -> None:
    rows = {row[0]: row[1:] for row in rows_of(page_of(result(250.0, 1000.0, [[1, 1]])).publish("exchange", tmp_path))}
    assert rows["torch gloo"][:2] == ["1000", "2.00"]


def test_a_worker_that_was_never_served_is_seen() -> None:
    assert unevenness([[5, 0], [4, 2]]).tolist() == [5.0, 2.0]


class Loop(Ends):
    """A worker that is its own server, which answers wrongly if told."""

    def __init__(self, wrong: float) -> None:
        self._wrong = wrong

    def call(self, vector: torch.Tensor) -> torch.Tensor:
        return vector + self._wrong

    def receive(self) -> tuple[int, torch.Tensor]:
        raise NotImplementedError

    def answer(self, worker: int, centre: torch.Tensor) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


@pytest.mark.parametrize("wrong", [0.0, 1.0])
def test_wrong_server_weights_are_refused(wrong: float) -> None:
    rank = Serving(1, 2, lambda numel: (Loop(wrong), torch.empty(numel)))
    rank.prepare(4_000)
    with pytest.raises(ArithmeticError, match="not the sum") if wrong else nullcontext():
        rank.verify()
    assert len(rank.time(3)) == 1
