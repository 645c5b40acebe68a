"""Which metric judges epochs, and in which direction: one that is not known judges nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from unisono.errors import UsageError
from unisono.task.task import Task
from unisono.training.early_stopping import Goals, make_goals
from unisono.training.progress import Progress

KNOWN = {"val_brier": None, "val_f1": True, "val_loss": False}


def goals(known: dict[str, bool | None] = KNOWN, validates: bool = True, **settings: Any) -> Goals:
    return make_goals(Task(model=lambda: None, data=lambda: None, **settings), known, validates, "stop")


def trained(values: list[float], judge: Goals) -> Progress:
    done = Progress(monitor="val_brier")
    for value in values:
        if judge.better(value, done.best_value):
            done.keep_best(value)
        done.finish_epoch({"metrics": {"val_brier": value}, "wall_s": 1.0}, judge)
    return done


def test_a_metric_of_unknown_direction_judges_no_epoch() -> None:
    for settings in ({"monitor": "val_brier"}, {"monitor": "brier"}, {"patience": 3}, {"target": 0.1}, {"weights": "best"}):
        with pytest.raises(UsageError, match=r"whether a higher or a lower val_brier is better is not known.*--best val_brier:min"):
            goals(**settings)
    assert goals().monitor == "val_f1", "the first of which it is known, where nobody asked for another"
    assert goals({"val_brier": None}).monitor is None


def test_a_user_says_the_direction_behind_the_metric() -> None:
    found = goals(monitor="brier:min", patience=2)
    assert (found.monitor, found.higher_is_better, found.weights) == ("val_brier", False, "best")
    assert goals(monitor="val_brier:max").higher_is_better
    assert not goals(monitor="val_f1:min").higher_is_better
    assert goals({"val_a:min": True}, monitor="val_a:min").higher_is_better, "a logged value may be called so"
    with pytest.raises(UsageError, match="--best val_f1:low must end in :max or :min"):
        goals(monitor="val_f1:low")
    with pytest.raises(UsageError, match="the task has no metric 'val_g1'"):
        goals(monitor="val_g1:max")


def test_a_target_and_patience_read_the_direction_of_the_judge() -> None:
    judge = goals(monitor="val_brier:min", target=0.1, patience=2)
    assert trained([0.4, 0.2, 0.09], judge).reason == "target reached"
    assert trained([0.2, 0.3, 0.4], judge).reason == "stopped early"


def test_a_run_that_was_judged_the_other_way_round_compares_from_now_on() -> None:
    higher, lower = goals(monitor="val_brier:max"), goals(monitor="val_brier:min")
    done = trained([0.3, 0.1, 0.2], higher)
    assert done.best_epoch == 0 and done.for_resume(higher, same_batches=True).best_epoch == 0
    resumed = done.for_resume(lower, same_batches=True)
    assert (resumed.best_epoch, resumed.best_value, resumed.compared_from) == (None, None, 3)
    assert trained([0.1, float("nan"), 0.1], lower).for_resume(lower, same_batches=True).best_epoch == 0
    assert replace(done, history=[], best_epoch=None).for_resume(lower, same_batches=True).compared_from == 0
