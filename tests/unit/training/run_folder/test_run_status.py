"""status.json: what each life wrote, and what is made of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from unisono.training.run_folder.run_status import KILLED, WRITE_EVERY_S, Status, read


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def born(tmp_path: Path, clock: Clock, told: list[str]) -> Callable[[], Status]:
    return lambda: Status(tmp_path / "status.json", told.append, clock)


def test_two_lives(born: Callable[[], Status], clock: Clock, tmp_path: Path) -> None:
    first = born()
    first.begin(0, 0, 100, 2, "7")
    clock.now = 1100.0
    first.update_progress(40, 1)
    first.end("stopped", 75, "time limit", 41, 1)
    second = born()
    clock.now = 1200.0
    second.begin(41, 1, 100, 3, "8")
    clock.now = 1300.0
    second.end("finished", 0, "all epochs", 100, 2)
    found = read(tmp_path / "status.json")
    assert found is not None
    assert (found["state"], found["exit_code"], found["reason"], found["step"], found["epoch"]) == (
        "finished",
        0,
        "all epochs",
        100,
        2,
    )
    assert (found["num_steps"], found["unix_s"], found["job"]) == (100, 1300.0, "8")
    common = {"first_step": 0, "last_step": 41, "num_workers": 2, "reason": "time limit"}
    assert found["lives"][0] == {"job": "7", "begin_unix_s": 1000.0, "end_unix_s": 1100.0, **common}
    assert (found["lives"][1]["first_step"], found["lives"][1]["last_step"], found["lives"][1]["num_workers"]) == (41, 100, 3)


def test_signs_of_life_are_written_now_and_then(born: Callable[[], Status], clock: Clock, tmp_path: Path) -> None:
    status = born()
    status.begin(0, 0, 100, 1)
    clock.now += WRITE_EVERY_S - 1
    status.update_progress(5, 0)
    assert (read(tmp_path / "status.json") or {})["step"] == 0
    clock.now += 1
    status.update_progress(6, 0)
    assert (read(tmp_path / "status.json") or {})["step"] == 6
    status.update_progress(7, 0)
    assert (read(tmp_path / "status.json") or {})["step"] == 6
    assert [entry.name for entry in tmp_path.iterdir()] == ["status.json"]


def test_a_life_that_said_nothing_of_its_end_was_killed(born: Callable[[], Status], clock: Clock, tmp_path: Path) -> None:
    first = born()
    first.begin(0, 0, 100, 1)
    clock.now = 1050.0
    first.update_progress(20, 0)
    clock.now = 2000.0
    born().begin(15, 0, 100, 1)
    life = (read(tmp_path / "status.json") or {})["lives"][0]
    assert (life["last_step"], life["end_unix_s"], life["reason"]) == (20, 1050.0, KILLED)


def test_a_place_that_cannot_be_written_is_told_once_and_tried_again(
    born: Callable[[], Status], clock: Clock, told: list[str], tmp_path: Path
) -> None:
    status = born()
    status.begin(0, 0, 100, 1)
    aside = tmp_path.rename(tmp_path.with_name("aside"))
    for step in (1, 2):
        clock.now += WRITE_EVERY_S
        status.update_progress(step, 0)
    assert len(told) == 1 and told[0].startswith(f"warning: cannot write {tmp_path / 'status.json'}: No such file")
    aside.rename(tmp_path)
    status.end("finished", 0, "all epochs")
    assert (read(tmp_path / "status.json") or {})["step"] == 2
    assert len(told) == 1


def test_an_unknown_state_is_refused(born: Callable[[], Status]) -> None:
    status = born()
    status.begin(0, 0, 100, 1)
    with pytest.raises(ValueError, match="state must be one of running, stopped, finished, failed; received 'done'"):
        status.end("done", 0, "")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", json.dumps({"state": "done", "lives": []})])
def test_what_is_torn_is_as_if_it_were_not_there(text: str, born: Callable[[], Status], tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text(text)
    assert read(tmp_path / "status.json") is None
    born().begin(3, 0, 100, 1)
    assert len((read(tmp_path / "status.json") or {})["lives"]) == 1


def test_the_batch_file_finds_the_step_on_a_line_of_its_own(born: Callable[[], Status], tmp_path: Path) -> None:
    born().begin(12, 1, 100, 1)
    assert [line for line in (tmp_path / "status.json").read_text().splitlines() if line.startswith('  "step": ')] == [
        '  "step": 12,'
    ]
