"""The parts of `horovod.run` that need no other processes: words, output that cannot be written, results that are left."""

from __future__ import annotations

import inspect
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unisono.horovod._impl.elastic.worker_environment import RankAssignment
from unisono.horovod._impl.launching import function_parcel as parcel
from unisono.horovod._impl.launching import run_function as function


def test_a_switch_takes_no_value_and_0_switches_it_off() -> None:
    assert [function._option_words("--verbose", value) for value in (None, 0, False, 2, True)] == [
        [],
        [],
        [],
        ["--verbose"],
        ["--verbose"],
    ]
    assert function._option_words("--mpi", 0) == []
    assert function._option_words("--reset-limit", 0) == ["--reset-limit", "0"]
    assert function._option_words("--hosts", None) == []


def test_arguments_come_in_the_order_of_horovod() -> None:
    names = list(inspect.signature(function.run).parameters)
    assert names[:4] == ["func", "args", "kwargs", "num_proc"]
    assert names[-6:] == ["network_interface", "network_interfaces", "executable", "np", "min_np", "max_np"]


def test_a_progress_bar_is_passed_on_while_it_moves() -> None:
    class Noted(io.StringIO):
        def write(self, text: str) -> int:
            written.append(text)
            return len(text)

    written: list[str] = []
    told: list[str] = []
    function._pass_on(io.BytesIO(b"[0] 20%\r[0] 40%\runisono: a word\n"), Noted(), told, [])
    assert written == ["[0] 20%\r", "[0] 40%\r", "unisono: a word\n"] and told == ["a word"]


def test_output_that_cannot_be_written_is_read_to_its_end_and_reported() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(f"nobody reads {text.strip()}")

    pipe = io.BytesIO(b"first\nunisono: a word\nlast\n")
    told: list[str] = []
    dropped: list[str] = []
    function._pass_on(pipe, Closed(), told, dropped)
    assert not pipe.read() and told == ["a word"] and dropped == ["BrokenPipeError: nobody reads first"]


def call(what: Callable[[], Any], folder: Path) -> object:
    """As a rank does; the exit code."""
    parcel.Parcel(what, (), {}, ()).write(folder)
    try:
        parcel.main(str(folder))
    except SystemExit as end:
        return end.code
    return None


@pytest.fixture
def rank_1_of_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_RANK", "1")
    monkeypatch.setenv("HOROVOD_SIZE", "2")
    monkeypatch.setattr(parcel, "_driver_connection", lambda: None)


@pytest.mark.usefixtures("rank_1_of_2")
def test_a_function_that_ends_its_process_is_noticed(tmp_path: Path) -> None:
    assert call(lambda: sys.exit(0), tmp_path) == 0
    assert parcel.results_in(tmp_path) == (2, {1: None})
    assert call(lambda: sys.exit(3), tmp_path) == 3
    failed = parcel.error_of(tmp_path)
    assert failed is not None and failed[0] == 1 and "SystemExit: 3" in failed[1]


@pytest.mark.usefixtures("rank_1_of_2")
def test_a_rank_that_left_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="every rank ended without an error but left no result"):
        function._results(tmp_path, 0, [])
    assert call(lambda: 5, tmp_path) is None
    with pytest.raises(RuntimeError, match="rank 0 of 2 ended without an error but left no result"):
        function._results(tmp_path, 0, [])
    os.environ["HOROVOD_RANK"] = "0"
    assert call(lambda: 4, tmp_path) is None
    assert function._results(tmp_path, 0, []) == [4, 5]


class DriverConnection:
    """As `elastic/driver_connection.py` after `shutdown`."""

    def __init__(self, seat: RankAssignment | None) -> None:
        self.assignment = seat
        self.is_dismissed = seat is None


def test_in_an_elastic_job_the_last_place_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def sit(rank: int, size: int, generation: int) -> None:
        seat = RankAssignment(generation, rank, size, rank, size, 0, 1, 0, 1, "", "")
        monkeypatch.setattr(parcel, "_driver_connection", lambda: DriverConnection(seat))

    monkeypatch.setenv("HOROVOD_RANK", "5")
    monkeypatch.setenv("HOROVOD_SIZE", "6")
    for rank, size, generation in ((0, 3, 1), (1, 2, 2), (0, 2, 2)):
        sit(rank, size, generation)
        assert call(lambda rank=rank: f"rank {rank}", tmp_path) is None  # type: ignore[misc]
    monkeypatch.setattr(parcel, "_driver_connection", lambda: DriverConnection(None))
    assert call(lambda: sys.exit(0), tmp_path) == 0, "a worker that was sent away leaves nothing"
    assert function._results(tmp_path, 0, []) == ["rank 0", "rank 1"]
