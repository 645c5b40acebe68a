"""The timeline of the Horovod front: which events it makes of what a channel says, and a file that is whole at every moment."""

from __future__ import annotations

import json
import random
import resource
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
import torch

from unisono.errors import UsageError
from unisono.horovod._impl.engine.agreed_operation import Agreement
from unisono.horovod._impl.engine.operation_entry import Entry
from unisono.horovod._impl.engine.operation_request import ALLREDUCE, BROADCAST, Request
from unisono.horovod._impl.job.job_settings import HorovodSettings, settings_of
from unisono.horovod._impl.timeline.operation_timeline import OFF, Recording, Timeline
from unisono.horovod._impl.timeline.trace_file import BEGIN, MARK, PAGE_BYTES, TraceFile

Event = dict[str, Any]


def request(name: str, kind: str = ALLREDUCE, shape: tuple[int, ...] = (2, 3)) -> Request:
    return Request(f"{kind}.{name}", kind, ((torch.float32, shape),))


def recording(rank: int = 0, timeline: str = "DYNAMIC") -> Recording:
    return Recording(HorovodSettings(timeline=timeline), rank)


def events_of(path: Path) -> dict[str, list[Event]]:
    """By title of the tensor, without what says who is who."""
    loaded: list[Event] = json.loads(path.read_text())
    titles = {
        event["pid"]: event["args"]["name"] for event in loaded if event["name" if "name" in event else "ph"] == "process_name"
    }
    by_title = defaultdict(list)
    for event in loaded:
        if event["ph"] != "M":
            by_title[titles[event["pid"]]].append(event)
    return by_title


def labels_of(events: Sequence[Event]) -> list[str]:
    """Begins by name, ends as `/`, points in brackets."""
    return [{"B": event.get("name", ""), "E": "/", "X": f"({event.get('name')})", "i": "!"}[event["ph"]] for event in events]


def work(timeline: Timeline, requests: Sequence[Request], told: Sequence[Sequence[Request]]) -> None:
    """One round of a channel with a bucket of all requests."""
    agreements = [Agreement((one, one)) for one in requests]
    timeline.on_round()
    timeline.on_submit([Entry(one) for one in requests])
    timeline.on_requests(told)
    timeline.on_agreement(agreements)
    timeline.on_start(agreements)
    timeline.on_copy_in()
    timeline.on_send(requests[0].kind)
    timeline.on_copy_out()
    timeline.on_done()


INSIDE = ["ALLREDUCE", "QUEUE", "/", "MEMCPY_IN_FUSION_BUFFER", "/", "SHM_ALLREDUCE", "/", "MEMCPY_OUT_FUSION_BUFFER", "/", "/"]


def test_events_of_a_bucket(tmp_path: Path) -> None:
    path, held = tmp_path / "t.json", recording()
    held.start(str(path), mark_cycles=True)
    timeline = held.timeline((4, 7), "shm", 0)
    requests = [request("a"), request('b "quoted"')]
    work(timeline, requests, [requests, requests])
    work(timeline, requests, [])
    held.stop()
    found = events_of(path)
    assert list(found) == ["unisono", "allreduce.a", 'allreduce.b "quoted"']
    assert labels_of(found["unisono"]) == ["!", "!"]
    for title in list(found)[1:]:
        told = ["NEGOTIATE_ALLREDUCE", "(4)", "(7)", "/", *INSIDE]
        known = ["NEGOTIATE_ALLREDUCE", "(all)", "/", *INSIDE]
        assert labels_of(found[title]) == told + known
        assert found[title][len(told) - 1]["args"] == {"dtype": "float32", "shape": "[2, 3]"}
        times = [event["ts"] for event in found[title]]
        assert times == sorted(times)
        assert all(event["dur"] == 0 for event in found[title] if event["ph"] == "X")


