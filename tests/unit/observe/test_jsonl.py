"""metrics.jsonl: valid JSON whatever happens, and no line lost but the one that was being written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.observe.made_up_run import END, START, epoch, replay_run, step
from unisono.errors import CannotWrite
from unisono.observe.jsonl import JsonLines, line_of, read_lines


def strict(line: str) -> dict[str, object]:
    def refuse(name: str) -> object:
        raise AssertionError(f"{name} is not JSON")

    row = json.loads(line, parse_constant=refuse)
    assert isinstance(row, dict)
    return row


def test_the_record_of_a_run(tmp_path: Path) -> None:
    path = tmp_path / "out" / "metrics.jsonl"
    replay_run([JsonLines(path, log_every=4)])
    rows = [strict(line) for line in path.read_text().splitlines()]
    assert rows == read_lines(path)
    assert [row["event"] for row in rows].count("epoch") == 3
    assert [row["step"] for row in rows if row["event"] == "step"] == [0, 4, 8, 12, 16, 20, 24, 28]
    start, first, *_, end = rows
    assert (start["event"], start["num_workers"], start["target"]) == ("started", 2, None)
    assert (first["loss"], first["metrics"]) == (0.5, {"accuracy": 0.75})
    assert end == {"event": "ended", "reason": "finished", "steps": 30, "wall_s": 3.0, "metrics": {"val_accuracy": 0.92}}


def test_what_is_not_finite_is_null_and_named() -> None:
    row = {"loss": float("nan"), "metrics": {"a": float("inf"), "b": [1.0, float("-inf")]}, "c": np.float32(0.5), "d": np.int64(3)}
    assert strict(line_of(row)) == {
        "loss": None,
        "metrics": {"a": None, "b": [1.0, None]},
        "c": 0.5,
        "d": 3,
        "not_finite": {"loss": "nan", "metrics.a": "inf", "metrics.b[1]": "-inf"},
    }
    assert "not_finite" not in strict(line_of({"loss": 1.0}))


def test_lines_are_on_disk_after_each_epoch(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "metrics.jsonl")
    log.started(START)
    for number in range(10):
        log.step(step(number))
    log.epoch(epoch(0))
    assert [row["event"] for row in read_lines(tmp_path / "metrics.jsonl")] == ["started", *["step"] * 10, "epoch"]
    log.step(step(10))
    log.close()
    log.close()
    assert len(read_lines(tmp_path / "metrics.jsonl")) == 13, "what was waiting is written when a run fails"


def test_lines_are_on_disk_before_a_checkpoint(tmp_path: Path) -> None:
    """Who goes on from it does not tell them again."""
    log = JsonLines(tmp_path / "metrics.jsonl")
    log.started(START)
    for number in range(3):
        log.step(step(number))
    log.saving()
    assert [row["event"] for row in read_lines(tmp_path / "metrics.jsonl")] == ["started", *["step"] * 3]
    log.close()


def test_a_resumed_run_appends_to_the_record_and_removes_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    replay_run([JsonLines(path)])
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"event": "st')
    assert len(read_lines(path)) == 35, "a reader does not see it either"
    log = JsonLines(path)
    log.started(replace(START, first_step=10**6, first_epoch=10**6))
    log.close()
    assert path.read_bytes().startswith(whole)
    assert [row["event"] for row in read_lines(path)].count("started") == 2


def test_a_resumed_run_removes_the_lines_of_steps_that_it_repeats(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    replay_run([JsonLines(path)])
    before = read_lines(path)
    last = next(row for row in before if row["event"] == "epoch")
    log = JsonLines(path)
    log.started(replace(START, first_step=last["step"], first_epoch=1))
    log.close()
    kept = read_lines(path)
    assert [row for row in kept if row["event"] == "epoch"] == [last]
    assert [row for row in kept if row["event"] == "step"] == [
        row for row in before if row["event"] == "step" and row["step"] < last["step"]
    ]


def test_a_file_of_half_a_line_becomes_empty(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"event"')
    assert read_lines(path) == []
    log = JsonLines(path)
    log.started(START)
    log.close()
    assert [row["event"] for row in read_lines(path)] == ["started"]


def test_a_full_disk_is_reported_with_the_name_of_the_file() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs /dev/full, which Linux has")
    log = JsonLines(full)
    with pytest.raises(CannotWrite, match="cannot write /dev/full: No space left on device; free some space"):
        log.started(START)
    log.close()


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotWrite, match=r"cannot write .*metrics\.jsonl: File exists; a file is where"):
        JsonLines(tmp_path / "file" / "metrics.jsonl").started(START)


def test_the_end_is_written_without_a_summary(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "m.jsonl")
    log.started(START)
    log.ended(type(END)({}, "stopped early"))
    log.close()
    assert read_lines(tmp_path / "m.jsonl")[-1] == {"event": "ended", "reason": "stopped early"}
