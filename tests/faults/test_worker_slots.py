"""Worker processes of a node: they come, work, die and come again, and so does the process that they are forked from."""

from __future__ import annotations

import gc
import os
import pickle
import selectors
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from unisono.errors import TrainingFailed, UsageError
from unisono.tuning.workers.all_workers import receive_messages
from unisono.tuning.workers.objective import write_objective
from unisono.tuning.workers.worker_slots import KILLED, WorkerSlots

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

    def __init__(self, work_spec: dict[str, Any], num_ranks: int, **options: Any) -> None:
        self.selector = selectors.DefaultSelector()
        self.slots = WorkerSlots(work_spec, dict.fromkeys(range(num_ranks)), self.selector, **options)
        self.heard: list[tuple[int, dict[str, Any]]] = []
        self.slots.start_fork_server()

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = monotonic() + WAIT_S
        while not holds():
            assert monotonic() < deadline, f"heard only {self.heard}"
            self.heard += [(rank, dict(letter)) for rank, letter in receive_messages(self.selector, 1.0)]

    def count(self, what: str, rank: int | None = None) -> int:
        return sum(letter["is"] == what and rank in (None, at) for at, letter in self.heard)

    def last(self, rank: int, what: str) -> dict[str, Any]:
        return [letter for at, letter in self.heard if at == rank and letter["is"] == what][-1]