def test_the_file_names_its_ranks_and_its_start(tmp_path: Path) -> None:
    path, held = tmp_path / "t.json", recording()
    held.start(str(path))
    work(held.timeline((0, 1), "gloo", 0), [request("a")], [])
    held.stop()
    first, *rest = json.loads(path.read_text())
    assert first["args"]["start_time_since_epoch_in_micros"] > 1.7e15
    who = [(event["pid"], event["name"], event["args"]) for event in rest if event["ph"] == "M"]
    assert (1, "process_name", {"name": "allreduce.a"}) in who
    assert (1, "process_sort_index", {"sort_index": 1}) in who
    assert not any(event["ph"] == "i" for event in rest)


def test_a_refusal_ends_with_its_reason(tmp_path: Path) -> None:
    path, held = tmp_path / "t.json", recording()
    held.start(str(path))
    timeline, one = held.timeline((0, 1), "shm", 0), request("a")
    timeline.on_requests([[one], [one]])
    timeline.on_agreement([Agreement((one, one), error="they differ")])
    timeline.on_done()
    held.stop()
    events = events_of(path)["allreduce.a"]
    assert labels_of(events) == ["NEGOTIATE_ALLREDUCE", "(0)", "(1)", "/"]
    assert events[-1]["args"] == {"error": "they differ"}


def test_what_only_another_rank_asked_for_is_seen(tmp_path: Path) -> None:
    path, held = tmp_path / "t.json", recording()
    held.start(str(path))
    held.timeline((0, 1), "shm", 0).on_requests([[], [request("late", BROADCAST)]])
    held.stop()
    assert labels_of(events_of(path)["broadcast.late"]) == ["NEGOTIATE_BROADCAST", "(1)"]


def test_sets_have_lines_of_their_own(tmp_path: Path) -> None:
    path, held = tmp_path / "t.json", recording()
    held.start(str(path))
    for set_id in (0, 2):
        work(held.timeline((0, 1), "shm", set_id), [request("a")], [])
    held.stop()
    assert list(events_of(path)) == ["allreduce.a", "allreduce.a (process set 2)"]


def test_what_began_before_the_file_has_no_end_in_it(tmp_path: Path) -> None:
    first, second, held = tmp_path / "1.json", tmp_path / "2.json", recording()
    timeline, agreed = held.timeline((0, 1), "shm", 0), [Agreement((request("a"), request("a")))]
    held.start(str(first))
    timeline.on_agreement(agreed)
    timeline.on_start(agreed)
    held.start(str(second))
    timeline.on_send(ALLREDUCE)
    timeline.on_done()
    work(timeline, [request("a")], [])
    held.stop()
    work(timeline, [request("a")], [])
    assert labels_of(events_of(first)["allreduce.a"])[-1] == "QUEUE"
    assert labels_of(events_of(second)["allreduce.a"]) == ["NEGOTIATE_ALLREDUCE", "(all)", "/", *INSIDE]


