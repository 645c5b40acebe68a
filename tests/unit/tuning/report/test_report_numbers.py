"""What a report counts: the time and cost of attempts, the importance of settings, and the components of variance."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from unisono.files.journal import Record
from unisono.tuning.report.findings import Setting
from unisono.tuning.report.gantt import duration, gantt
from unisono.tuning.report.importance import explained_share, importances, ranks
from unisono.tuning.report.spending import DUPLICATE, LOST, Block, blocks_of, spans_of, stretches_of, wall_s
from unisono.tuning.report.variance import cells_of, components
from unisono.tuning.study.study import (
    COMPLETE,
    FAILED,
    GIVEN_BACK,
    PRUNED,
    RUNNING,
    Study,
    Trial,
    begin_record,
    end_record,
    give_back_record,
    proposal_record,
)

SETTINGS = (
    Setting("lr", None, 1e-4, 1.0, True),
    Setting("optimizer", ("sgd", "adam")),
    Setting("optimizer.momentum", None, 0.0, 0.99),
    Setting("model.width", None, 16, 256, True),
)


def folded(*records: Mapping[str, Any], writer: str = "a") -> Study:
    study = Study()
    for number, record in enumerate(records):
        study.apply(Record(writer, number, record))
    return study


# ---- time and cost -------------------------------------------------------------------------------------------------------


def test_attempts_cost_the_workers_of_their_blocks() -> None:
    study = folded(
        {"event": "job", "job": "a", "num_blocks": 3, "block_size": 4, "at_s": 90.0},
        {"event": "left", "job": "a", "at_s": 190.0},
        *(
            begin_record(0, 0, "a/0", 100.0),
            give_back_record(0, 0, "gone", 110.0),
            begin_record(0, 1, "b/0", 120.0),
            end_record(0, 1, COMPLETE, [1.0], 50.0),
        ),
        *(begin_record(1, 0, "a/1", 100.0), end_record(1, 0, PRUNED, [1.0], 20.0), begin_record(2, 0, "a/1", 150.0)),
        *(begin_record(3, 0, "b/0", 200.0), give_back_record(3, 0, "clocks differ", 150.0), end_record(4, 0, FAILED, [], 7.0)),
        writer="b",
    )
    spans = spans_of(study, {"workers": 2}, 1000.0)
    assert [(span.trial, span.attempt, span.end, span.took_s, span.block_size) for span in spans] == [
        (0, 0, GIVEN_BACK, 10.0, 4),
        (0, 1, COMPLETE, 50.0, 2),
        (1, 0, PRUNED, 20.0, 4),
        (2, 0, LOST, 40.0, 4),  # until its job left
        (3, 0, GIVEN_BACK, 0.0, 2),
        (4, 0, FAILED, 7.0, 2),  # the record of its beginning is lost
    ]
    assert sum(span.worker_s for span in spans) == 40 + 100 + 80 + 160 + 0 + 14
    blocks = {block.block_id: block for block in blocks_of(study, spans)}
    assert list(blocks) == ["a/0", "a/1", "a/2", "b/0"]
    assert {block_id: round(block.busy_share, 3) for block_id, block in blocks.items()} == {
        "a/0": 0.1,
        "a/1": 0.6,
        "a/2": 0.0,
        "b/0": 0.625,
    }
    assert wall_s(list(blocks.values())) == (110.0, 110.0)


def alive(job: str, at_s: float) -> dict[str, Any]:
    return {"event": "alive", "job": job, "at_s": at_s, "machine": "m"}


def test_an_attempt_of_a_job_that_was_killed_costs_what_is_known_of_it() -> None:
    hour = 3600.0
    signs = [{"event": "job", "job": "dead", "at_s": 90.0, "num_blocks": 2, "block_size": 1}]
    signs += [alive("dead", at_s) for at_s in (115.0, 130.0, 100.0)] + [alive("lives", 2 * hour - 20)]
    study = folded(
        *(*signs, begin_record(0, 0, "dead/0", 101.0), begin_record(1, 0, "dead/1", 102.0)),
        *(begin_record(0, 1, "lives/0", 125.0), end_record(0, 1, COMPLETE, [1.0], 9.0), begin_record(2, 0, "lives/0", hour)),
        *(begin_record(3, 0, "mute/0", 500.0), begin_record(4, 0, "late/0", 600.0), begin_record(4, 1, "lives/1", 550.0)),
    )
    spans = spans_of(study, {}, 2 * hour)
    assert [(span.trial, span.attempt, span.end, span.took_s) for span in spans] == [
        (0, 0, LOST, 24.0),  # until it was begun again
        (0, 1, COMPLETE, 9.0),
        (1, 0, LOST, 28.0),  # until the last sign of life of its job
        (2, 0, RUNNING, hour),
        (3, 0, LOST, 0.0),
        (4, 0, LOST, 0.0),  # clocks differ
        (4, 1, RUNNING, 2 * hour - 550.0),
    ]
    ends = {block.block_id: block.ended_s for block in blocks_of(study, spans)}
    assert ends["dead/0"] == ends["dead/1"] == 130.0 and ends["lives/0"] == 2 * hour


def test_a_trial_done_twice_is_counted_apart() -> None:
    study = folded(
        *(begin_record(0, 0, "a/0", 0.0), give_back_record(0, 0, "silent", 10.0), begin_record(0, 1, "a/1", 10.0)),
        *(end_record(0, 1, COMPLETE, [1.0], 5.0), end_record(0, 0, COMPLETE, [2.0], 30.0)),
    )
    assert [(span.end, span.took_s) for span in spans_of(study, {}, 99.0)] == [(COMPLETE, 30.0), (DUPLICATE, 5.0)]


def test_time_without_any_job_is_cut_out() -> None:
    blocks = [Block(f"{job}/0", begin, begin + 100.0, ()) for job, begin in (("a", 0.0), ("b", 101.0), ("c", 90_000.0))]
    assert stretches_of(blocks) == [(0.0, 100.0), (101.0, 201.0), (90_000.0, 90_100.0)]
    picture = gantt(blocks)
    assert picture.count('class="cut"') == 1 and "no job was running for 1 d" in picture
    many = gantt([Block(f"{job}/0", job * 1e5, job * 1e5 + 60, ()) for job in range(100)])
    assert all(float(place) >= 0 for place in re.findall(r' (?:x|width)="([-\d.]+)"', many))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (1.24, "1.2 s"), (9.97, "10 s"), (59.7, "60 s"), (200, "3 min 20 s"), (7500, "2 h 05 min"), (273_600, "3 d 4 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# ---- importance and variance ---------------------------------------------------------------------------------------------


def trials_of(values: Sequence[Mapping[str, Any]], results: Sequence[float]) -> Study:
    pairs = enumerate(zip(values, results, strict=True))
    return folded(
        *(
            one
            for n, (value, result) in pairs
            for one in (proposal_record(n, value), end_record(n, 0, COMPLETE, [float(result)], 1.0))
        )
    )


def test_importance_is_that_of_the_setting_that_drives() -> None:
    draw = np.random.default_rng(5)
    values = [
        {"lr": 10 ** draw.uniform(-4, 0), "model.width": int(draw.integers(16, 256)), "optimizer": draw.choice(["sgd", "adam"])}
        for _ in range(60)
    ]
    study = trials_of(values, [-((math.log10(value["lr"]) + 2) ** 2) for value in values])
    shares = importances(list(study.trials.values()), SETTINGS)
    assert shares["lr"] is not None and shares["lr"] > 0.85
    assert all(shares[name] is not None and shares[name] < 0.15 for name in ("model.width", "optimizer"))  # type: ignore[operator]
    assert shares["optimizer.momentum"] is None


@pytest.mark.parametrize("is_choice", [False, True])
def test_noise_has_no_importance(is_choice: bool) -> None:
    draw = np.random.default_rng(1)
    given = [draw.integers(0, 4, 24).tolist() if is_choice else draw.random(24).tolist() for _ in range(200)]
    shares = [explained_share(one, draw.random(24).tolist(), is_choice) for one in given]
    assert np.mean(shares) < 0.05 and np.quantile(shares, 0.9) < 0.2


def test_importance_of_what_drives_alone_and_of_one_of_two() -> None:
    draw = np.random.default_rng(2)
    first, second = draw.random(200), draw.random(200)
    assert explained_share(first.tolist(), np.exp(9 * first).tolist(), False) > 0.99
    assert 0.4 < explained_share(first.tolist(), (first + second).tolist(), False) < 0.6
    names = ["a" if one < 0.3 else "b" if one < 0.6 else None for one in first]
    assert explained_share(names, [{"a": 1.0, "b": 5.0, None: 2.0}[name] for name in names], True) > 0.99


def test_importance_where_there_is_nothing_to_explain() -> None:
    assert explained_share([1.0, 2.0, 3.0], [5.0, 5.0, 5.0], False) == 0.0
    assert explained_share([1.0, 1.0, 1.0], [1.0, 2.0, 3.0], False) == 0.0
    assert 0.0 <= explained_share(list("abcdefgh"), [1.0, 5.0, 2.0, 8.0, 1.0, 3.0, 4.0, 0.0], True) < 1e-9
    assert ranks([3.0, 1.0, 3.0, 2.0]).tolist() == [2.5, 0.0, 2.5, 1.0]


@pytest.mark.parametrize("seed", range(3))
def test_components_of_variance_are_recovered(seed: int) -> None:
    draw = np.random.default_rng(seed)
    wanted = {"trials": 4.0, "folds": 1.0, "trials_on_folds": 0.25, "starts": 0.09}
    a, b, r = 400, 300, 3
    cells = (
        7
        + draw.normal(0, 2.0, (a, 1, 1))
        + draw.normal(0, 1.0, (1, b, 1))
        + draw.normal(0, 0.5, (a, b, 1))
        + draw.normal(0, 0.3, (a, b, r))
    )
    found = components(cells)
    for name, variance in wanted.items():
        assert getattr(found, name) == pytest.approx(variance, rel=0.3), name
    assert found.error_of_mean == pytest.approx(math.sqrt(0.25 / b + 0.09 / (b * r)), rel=0.1)
    single = components(cells[:, :, :1])
    assert single.starts is None and single.trials_on_folds == pytest.approx(0.34, rel=0.1)
    whole = components(cells[:, :1, :])
    assert whole.folds is None and whole.starts == pytest.approx(0.09, rel=0.2) and whole.trials == pytest.approx(4.25, rel=0.3)


def test_components_of_a_table_that_one_can_count() -> None:
    found = components(np.array([[[1.0, 3.0], [1.0, 3.0]], [[5.0, 7.0], [5.0, 7.0]]]))
    assert (found.trials, found.folds, found.trials_on_folds, found.starts) == (8.0, 0.0, 0.0, 2.0)


def test_cells_are_of_the_trials_with_the_same_trainings() -> None:
    def trial(number: int, grid: Sequence[tuple[int, int]]) -> Trial:
        parts = [{"fold": fold, "repeat": repeat, "values": [number + fold / 10 + repeat / 100]} for fold, repeat in grid]
        return folded(end_record(number, 0, COMPLETE, [1.0], 1.0, details={"parts": parts})).trials[number]

    whole = [(fold, repeat) for repeat in range(2) for fold in range(3)]
    cells = cells_of([trial(1, whole), trial(2, whole[:4]), trial(3, whole), trial(4, [(0, 0)])])
    assert cells is not None and cells.shape == (2, 3, 2) and cells[1, 2, 1] == pytest.approx(3.21)
    assert cells_of([trial(1, whole)]) is None and cells_of([]) is None
    assert cells_of([trial(1, [(0, 0)]), trial(2, [(0, 0)])]) is None
