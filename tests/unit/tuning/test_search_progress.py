"""What a search shows while it goes on: a line for each trial that ends, and a bar that counts only what this job was asked for."""

from __future__ import annotations

import io

import numpy as np

from unisono.files.journal import Record
from unisono.observe.bar import Bar
from unisono.tuning.search_progress import SearchProgress
from unisono.tuning.study.study import COMPLETE, FAILED, Study, end_record, proposal_record
from unisono.tuning.study.trial_plan import Objective


def test_a_line_for_each_trial_that_ends_and_a_bar() -> None:
    study, screen = Study(), io.StringIO()
    progress = SearchProgress(Bar(screen, 200), study, [Objective("val_loss", False)], num_trials=4, clock=lambda: 7.0)
    records = [proposal_record(0, {"lr": 0.12345}), end_record(0, 0, COMPLETE, [0.5], 3.0, details={"spread": 0.01})]
    records += [end_record(1, 0, FAILED, [], 1.0, "out of memory\nin detail"), end_record(9, 0, COMPLETE, [0.25], 1.0)]
    for number, record in enumerate(records):
        study.apply(Record("job", number, record))
    for number in (0, 1, 0, 9):
        progress.trial_ended(study.trials[number])
    lines = screen.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "trial 0: val_loss 0.5 ± 0.01",
        "trial 1: failed: out of memory",
        "trial 9: val_loss 0.25",
    ]
    assert "lr=0.1235" in lines[0] and lines[2].endswith("best"), "each once"
    progress.draw(num_running=2)
    drawn = screen.getvalue().splitlines()[-1]
    assert f"2/4 trials {'━' * 20}{' ' * 20} 2 running · " in drawn, "trial 9 is that of a job which was asked for more"
    assert "best val_loss 0.25 (trial 9)" in drawn


def test_the_spread_stands_behind_the_objective_that_it_is_of() -> None:
    study, screen = Study(), io.StringIO()
    objectives = [Objective("val_accuracy", True), Objective("time_s", False)]
    parts = [{"values": [value, time_s]} for value, time_s in ((0.25, 1.0), (0.5, 7.0), (0.75, 13.0))]
    spread = float(np.std([0.25, 0.5, 0.75], ddof=1))
    study.apply(Record("job", 0, end_record(0, 0, COMPLETE, [0.5, 7.0], 3.0, details={"parts": parts, "spread": spread})))
    SearchProgress(Bar(screen, 80), study, objectives, num_trials=2).trial_ended(study.trials[0])
    assert screen.getvalue().startswith("trial 0: val_accuracy 0.5 ± 0.25, time_s 7  ")


def test_earlier_trials_are_counted_and_not_printed() -> None:
    study, screen = Study(), io.StringIO()
    study.apply(Record("job", 0, end_record(0, 0, COMPLETE, [0.5], 3.0)))
    progress = SearchProgress(Bar(screen, 80), study, [Objective("val_loss", False)], num_trials=2)
    progress.skip_ended([study.trials[0]])
    progress.trial_ended(study.trials[0])
    assert screen.getvalue() == ""
    progress.draw(num_running=1)
    assert "1/2 trials ━" in screen.getvalue() and " 1 running · " in screen.getvalue()