def test_only_rank_0_writes_and_only_if_asked(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    other = recording(rank=1)
    other.start(str(path))
    assert not path.exists()
    assert other.timeline((0, 1), "shm", 0) is OFF
    off = recording(timeline="")
    assert off.timeline((0, 1), "shm", 0) is OFF
    with pytest.raises(ValueError, match="HOROVOD_TIMELINE=DYNAMIC"):
        off.start(str(path))
    off.stop()


def test_starting_again_with_the_same_file_appends(tmp_path: Path) -> None:
    path, held = tmp_path / "t.json", recording()
    held.start(str(path))
    work(held.timeline((0, 1), "shm", 0), [request("a")], [])
    held.start(str(path), mark_cycles=True)
    work(held.timeline((0, 1), "shm", 0), [request("b")], [])
    held.stop()
    assert list(events_of(path)) == ["allreduce.a", "unisono", "allreduce.b"]


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        TraceFile(str(tmp_path / "none" / "t.json"))
    with pytest.raises(OSError, match="No space left"):
        TraceFile("/dev/full")


def test_a_full_disk_ends_the_file_with_one_warning(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.json"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with closing(TraceFile(str(path))) as file:
        file.put(BEGIN, ("a",), "before", monotonic())
        until = monotonic() + 10
        while "before" not in path.read_text() and monotonic() < until:
            sleep(0.01)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        try:
            while not file.is_over and monotonic() < until:
                file.put(BEGIN, ("a",), "x" * 100, monotonic())
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.is_over
    events = events_of(path)["a"]
    assert events[0]["name"] == "before"
    assert len(events) > 100
    warning = capfd.readouterr().err
    assert warning.count("the timeline ends here") == 1
    assert str(path) in warning
    assert "the training continues" in warning


def test_the_file_is_whole_while_it_is_written(tmp_path: Path) -> None:
    path, until = tmp_path / "t.json", monotonic() + 20
    num_put = 0
    with closing(TraceFile(str(path))) as file:
        for number in (1, 10, 1000, 15_000):
            for _ in range(number):
                file.put(BEGIN, ("a", "b"), "some", monotonic())
                num_put += 2
            while f'"last {number}"' not in path.read_text() and monotonic() < until:
                file.put(MARK, (), f"last {number}", monotonic())
                sleep(0.1)
            assert sum(event["ph"] == "B" for event in json.loads(path.read_text())) == num_put
    assert sum(event["ph"] == "B" for event in json.loads(path.read_text())) == num_put
    assert path.read_text().endswith("}]")


@pytest.mark.parametrize("length", [1, 300, 3000])
def test_events_of_any_length_fill_pages_and_lose_nothing(tmp_path: Path, length: int) -> None:
    path, chance = tmp_path / "t.json", random.Random(length)
    names = [f"{number} " + chance.choice(("x", "\u00e4", '"')) * chance.randrange(length) for number in range(2000)]
    with closing(TraceFile(str(path))) as file:
        for name in names:
            file.put(BEGIN, ("a",), name, monotonic(), {"shape": name})
    found = events_of(path)["a"]
    assert [event["name"] for event in found] == [name if len(name) <= 500 else f"{name[:497]}..." for name in names]
    assert all(event["name"] == event["args"]["shape"] for event in found)


ENDLESS = """
import sys
from time import monotonic, sleep
from unisono.horovod._impl.timeline.trace_file import BEGIN, MARK, TraceFile
file = TraceFile(sys.argv[1])
print("begun", flush=True)
while True:
    for _ in range(10):
        file.put(BEGIN, [f"tensor {number}" for number in range(20)], "some", monotonic())
    sleep(0.005)
"""


@pytest.mark.parametrize("letter", ["x", "ä", "語", "\U0001f600", "\0", '"'])
def test_an_event_fits_into_a_page_whatever_its_characters(tmp_path: Path, letter: str) -> None:
    path = tmp_path / "t.json"
    with closing(TraceFile(str(path))) as file:
        file.put(BEGIN, [letter * 600], "x", monotonic(), {"error": letter * 600})
    lines = path.read_text().splitlines()
    assert max(map(len, lines)) + len(",\n") < PAGE_BYTES
    names = [event["args"]["name"] for event in json.loads(path.read_text()) if event["name"] == "process_name"]
    assert names[-1].startswith(letter * 200) and names[-1].endswith("..."), names


def test_killing_the_process_leaves_a_whole_file(tmp_path: Path) -> None:
    chance = random.Random(3)
    for number in range(8):
        path = tmp_path / f"{number}.json"
        with subprocess.Popen([sys.executable, "-c", ENDLESS, str(path)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            sleep(0.1 + 0.2 * chance.random())
            process.send_signal(signal.SIGKILL)
        assert len(json.loads(path.read_text())) > 40


def test_settings() -> None:
    plain, asked = settings_of({}), settings_of({"HOROVOD_TIMELINE": "/x/y.json", "HOROVOD_TIMELINE_MARK_CYCLES": "1"})
    assert (plain.timeline, plain.timeline_mark_cycles) == ("", False)
    assert (asked.timeline, asked.timeline_mark_cycles) == ("/x/y.json", True)
    with pytest.raises(UsageError, match="HOROVOD_TIMELINE_MARK_CYCLES"):
        settings_of({"HOROVOD_TIMELINE_MARK_CYCLES": "often"})
