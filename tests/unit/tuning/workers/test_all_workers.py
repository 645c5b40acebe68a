"""Supervisors of other nodes, as the coordinator sees them: who comes, who does not, and who could not load the task."""

from __future__ import annotations

import selectors
import threading
from collections.abc import Callable, Iterator, Mapping
from time import monotonic
from typing import Any, cast

import pytest

from unisono.cluster.rendezvous import derived_port
from unisono.cluster.topology import Topology
from unisono.errors import TrainingFailed, UsageError
from unisono.tuning.workers import all_workers
from unisono.tuning.workers.all_workers import LOST, AllWorkers, receive_messages, supervise
from unisono.tuning.workers.worker_slots import WorkerSlots

WAIT_S = 20.0
TOKEN = "0123456789abcdef"
PLACE: Mapping[str, Any] = {"node": "n", "gpus": (), "our_gpus": (), "threads": 1}


class FakeWorkerSlots:
    """What a node has, without processes: it loads, or it cannot."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure, self.is_loaded = failure, False

    def start_fork_server(self) -> None:
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        self.is_loaded = False


def at(rank: int, size: int) -> Topology:
    return Topology("unisono", rank, size, rank, size, 0, 1, "127.0.0.1", derived_port(TOKEN), TOKEN)


class Job:
    """A coordinator's end, and supervisors in threads."""

    def __init__(self, size: int) -> None:
        self.selector, self.seats, self.size = selectors.DefaultSelector(), FakeWorkerSlots(), size
        self.workers = AllWorkers(cast("WorkerSlots", self.seats), {0: PLACE}, self.selector, at(0, size), "127.0.0.1")
        self.workers.listen()
        self.ended: dict[int, int | Exception] = {}
        self.heard: list[tuple[int, Any]] = []
        self._threads: list[threading.Thread] = []
        self._is_over = False

    def come(self, rank: int, failure: Exception | None = None) -> None:
        def body() -> None:
            with selectors.DefaultSelector() as selector:
                try:
                    seats = cast("WorkerSlots", FakeWorkerSlots(failure))
                    self.ended[rank] = supervise(seats, rank, PLACE, at(rank, self.size), selector, WAIT_S)
                except Exception as error:  # noqa: BLE001 - what a test looks at
                    self.ended[rank] = error

        self._threads.append(threading.Thread(target=body))
        self._threads[-1].start()

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = monotonic() + WAIT_S
        while not holds():
            assert monotonic() < deadline, f"heard {self.heard}, ended {self.ended}"
            self.heard += receive_messages(self.selector, 0.05)
            self.workers.flush()

    def end(self, code: int = 0) -> None:
        if not self._is_over:
            self._is_over = True
            self.workers.close(code)
            for thread in self._threads:
                thread.join(WAIT_S)
            self.selector.close()


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Job]]:
    class NoSignals:
        """They belong to the main thread."""

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(all_workers, "StopRequest", NoSignals)
    made: list[Job] = []

    def job(size: int) -> Job:
        made.append(Job(size))
        return made[-1]

    yield job
    for one in made:
        one.end()


def test_missing_workers_are_named_once(jobs: Callable[[int], Job], monkeypatch: pytest.MonkeyPatch) -> None:
    job = jobs(5)
    assert job.workers.late_ranks_text() == "", "it is early"
    job.come(1)
    job.come(4)
    job.until(lambda: job.workers.place_of(1)["node"] == job.workers.place_of(4)["node"] == "n")
    now = monotonic() + all_workers.LATE_S
    monkeypatch.setattr(all_workers, "monotonic", lambda: now)
    text = job.workers.late_ranks_text()
    assert text.startswith("ranks 2, 3 have not connected yet, so their blocks wait; check what is printed there"), text
    assert "127.0.0.1, port " in text
    assert job.workers.late_ranks_text() == ""


def test_without_missing_workers_there_is_no_message(jobs: Callable[[int], Job], monkeypatch: pytest.MonkeyPatch) -> None:
    job = jobs(2)
    job.come(1)
    job.until(lambda: job.workers.place_of(1)["node"] == "n")
    now = monotonic() + all_workers.LATE_S
    monkeypatch.setattr(all_workers, "monotonic", lambda: now)
    assert job.workers.late_ranks_text() == ""


def test_a_mistake_of_the_task_is_left_to_the_coordinator(jobs: Callable[[int], Job]) -> None:
    job = jobs(3)
    job.come(1, UsageError("the task is wrong"))
    job.come(2)
    job.until(lambda: bool(job.workers._refused) and job.workers.place_of(2)["node"] == "n")
    assert not job.ended, "it waits to hear whether the coordinator has the same trouble"
    job.end(2)  # as it does when it has
    assert job.ended == {1: 2, 2: 2}, "they end likewise and say nothing"


def test_a_task_that_only_other_ranks_cannot_load_is_reported_by_one_of_them(jobs: Callable[[int], Job]) -> None:
    job = jobs(4)
    for rank, text in ((1, "no such file"), (2, "no such file"), (3, "no memory")):
        job.come(rank, UsageError(text))
    job.until(lambda: len(job.workers._refused) == 3)
    job.seats.is_loaded = True
    job.until(lambda: len(job.ended) == 3)
    told = {rank: str(error) for rank, error in job.ended.items() if isinstance(error, TrainingFailed)}
    assert sorted(text.partition(": ")[2] for text in told.values()) == ["no memory", "no such file"]
    assert all(text.startswith(f"rank {rank} on ") for rank, text in told.items())
    assert [code for code in job.ended.values() if not isinstance(code, Exception)] == [1]
    job.until(lambda: sum(letter["is"] == LOST for _, letter in job.heard) == 3)
