"""Worker processes of a node: they come, work, die and come again, and so does the process that they are forked from."""

from __future__ import annotations

import gc
import os
import selectors
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from unisono.errors import TrainingFailed, UsageError
from unisono.tuning.crew import ranks_heard
from unisono.tuning.objective import write_objective
from unisono.tuning.seats import KILLED, Seats

WAIT_S = 20.0


def objective(trial: Any) -> float:
    """Dies where it is told to, or notes something that cannot be written down."""
    if trial.suggest_int("die", 0, 2) == 1:
        os._exit(7)
    if trial.suggest_int("die", 0, 2) == 2:
        trial.set_user_attr("seen", {1, 2})
    return 2.0 * float(trial.suggest_float("x", 0.0, 1.0))


class Node:
    """Seats, and what was heard of their workers."""

    def __init__(self, order: dict[str, Any], num_ranks: int) -> None:
        self.selector = selectors.DefaultSelector()
        self.seats = Seats(order, dict.fromkeys(range(num_ranks)), self.selector)
        self.heard: list[tuple[int, dict[str, Any]]] = []
        self.seats.begin()

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = monotonic() + WAIT_S
        while not holds():
            assert monotonic() < deadline, f"heard only {self.heard}"
            self.heard += [(rank, dict(letter)) for rank, letter in ranks_heard(self.selector, 1.0)]

    def count(self, what: str, rank: int | None = None) -> int:
        return sum(letter["is"] == what and rank in (None, at) for at, letter in self.heard)

    def last(self, rank: int, what: str) -> dict[str, Any]:
        return [letter for at, letter in self.heard if at == rank and letter["is"] == what][-1]


@pytest.fixture
def opens(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    nodes: list[Node] = []

    def node(num_ranks: int = 2, file: Path | None = None) -> Node:
        found = Node({"kind": "objective", "file": str(file or write_objective(objective, tmp_path))}, num_ranks)
        nodes.append(found)
        return found

    yield node
    for one in nodes:
        one.seats.close()
        one.selector.close()
    nodes.clear()
    gc.collect()  # what was not closed is told of now, and not in another test


def started(node: Node, *ranks: int) -> None:
    """Their workers are ready."""
    before = {rank: node.count("ready", rank) for rank in ranks}
    for rank in ranks:
        node.seats.start(rank)
    node.until(lambda: all(node.count("ready", rank) > before[rank] for rank in ranks))


def call(tmp_path: Path, name: str, **values: Any) -> dict[str, Any]:
    return {
        "do": "train",
        "id": name,
        "number": 0,
        "output": str(tmp_path / "output.txt"),
        "values": values,
        "distributions": {},
    }


def test_a_worker_works_and_its_end_is_heard(opens: Callable[..., Node], tmp_path: Path) -> None:
    node = opens()
    node.until(lambda: node.seats.is_loaded)
    started(node, 0, 1)
    node.seats.send(0, call(tmp_path, "0.0.0", die=0, x=0.25))
    node.until(lambda: node.count("done", 0) == 1)
    assert node.last(0, "done")["values"] == [0.5] and node.last(0, "done")["id"] == "0.0.0"
    node.seats.send(0, call(tmp_path, "1.0.0", die=1, x=0.5))
    node.until(lambda: node.count("gone", 0) == 1)
    assert node.last(0, "gone")["status"] == 7
    node.seats.signal(1, signal.SIGKILL)
    node.until(lambda: node.count("gone", 1) == 1)
    assert node.last(1, "gone")["status"] == KILLED
    started(node, 0, 1)
    node.seats.send(1, call(tmp_path, "2.0.0", die=0, x=1.0))
    node.until(lambda: node.count("done", 1) == 1)


def test_what_an_objective_notes_and_nobody_can_write_down_ends_no_process(opens: Callable[..., Node], tmp_path: Path) -> None:
    node = opens(1)
    node.until(lambda: node.seats.is_loaded)
    started(node, 0)
    node.seats.send(0, call(tmp_path, "0.0.0", die=2, x=0.25))
    node.until(lambda: bool(node.count("done") + node.count("failed") + node.count("gone")))
    assert not node.count("gone"), "its process ended, and nobody hears why"


def test_a_worker_that_is_killed_while_it_is_born_is_heard_of(opens: Callable[..., Node]) -> None:
    node = opens(1)
    node.until(lambda: node.seats.is_loaded)
    node.seats.start(0)
    node.seats.signal(0, signal.SIGKILL)
    node.until(lambda: node.count("gone", 0) == 1)
    started(node, 0)


def test_the_process_that_forks_may_die_and_comes_again_with_its_workers(opens: Callable[..., Node], tmp_path: Path) -> None:
    node = opens()
    node.until(lambda: node.seats.is_loaded)
    started(node, 0, 1)
    assert node.seats._nursery is not None
    node.seats._nursery.kill()
    node.until(lambda: node.count("gone") == 2)
    started(node, 0, 1)  # as a coordinator does at once
    node.seats.send(0, call(tmp_path, "0.0.0", die=0, x=0.25))
    node.until(lambda: node.count("done", 0) == 1)


def test_workers_that_cannot_be_forked_are_processes_of_their_own(opens: Callable[..., Node], tmp_path: Path) -> None:
    node = opens()
    node.until(lambda: node.seats.is_loaded)
    node.seats._forks = False  # as the process says where it has loaded TensorFlow
    started(node, 0, 1)
    node.seats.send(0, call(tmp_path, "0.0.0", die=0, x=0.25))
    node.until(lambda: node.count("done", 0) == 1)
    node.seats.signal(0, signal.SIGKILL)
    node.until(lambda: node.count("gone", 0) == 1)
    assert node.last(0, "gone")["status"] == KILLED
    started(node, 0)


def test_what_cannot_be_loaded_is_told(opens: Callable[..., Node], tmp_path: Path) -> None:
    node = opens(file=tmp_path / "missing.cloudpickle")
    with pytest.raises((TrainingFailed, UsageError), match=r"missing\.cloudpickle"):
        node.until(lambda: node.seats.is_loaded)
