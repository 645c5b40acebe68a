"""The judgements and the page of the Horovod benchmark, and what its ranks hold."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.contenders import horovod_itself
from bench.contenders.contender import Unavailable
from bench.contenders.horovod import NUM_TENSORS
from bench.horovod import BOUNDS, EFFORT, NOT_MEASURED, PARTS, ROUNDS, page_of
from bench.ranks.many_tensors import cut
from bench.ranks.reducing import Reducing
from tests.unit.bench.tables import rows_of, verdicts_of


def result(ours_us: float, ddp_us: float, gloo_us: float, quick: bool = False) -> dict[str, Any]:
    def block(**medians: float) -> dict[str, Any]:
        names = list(medians)
        return {
            "versions": {name: {"torch": "2"} for name in names},
            "idle_share_of_a_core": dict.fromkeys(names, 0.0),
            "stolen_cpu_s": 0.0,
            "failed": {},
            "times_us": {name: [[[value + 0.01 * number] for number in range(5)]] * 2 for name, value in medians.items()},
        }

    kinds = {"training": {"ours": "ours", "ddp": "ddp", "slow": "ddp"}, "tensors": {"ours": "ours", "gloo": "gloo"}}
    return {
        "command": "python -m bench.horovod",
        "quick": quick,
        "machine": {"cores": "2"},
        "sittings": [{"at": "now", "commit": "1", "load": "0.1"}],
        "settings": {
            "training": {"rounds": 5, "epochs": 1, "warm_up": 1},
            "case": {"name": "cnn", "about": "small", "global_batch": 8, "optimizer": "SGD", "steps": 4},
            "tensors": {"rounds": 5, "calls": 1, "number": 200, "bytes": 4000},
        },
        "ours": "ours",
        "contenders": {
            part: {name: {"kind": kind, "about": name} for name, kind in all_of.items()} for part, all_of in kinds.items()
        },
        "absent": {"horovod": "no compiler"},
        "not_measured": NOT_MEASURED,
        "blocks": {
            "tensors": block(ours=ours_us, gloo=gloo_us),
            "training": block(ours=ours_us, ddp=ddp_us, slow=10 * ddp_us),
        },
    }


def test_bounds_hold_and_are_missed(tmp_path: Path) -> None:
    rows = rows_of(page_of(result(100.0, 110.0, 600.0)).publish("horovod", tmp_path))
    assert ["training", "1.10 [1.10, 1.10] times as fast as ddp", "at least 1", "**holds**"] in rows
    assert ["tensors", "6.00 [6.00, 6.00] times as fast as gloo", "at least 5", "**holds**"] in rows
    assert "`horovod`: no compiler" in (tmp_path / "horovod.md").read_text()
    assert verdicts_of(page_of(result(100.0, 90.0, 400.0)).publish("horovod", tmp_path)) == ["MISSED", "MISSED"]


def test_a_quick_run_judges_nothing(tmp_path: Path) -> None:
    text = page_of(result(100.0, 90.0, 400.0, quick=True)).publish("horovod", tmp_path)
    assert "MISSED" not in text
    assert "Not a measurement" in (tmp_path / "horovod.md").read_text()


def test_enough_pairs_and_a_row_of_noise() -> None:
    assert min(ROUNDS, EFFORT.rounds) >= 60
    for contenders in PARTS.values():
        assert [one.kind for one in contenders].count("noise") == 1
    assert set(BOUNDS) < set(PARTS)


def test_tensors_share_one_memory_and_wrong_sums_are_refused() -> None:
    tensors, array = cut(4 * NUM_TENSORS, NUM_TENSORS)
    assert [tensor.numel() for tensor in tensors] == [4] * NUM_TENSORS
    tensors[1].fill_(7.0)
    assert np.all(array[4:8] == 7.0)

    def double(held: list[Any]) -> None:
        for tensor in held[:-1]:  # the last one is forgotten
            tensor.mul_(2).add_(1)

    reducing = Reducing(0, 2, lambda numel: cut(numel, NUM_TENSORS), double)
    reducing.prepare(16 * NUM_TENSORS)
    with pytest.raises(ArithmeticError, match="rank 0: 4 of 800 sums are wrong"):
        reducing.verify()


def test_what_cannot_be_built_says_the_first_error_and_takes_no_part() -> None:
    says = "print('compiling'); print('a.h:1: error: needs C++20'); print('make: *** [all] Error 2'); raise SystemExit(1)"
    with pytest.raises(Unavailable, match=r"cannot build horovod==0\.28\.1: a\.h:1: error: needs C\+\+20"):
        horovod_itself._run([sys.executable, "-c", says], 60.0, "build")
