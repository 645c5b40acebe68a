"""The timeline of the Horovod front on real processes."""

from __future__ import annotations

import json
import os
import re
import signal
from collections import Counter
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from tests.ranks.checks import PROGRAMS
from tests.system.nursery import Nursery
from unisono.testing.ranks import GroupResult

PROGRAM = str(PROGRAMS / "horovod_trace.py")
LIMIT_S = 60.0

Event = dict[str, Any]


def run(nursery: Nursery, *words: str, size: int = 2, engine: str = "shm", **variables: str) -> GroupResult:
    with nursery.start([PROGRAM, *words], size, engine, variables) as group:
        return group.wait(LIMIT_S)


def load(path: Path) -> dict[str, list[Event]]:
    """The events of each tensor, in the order of their times; begins and ends must be nested and whole."""
    events: list[Event] = json.loads(path.read_text())
    titles = {event["pid"]: event["args"]["name"] for event in events if event.get("name") == "process_name"}
    by_title: dict[str, list[Event]] = {title: [] for title in titles.values()}
    for event in sorted((event for event in events if event["ph"] != "M"), key=lambda event: float(event["ts"])):
        by_title[titles[event["pid"]]].append(event)
    for title, found in by_title.items():
        depth = 0
        for event in found:
            depth += {"B": 1, "E": -1}.get(event["ph"], 0)
            assert depth >= 0, title
        assert depth == 0, title
    return by_title


def names(events: list[Event]) -> Counter[str]:
    return Counter(event["name"] for event in events if "name" in event)


@pytest.mark.parametrize(("size", "engine"), [(1, "single"), (2, "shm"), (3, "gloo")])
def test_what_a_timeline_says(nursery: Nursery, tmp_path: Path, size: int, engine: str) -> None:
    path = tmp_path / "t.json"
    ended = run(nursery, "works", size=size, engine=engine, HOROVOD_TIMELINE=str(path), HOROVOD_TIMELINE_MARK_CYCLES="1")
    assert ended.exit_code == 0, str(ended)
    found = load(path)
    for title in (f"allreduce.t{index}" for index in range(4)):
        counts = names(found[title])
        assert counts["NEGOTIATE_ALLREDUCE"] == counts["ALLREDUCE"] == counts["QUEUE"] == 3, counts
        assert counts[f"{engine.upper()}_ALLREDUCE"] == 3, counts
        if size > 1:  # told by all the first time, and known after that
            assert all(counts[str(rank)] == 1 for rank in range(size)), counts
            assert counts["all"] == 2, counts
        assert [event["args"] for event in found[title] if event["ph"] == "E" and "args" in event] == [
            {"dtype": "float32", "shape": "[50]"}
        ] * 3
    assert names(found["broadcast.b"])[f"{engine.upper()}_BCAST"] == 1
    for title, activity in (("allgather.g", "ALLGATHER"), ("alltoall.a", "ALLTOALL"), ("reducescatter.r", "REDUCESCATTER")):
        assert names(found[title])[f"{engine.upper()}_{activity}"] == 1, title
    inside = names(found["grouped_allgather.gg"])
    assert inside["MEMCPY_IN_FUSION_BUFFER"] == inside["MEMCPY_OUT_FUSION_BUFFER"] == 1
    if size > 1:
        (refusal,) = [event["args"] for event in found["allreduce.differs"] if "args" in event]
        assert "do not agree on the shape" in refusal["error"]
        assert "ALLREDUCE" not in names(found["allreduce.differs"])
    assert names(found["unisono"])["CYCLE_START"] >= 5


def test_a_program_starts_and_stops_it(nursery: Nursery, tmp_path: Path) -> None:
    ended = run(nursery, "starts_and_stops", str(tmp_path), HOROVOD_TIMELINE="DYNAMIC")
    assert ended.exit_code == 0, str(ended)
    first, second = load(tmp_path / "first.json"), load(tmp_path / "second.json")
    for found in (first, second):
        assert names(found["allreduce.t0"])["ALLREDUCE"] == 1
        assert "allreduce.t4" not in found
    assert not first["unisono"]
    assert names(second["unisono"])["CYCLE_START"] >= 1


def test_starting_without_the_variable_is_refused(nursery: Nursery, tmp_path: Path) -> None:
    ended = run(nursery, "starts_and_stops", str(tmp_path), size=1, engine="single")
    assert "ValueError: start_timeline needs HOROVOD_TIMELINE=DYNAMIC" in ended.output, str(ended)
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_refused_on_all_ranks(nursery: Nursery, tmp_path: Path) -> None:
    path = tmp_path / "none" / "file"
    ended = run(nursery, "works", HOROVOD_TIMELINE=str(path))
    assert ended.exit_code == 2, str(ended)
    told = re.findall(rf"cannot be written to {path}: No such file or directory \(HOROVOD_TIMELINE\)", ended.output)
    assert len(told) == 2, str(ended)


def test_a_full_disk_ends_the_timeline_and_not_the_training(nursery: Nursery, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    ended = run(nursery, "fills_the_disk", HOROVOD_TIMELINE=str(path))
    assert ended.exit_code == 0, str(ended)
    assert ended.output.count("is done") == 2, str(ended)
    assert ended.output.count("the timeline ends here") == 1, str(ended)
    assert len(json.loads(path.read_text())) > 50


def test_who_is_killed_leaves_a_whole_file(nursery: Nursery, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    with nursery.start([PROGRAM, "goes_on"], 2, "shm", {"HOROVOD_TIMELINE": str(path)}) as group:
        until = monotonic() + LIMIT_S
        while not (path.exists() and path.read_text().count('"ALLREDUCE"') > 100) and monotonic() < until:
            sleep(0.05)
        os.kill(group.pids[0], signal.SIGKILL)
        group.wait(LIMIT_S)
    assert len(json.loads(path.read_text())) > 500
