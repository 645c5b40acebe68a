"""The trace of all ranks: valid JSON of Chrome's format, on one clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from unisono.comm.base import Communicator
from unisono.errors import CannotWrite
from unisono.events import Spans
from unisono.observe import timeline
from unisono.observe.timeline import RankSpans, gather_spans, write_timeline
from unisono.testing.thread_communicator import run_threads


def events(path: Path) -> list[dict[str, Any]]:
    trace = json.loads(path.read_text())
    assert set(trace) == {"displayTimeUnit", "traceEvents"}
    return list(trace["traceEvents"])


def test_spans_of_all_ranks_stand_on_one_clock(tmp_path: Path) -> None:
    ranks = [
        RankSpans(0, [("compute", "forward", 5_000_000, 7_000_500), ("save", "checkpoint", 9_000_000, 9_500_000)]),
        RankSpans(
            1, [("compute", 'a "name"', 905_000_000, 906_000_000), ("own", "x", 907_000_000, 907_000_000)], -901_000_000, 4000
        ),
    ]
    write_timeline(tmp_path / "timeline.json", ranks)
    found = events(tmp_path / "timeline.json")
    spans = [(e["pid"], e["cat"], e["name"], e["ts"], e["dur"]) for e in found if e["ph"] == "X"]
    assert spans == [
        (0, "compute", "forward", 1000.0, 2000.5),
        (0, "save", "checkpoint", 5000.0, 500.0),
        (1, "compute", 'a "name"', 0.0, 1000.0),
        (1, "own", "x", 2000.0, 0.0),
    ]
    named = {(e["pid"], e.get("tid")): e["args"]["name"] for e in found if e["ph"] == "M" and "name" in e["args"]}
    assert named[(0, None)] == "rank 0"
    assert named[(1, None)] == "rank 1 (clock known to 4 us)"
    assert all(named[(e["pid"], e["tid"])] == e["cat"] for e in found if e["ph"] == "X")


def test_a_run_without_spans_is_a_valid_trace(tmp_path: Path) -> None:
    write_timeline(tmp_path / "timeline.json", [RankSpans(0, [])])
    assert [e["ph"] for e in events(tmp_path / "timeline.json")] == ["M", "M"]


def test_a_file_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CannotWrite, match=r"cannot write .*timeline\.json: No such file"):
        write_timeline(tmp_path / "missing" / "timeline.json", [])


def test_all_spans_come_to_rank_0() -> None:
    def body(comm: Communicator) -> list[RankSpans] | None:
        spans = Spans()
        for number in range(comm.rank * 100):
            spans.add("compute", f"step {number} of {comm.rank}", number, number + (1 << 60))
        return gather_spans(comm, spans)

    gathered, *others = run_threads(3, body)
    assert others == [None, None]
    assert gathered is not None
    assert [(one.rank, len(one.found), one.offset_ns) for one in gathered] == [(0, 0, 0), (1, 100, 0), (2, 200, 0)]
    assert gathered[2].found[199] == ("compute", "step 199 of 2", 199, 199 + (1 << 60))
    assert gathered[0].error_ns == 0 < gathered[1].error_ns


def test_spans_of_one_worker_alone_are_gathered() -> None:
    spans = Spans()
    spans.add("data", "read", 1, 2)
    assert run_threads(1, lambda comm: gather_spans(comm, spans)) == [[RankSpans(0, (("data", "read", 1, 2),))]]


def test_a_clock_of_another_host_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from threading import current_thread
    from time import perf_counter_ns

    ahead = {"rank 0": 0, "rank 1": 10**12, "rank 2": -(10**15)}
    monkeypatch.setattr(timeline, "perf_counter_ns", lambda: perf_counter_ns() + ahead[current_thread().name])
    gathered = run_threads(3, lambda comm: gather_spans(comm, Spans()))[0]
    assert gathered is not None
    for one in gathered[1:]:
        assert abs(one.offset_ns + ahead[f"rank {one.rank}"]) <= one.error_ns
