"""What makes a run another experiment: who its workers are, where that decides what they learn."""

from __future__ import annotations

from typing import Any

import pytest

from unisono.task.overrides import change
from unisono.task.task import Task
from unisono.task.train_config import TrainConfig
from unisono.training.run_folder.run_record import record_of

TASK = Task(model=lambda: None, data=lambda: None)


def recorded(changes: dict[str, Any], **options: Any) -> Any:
    config = TrainConfig("task.py", changes, algorithm="gem", out="run", **options)
    return record_of(config, change(TASK, changes), 1)["algorithm"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"simulate": 2}, {"simulate": 4}),
        ({"simulate": 2}, {}),
        ({"elastic": 2}, {"elastic": 4}),
        ({"group": 2}, {"group": 4}),
    ],
)
def test_other_workers_are_another_experiment(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert recorded({}, **one) == recorded({}, **one)
    assert recorded({}, **one) != recorded({}, **other)


def test_so_is_another_clock() -> None:
    assert recorded({"simulate.jitter": 0.2}, simulate=2) != recorded({}, simulate=2)