@pytest.fixture
def opens(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    nodes: list[Node] = []

    def node(num_ranks: int = 2, file: Path | None = None, **options: Any) -> Node:
        found = Node({"kind": "objective", "file": str(file or write_objective(objective, tmp_path))}, num_ranks, **options)
        nodes.append(found)
        return found

    yield node
    for one in nodes:
        one.slots.close()
        one.selector.close()
    nodes.clear()
    gc.collect()  # what was not closed is told of now, and not in another test


def started(node: Node, *ranks: int) -> None:
    """Their workers are ready."""
    before = {rank: node.count("ready", rank) for rank in ranks}
    for rank in ranks:
        node.slots.start(rank)
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
    node.until(lambda: node.slots.is_loaded)
    started(node, 0, 1)
    node.slots.send(0, call(tmp_path, "0.0.0", die=0, x=0.25))
    node.until(lambda: node.count("done", 0) == 1)
    assert node.last(0, "done")["values"] == [0.5] and node.last(0, "done")["id"] == "0.0.0"
    node.slots.send(0, call(tmp_path, "1.0.0", die=1, x=0.5))
    node.until(lambda: node.count("gone", 0) == 1)
    assert node.last(0, "gone")["status"] == 7
    node.slots.signal(1, signal.SIGKILL)
    node.until(lambda: node.count("gone", 1) == 1)
    assert node.last(1, "gone")["status"] == KILLED
    started(node, 0, 1)
    node.slots.send(1, call(tmp_path, "2.0.0", die=0, x=1.0))
    node.until(lambda: node.count("done", 1) == 1)


def test_a_note_that_cannot_be_serialised_ends_no_process(opens: Callable[..., Node], tmp_path: Path) -> None:
    node = opens(1)
    node.until(lambda: node.slots.is_loaded)
    started(node, 0)
    node.slots.send(0, call(tmp_path, "0.0.0", die=2, x=0.25))
    node.until(lambda: bool(node.count("done") + node.count("failed") + node.count("gone")))
    assert not node.count("gone"), "its process ended, and nobody hears why"


def test_a_worker_that_is_killed_while_it_is_born_is_heard_of(opens: Callable[..., Node]) -> None:
    node = opens(1)
    node.until(lambda: node.slots.is_loaded)
    node.slots.start(0)
    node.slots.signal(0, signal.SIGKILL)
    node.until(lambda: node.count("gone", 0) == 1)
    started(node, 0)


def test_the_process_that_forks_may_die_and_comes_again_with_its_workers(opens: Callable[..., Node], tmp_path: Path) -> None:
    node = opens()
    node.until(lambda: node.slots.is_loaded)
    started(node, 0, 1)
    assert node.slots._fork_server is not None
    node.slots._fork_server.kill()
    node.until(lambda: node.count("gone") == 2)
    started(node, 0, 1)  # as a coordinator does at once
    node.slots.send(0, call(tmp_path, "0.0.0", die=0, x=0.25))
    node.until(lambda: node.count("done", 0) == 1)


def test_workers_that_cannot_be_forked_are_processes_of_their_own(opens: Callable[..., Node], tmp_path: Path) -> None:
    node = opens()
    node.until(lambda: node.slots.is_loaded)
    node.slots._can_fork = False  # as the process says where it has loaded TensorFlow
    started(node, 0, 1)
    node.slots.send(0, call(tmp_path, "0.0.0", die=0, x=0.25))
    node.until(lambda: node.count("done", 0) == 1)
    node.slots.signal(0, signal.SIGKILL)
    node.until(lambda: node.count("gone", 0) == 1)
    assert node.last(0, "gone")["status"] == KILLED
    started(node, 0)


def test_a_task_that_cannot_be_loaded_is_reported(opens: Callable[..., Node], tmp_path: Path) -> None:
    node = opens(file=tmp_path / "missing.cloudpickle")
    with pytest.raises((TrainingFailed, UsageError), match=r"missing\.cloudpickle"):
        node.until(lambda: node.slots.is_loaded)


def written(folder: Path, text: str) -> Path:
    """An objective of a module that nobody has imported yet."""
    (folder / "of_a_test.py").write_text(text)
    file = folder / "objective.cloudpickle"
    file.write_bytes(pickle.dumps(([str(folder)], "objective", None, b"cof_a_test\nobjective\n.")))
    return file


DIES = """
import os

os.register_at_fork(after_in_child=lambda: os._exit(3))


def objective(trial):
    return 0.0
"""


def test_a_worker_that_can_never_start_is_not_started_for_ever(opens: Callable[..., Node], tmp_path: Path) -> None:
    node = opens(1, written(tmp_path, DIES), describes_task=False)
    node.until(lambda: node.slots.is_loaded)
    with pytest.raises(TrainingFailed, match=r"the process of rank 0 on .* ended 5 times before it was ready.* exit code 3"):
        for number in range(10):
            node.slots.start(0)  # as a coordinator does
            node.until(lambda number=number: node.count("gone", 0) > number)  # type: ignore[misc]
    assert node.count("gone", 0) == 4


def test_starts_that_failed_are_forgotten_when_one_is_ready(opens: Callable[..., Node]) -> None:
    node = opens(1)
    node.until(lambda: node.slots.is_loaded)
    for number in range(7):
        started(node, 0)
        node.slots._slots[0].num_failed_starts = 4 if number % 2 else 0
        node.slots.signal(0, signal.SIGKILL)
        node.until(lambda number=number: node.count("gone", 0) > number)  # type: ignore[misc]
    for number in range(7, 13):  # those that we end while they are born do not count
        node.slots.start(0)
        node.slots.signal(0, signal.SIGKILL)
        node.until(lambda number=number: node.count("gone", 0) > number)  # type: ignore[misc]
    started(node, 0)


ON_ITS_OWN = """
import os
import sys
from pathlib import Path

sys.modules.setdefault("jax", sys)  # which is not forked
if Path(__file__).with_name("broken").exists():
    raise RuntimeError("no room for it")


def objective(trial):
    for name in ("CUDA_VISIBLE_DEVICES", "PYTORCH_NVML_BASED_CUDA_CHECK"):
        trial.set_user_attr(name, os.environ.get(name))
    return 0.0
"""


def test_separate_workers_see_their_gpus_and_no_other_process_keeps_one(
    opens: Callable[..., Node], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    node = opens(2, written(tmp_path, ON_ITS_OWN), gpus={0: ("3",), 1: ()})
    node.until(lambda: node.slots.is_loaded)
    assert node.slots._fork_server is not None and node.slots._fork_server.poll() == 0, (
        "a process that has tried out the task is left"
    )
    assert node.slots.about["task"] == "objective"
    started(node, 0, 1)
    for rank, gpus in ((0, "3"), (1, None)):
        node.slots.send(rank, call(tmp_path, f"{rank}.0.0"))
        node.until(lambda rank=rank: node.count("done", rank) == 1)  # type: ignore[misc]
        assert node.last(rank, "done")["user"] == {"CUDA_VISIBLE_DEVICES": gpus, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    node.slots.signal(0, signal.SIGKILL)
    node.until(lambda: node.count("gone", 0) == 1)
    started(node, 0)


def test_the_reason_a_process_cannot_become_a_worker_is_reported(opens: Callable[..., Node], tmp_path: Path) -> None:
    node = opens(1, written(tmp_path, ON_ITS_OWN))
    node.until(lambda: node.slots.is_loaded)
    (tmp_path / "broken").touch()
    with pytest.raises(TrainingFailed, match=r"ended 5 times before it was ready.*no room for it"):
        for number in range(10):
            node.slots.start(0)
            node.until(lambda number=number: node.count("gone", 0) > number)  # type: ignore[misc]


def test_a_worker_that_does_not_report_loads_and_may_load_again(opens: Callable[..., Node], tmp_path: Path) -> None:
    node = opens(1, describes_task=False)
    node.until(lambda: node.slots.is_loaded)
    assert node.slots.about == {}
    started(node, 0)
    assert node.slots._fork_server is not None
    node.slots._fork_server.kill()
    node.until(lambda: node.count("gone") == 1)
    started(node, 0)
    node.slots.send(0, call(tmp_path, "0.0.0", die=0, x=0.25))
    node.until(lambda: node.count("done", 0) == 1)
