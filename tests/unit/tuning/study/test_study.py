"""A study is the same whatever the order of its records, and however often they come."""

from __future__ import annotations

import random

from unisono.files.journal import Record
from unisono.tuning.study.study import (
    COMPLETE,
    FAILED,
    PRUNED,
    RUNNING,
    WAITING,
    Study,
    begin_record,
    end_record,
    give_back_record,
    proposal_record,
)

HISTORY = (
    Record("a", 0, proposal_record(0, {"lr": 0.1})),
    Record("a", 1, begin_record(0, 0, "block 0", 10.0)),
    Record("a", 2, end_record(0, 0, COMPLETE, [0.9], 5.0)),
    Record("a", 3, proposal_record(1, {"lr": 0.2})),
    Record("a", 4, begin_record(1, 0, "block 1", 11.0)),
    Record("b", 0, give_back_record(1, 0, "its job is gone", 9.0)),
    Record("b", 1, begin_record(1, 1, "block 2", 30.0)),
    Record("b", 2, end_record(1, 1, COMPLETE, [0.95], 6.0)),
    Record("a", 5, end_record(1, 0, COMPLETE, [0.99], 40.0)),  # the first block was not dead after all
    Record("a", 6, proposal_record(2, {"lr": 0.3})),
    Record("b", 3, proposal_record(3, {"lr": 0.4})),
    Record("b", 4, begin_record(3, 0, "block 2", 50.0)),
    Record("b", 5, proposal_record(4, {"lr": 0.5})),
    Record("b", 6, begin_record(4, 0, "block 3", 50.0)),
    Record("b", 7, end_record(4, 0, FAILED, [], 1.0, "out of memory")),
    Record("b", 8, proposal_record(5, {"lr": 0.6})),
    Record("b", 9, end_record(5, 0, PRUNED, [0.2], 1.0)),
    Record("b", 10, {"event": "something of a later version", "trial": 9}),
    Record("b", 11, proposal_record(6, {"lr": 0.7})),
    Record("b", 12, begin_record(6, 0, "block 3", 60.0)),
    Record("b", 13, give_back_record(6, 0, "stop requested", 9.0)),
)


def folded(records: list[Record]) -> Study:
    study = Study()
    for record in records:
        study.apply(record)
    return study


def test_states_and_results() -> None:
    study = folded(list(HISTORY))
    states = {number: trial.state for number, trial in study.trials.items()}
    assert states == {0: COMPLETE, 1: COMPLETE, 2: WAITING, 3: RUNNING, 4: FAILED, 5: PRUNED, 6: WAITING}
    assert [trial.number for trial in study.in_state(WAITING, RUNNING)] == [2, 3, 6]
    first = study.trials[1]
    assert first.result is not None and (first.result.attempt, first.result.values) == (0, (0.99,)) and len(first.results) == 2
    assert study.trials[4].result is not None and study.trials[4].result.reason == "out of memory"
    assert [study.trials[number].next_attempt for number in (2, 3, 6)] == [0, 1, 1]


def test_the_order_of_records_does_not_matter() -> None:
    expected, draw = folded(list(HISTORY)), random.Random(1)
    for _ in range(50):
        records = draw.sample([*HISTORY, *HISTORY[:7]], len(HISTORY) + 7)
        assert folded(records) == expected


def test_the_best_is_the_first_of_equals() -> None:
    study = folded(
        [Record("a", number, end_record(number, 0, COMPLETE, [value], 1.0)) for number, value in enumerate((2, 3, 3, 1, 1))]
    )
    assert [found.number for high in (True, False) if (found := study.best(high)) is not None] == [1, 3]
    assert Study().best(True) is None


def test_the_last_heartbeat_of_a_job() -> None:
    times = (30.0, 10.0, 20.0)
    study = folded([Record("a", number, {"event": "alive", "job": "a", "at_s": at_s}) for number, at_s in enumerate(times)])
    study.apply(Record("b", 0, begin_record(0, 0, "b/3", 5.0)))
    assert study.last_seen == {"a": 30.0, "b": 5.0}
