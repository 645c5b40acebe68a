"""What a worker needs of its machine, sampled by a thread that ends when it is told to."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from time import process_time
from typing import Any

import psutil
import pytest

from tests.unit.observe.made_up_run import START
from unisono.errors import CannotWrite
from unisono.observe.jsonl import read_lines
from unisono.observe.monitor import Monitor, describe_gpus, peak_rss_bytes, rss_bytes


def watchers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "unisono-monitor"]


def test_a_busy_worker_is_seen(tmp_path: Path) -> None:
    monitor = Monitor(tmp_path / "monitor", interval_s=0.02, rank=3)
    monitor.started(START)
    assert watchers() == ["unisono-monitor"]
    end = process_time() + 0.3
    while process_time() < end:
        sum(range(1000))
    monitor.close()
    monitor.close()
    assert watchers() == []
    rows = read_lines(tmp_path / "monitor" / "rank-3.jsonl")
    summary = monitor.summary()
    assert summary["num_rows"] == len(rows) > 1
    loads = [row["cpu_load"] for row in rows]
    assert summary["cpu_load"] == {"mean": pytest.approx(sum(loads) / len(loads)), "peak": max(loads)}
    assert max(loads) > 0.1
    assert summary["rss_bytes"]["peak"] >= summary["rss_bytes"]["mean"] > 1 << 20
    assert set(rows[0]) == {"unix_s", "wall_s", "cpu_load", "rss_bytes"}, "nothing of a GPU without one"


def test_a_long_interval_does_not_hold_the_end_up(tmp_path: Path) -> None:
    monitor = Monitor(tmp_path, interval_s=1e6)
    monitor.started(START)
    monitor.close()
    assert monitor.summary()["num_rows"] in (1, 2), "one at the end, and one soon after the start if there was time"


def test_one_that_never_started_closes_and_has_nothing_to_say(tmp_path: Path) -> None:
    monitor = Monitor(tmp_path)
    monitor.close()
    assert monitor.summary() == {"num_rows": 0}
    assert list(tmp_path.iterdir()) == []


def test_memory_is_what_the_system_says() -> None:
    seen = psutil.Process(os.getpid()).memory_info().rss
    assert rss_bytes() == pytest.approx(seen, rel=0.2)
    assert peak_rss_bytes() >= 0.9 * rss_bytes()


def test_a_full_disk_is_reported_at_the_end(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full, which Linux has")
    (tmp_path / "rank-0.jsonl").symlink_to("/dev/full")
    monitor = Monitor(tmp_path, interval_s=1e6)
    monitor.started(START)
    with pytest.raises(CannotWrite, match=r"cannot write .*rank-0\.jsonl: No space left"):
        monitor.close()
    monitor.close()


def test_how_busy_the_gpus_were_in_words() -> None:
    loads: list[dict[str, Any]] = [{"gpu_load": {"mean": mean, "peak": 1.0}} for mean in (0.9, 0.7)]
    waits: list[dict[str, Any]] = [
        {"host_waits": {"num": num, "num_steps": 1200, "places": places}}
        for num, places in ((1203, {"/a/task.py, line 7": 1200, "/a/task.py, line 9": 3}), (0, {}))
    ]
    assert describe_gpus([]) == describe_gpus([{"num_rows": 3, "cpu_load": {"mean": 1.0, "peak": 1.0}}]) == ""
    assert describe_gpus(loads[:1]) == "the GPU was busy 90% of the time"
    assert describe_gpus(loads) == "the GPUs were busy 80% of the time (rank 1 70%)"
    assert describe_gpus(waits[1:]) == "the host waited for the GPU 0 times in 1,200 training steps"
    told = describe_gpus([{**load, **wait} for load, wait in zip(loads, waits, strict=True)])
    assert told == (
        "the GPUs were busy 80% of the time (rank 1 70%); the host waited for the GPU 1,203 times in 1,200 training steps, "
        "most often in /a/task.py, line 7"
    )
