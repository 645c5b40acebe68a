"""What a search decides on reports is what Optuna decides on the same reports, also where every trial belongs to another job."""

from __future__ import annotations

import math
import random
from pathlib import Path

import optuna
import pytest

from tests.unit.tuning.workers.coordinating import Clock, Job, Scripted
from unisono.tuning.search.samplers import HALVING, first_rung
from unisono.tuning.search.search import Search
from unisono.tuning.study.trial_plan import Objective, Plan

NUM_TRIALS = 30
Reports = list[tuple[int, float]]


def drawn_reports(draw: random.Random) -> list[Reports]:
    """Reports of trials that get better from step to step; one in six is NaN, and some trials report every tenth step only."""
    found = []
    for _ in range(NUM_TRIALS):
        level, every = draw.random(), draw.choice((1, 1, 10))
        steps = range(every, every * 12, every)
        found.append([(step, math.nan if draw.random() < 1 / 6 else level + 1 / step) for step in steps])
    return found


def by_optuna(trials: list[Reports], pruner: optuna.pruners.BasePruner, ignores: list[bool]) -> list[bool]:
    """The decisions of plain Optuna, in one process; a trial ends at the first to prune it unless it ignores them."""
    study = optuna.create_study(pruner=pruner)
    found = []
    for reports, ignored in zip(trials, ignores, strict=True):
        trial = study.ask()
        for step, value in reports:
            trial.report(value, step)
            found.append(trial.should_prune())
            if found[-1] and not ignored:
                break
        study.tell(trial, 0.5)
    return found


def by_jobs(folder: Path, trials: list[Reports], prune: str, ignores: list[bool]) -> list[bool]:
    """The decisions of a study in which each trial is run by a job that knows the others from the journal."""
    found = []
    for number, (reports, ignored) in enumerate(zip(trials, ignores, strict=True)):
        plan = Plan([Objective("value", False)], prune=prune)
        job = Job(folder, Clock(), plan, num_trials=number + 1, space=None, name=f"job{number:02d}")
        job.ready()
        for step, value in reports:
            job.say(0, "report", step=step, value=value)
            found.append(not job.answers(0)[-1])
            if found[-1] and not ignored:
                break
        job.say(0, "done", reason="", values=[0.5], params={}, took_s=1.0)
        assert job.result(number).values == (0.5,)
        job.store.record_leave("done")
    return found


@pytest.mark.filterwarnings("ignore:All-NaN slice")  # of Optuna's median
@pytest.mark.parametrize("ignores_some", [False, True], ids=["obeyed", "ignored by some"])
@pytest.mark.parametrize("prune", ["asha", "median"])
@pytest.mark.parametrize("seed", range(2))
def test_resumed_pruning_decides_as_optuna_with_nan_and_skipped_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, prune: str, ignores_some: bool
) -> None:
    monkeypatch.setattr(Scripted, "should_prune", Search.should_prune)
    draw = random.Random(seed)
    trials = drawn_reports(draw)
    ignores = [ignores_some and draw.random() < 0.3 for _ in trials]
    pruner: optuna.pruners.BasePruner = (
        optuna.pruners.SuccessiveHalvingPruner(first_rung(1), HALVING)
        if prune == "asha"
        else optuna.pruners.MedianPruner(n_startup_trials=5)
    )
    expected = by_optuna(trials, pruner, ignores)
    assert any(expected) and not all(expected)
    assert by_jobs(tmp_path, trials, prune, ignores) == expected
