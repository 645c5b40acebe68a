"""The table of `bench.reference_trainings`, and what its references cover."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from bench.reference_cases import REFERENCES
from bench.reference_trainings import FILES, compared

RECORD: dict[str, Any] = {
    "machine": {"CPU": "one"},
    "references": {
        "one worker": {
            "commands": ["unisono train task.py"],
            "runs": {"run": {"weights": "abc", "epochs": [{"metrics": {"loss": 0.5}}], "files": ["config.json"]}},
            "equal": {"run = again": True},
            "files": {"answers.npy": "def"},
        }
    },
}


def changed(*path: Any, value: Any) -> dict[str, Any]:
    record = deepcopy(RECORD)
    place = record
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return record


ONE = ("references", "one worker")
CHANGES: dict[str, Any] = {
    "weights: ": changed(*ONE, "runs", "run", "weights", value="abd"),
    "epochs[0].metrics.loss: 0.5 before, 0.6 after": changed(*ONE, "runs", "run", "epochs", 0, "metrics", "loss", value=0.6),
    "runs.run.files": changed(*ONE, "runs", "run", "files", value=["config.json", "more.json"]),
    "answers.npy": changed(*ONE, "files", value={"answers.npy": "deg"}),
    "does not hold": changed(*ONE, "equal", "run = again", value=False),
    "recorded only before": changed("references", value={}),
    "recorded only after": changed("references", "two workers", value=RECORD["references"]["one worker"]),
}


def test_a_record_equals_itself_on_any_machine() -> None:
    table, is_same = compared(RECORD, changed("machine", value={"CPU": "another"}))
    assert is_same
    assert table.endswith("1 runs of 1 references: nothing differs")


@pytest.mark.parametrize("told", CHANGES)
def test_every_difference_is_reported(told: str) -> None:
    table, is_same = compared(RECORD, CHANGES[told])
    assert not is_same
    assert told in table


@pytest.mark.parametrize("algorithm", ("local_sgd", "post_local_sgd", "diloco", "downpour", "easgd", "gem", "parameter_server"))
def test_each_algorithm_has_a_reference(algorithm: str) -> None:
    commands = [command for reference in REFERENCES for command in reference.commands]
    assert any(f"--algorithm {algorithm}" in command for command in commands)


def test_what_they_train_is_there() -> None:
    for reference in REFERENCES:
        files = {word for command in reference.commands for word in command.split() if word.endswith(".py")}
        assert not [name for name in files if not (FILES / name).exists()]
