"""A coordinator with all that is around it, for its tests: workers, who say what a test tells them to, and a clock."""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unisono.task.task import Range
from unisono.tuning.search.search import Proposal, Search
from unisono.tuning.search.space import Dimension, Space
from unisono.tuning.study.store import PendingTrial, Store
from unisono.tuning.study.study import Result, Trial
from unisono.tuning.study.trial_plan import Objective, Part, Plan
from unisono.tuning.workers.block_layout import layout_of
from unisono.tuning.workers.coordinator import Coordinator
from unisono.tuning.workers.trial_worker import ERROR

LINE = Space([Dimension("x", Range(-1.0, 1.0))])
ACCURACY = Objective("accuracy", True)
KILL, TERMINATE = int(signal.SIGKILL), int(signal.SIGTERM)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class FakeWorkers:
    """Notes what it is told."""

    def __init__(self, nodes: Mapping[int, str]) -> None:
        self.sent: dict[int, list[dict[str, Any]]] = defaultdict(list)
        self.signals: list[tuple[int, int]] = []
        self.started: list[int] = []
        self.nodes = nodes

    def start(self, rank: int) -> None:
        self.started.append(rank)

    def send(self, rank: int, message: Mapping[str, Any]) -> None:
        self.sent[rank].append(dict(message))

    def signal(self, rank: int, signum: int) -> None:
        self.signals.append((rank, int(signum)))

    def place_of(self, rank: int) -> Mapping[str, Any]:
        node = self.nodes.get(rank, "n0")
        return {"node": node, "address": f"address of {node}", "gpus": (rank,), "our_gpus": (), "threads": 2}


class FakeObserver:
    def __init__(self) -> None:
        self.ended: list[int] = []
        self.said: list[str] = []

    def trial_ended(self, trial: Trial) -> None:
        self.ended.append(trial.number)

    def say(self, text: str) -> None:
        self.said.append(text)


class ImmediateProposals:
    """Proposals that are made when they are asked for, unless they are held up."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self.is_held_up = False
        self.renewed: list[float | None] = []

    def next_proposal(self, trial_s: float | None) -> Proposal | None:  # noqa: ARG002
        return None if self.is_held_up else self.search.propose()

    def on_result(self, result_every_s: float | None) -> None:
        self.renewed.append(result_every_s)

    def close(self) -> None:
        raise AssertionError("a coordinator does not close what it was given")


@dataclass
class Scripted(Search):
    """A search that thinks hopeless what it is told to."""

    hopeless: bool = False

    def should_prune(self, number: int) -> bool:  # noqa: ARG002
        return self.hopeless


class Job:
    """A coordinator with all that is around it, and the words of its workers."""

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        plan: Plan,
        num_blocks: int = 1,
        num_trials: int = 4,
        space: Space | None = LINE,
        nodes: Mapping[int, str] | None = None,
        name: str = "job",
        workers: FakeWorkers | None = None,
        search: str = "random",
        prefetches: bool = False,
    ) -> None:
        """Without `tells_ahead` a block always asks, as it does where a trial has several parts."""
        self.clock = clock
        self.layout = layout_of(num_blocks * plan.workers * plan.parallel, plan.workers, plan.parallel)
        self.workers, self.observer = workers or FakeWorkers(nodes or {}), FakeObserver()
        self.store = Store(folder, {}, num_trials, name, clock=clock)
        self.store.refresh()
        directions = [one.higher_is_better for one in plan.objectives]
        self.search = Scripted(space, search, directions, 7, plan.prune, plan.num_steps, num_trials)
        for trial in self.store.study.trials.values():
            self.search.add_known_trial(trial)
        self.store.record_join({})
        self.proposals = ImmediateProposals(self.search)
        self.coordinator = Coordinator(
            plan, self.layout, self.workers, self.store, self.search, self.proposals, self.observer, train_command, clock
        )
        self.coordinator._prefetch._is_used &= prefetches

    def ready(self, *ranks: int) -> None:
        for rank in ranks or range(self.layout.num_ranks):
            self.coordinator.on_message(rank, {"is": "ready", "pid": 1})

    def command_of(self, rank: int) -> dict[str, Any]:
        """What the worker trains, or was last told to."""
        orders = [letter for letter in self.workers.sent[rank] if letter.get("do") == "train"]
        block = self.coordinator.formation.block_of(rank)
        running = None if block is None else block.running
        return next((one for one in orders if running is not None and one["id"] == running.wave_id), orders[-1])

    def answers(self, rank: int) -> list[bool]:
        return [letter["go"] for letter in self.workers.sent[rank] if "go" in letter]

    def say(self, rank: int, what: str, /, **words: Any) -> None:
        self.coordinator.on_message(rank, {"is": what, "id": self.command_of(rank)["id"], **words})

    def done(self, *ranks: int, value: float = 0.5, reason: str = "", **words: Any) -> None:
        for rank in ranks or (0,):
            told = {"reason": reason, "metrics": {"accuracy": value}, "epochs": 3, "took_s": 1.5, **words}
            self.say(rank, "done", **told)

    def epoch(self, rank: int, epoch: int, value: float = 0.5) -> None:
        self.say(rank, "epoch", epoch=epoch, metrics={"accuracy": value})

    def failed(self, rank: int, kind: str = ERROR, reason: str = "it raised") -> None:
        self.say(rank, "failed", kind=kind, reason=reason, took_s=0.5)

    def gone(self, *ranks: int, status: int = -KILL, **words: Any) -> None:
        for rank in ranks:
            self.coordinator.on_message(rank, {"is": "gone", "rank": rank, "status": status, **words})

    def again(self, *ranks: int, status: int = -KILL) -> None:
        """Their processes end and others take their place."""
        self.gone(*ranks, status=status)
        self.ready(*ranks)

    def trial(self, number: int) -> Trial:
        self.store.refresh()
        return self.store.study.trials[number]

    def result(self, number: int) -> Result:
        found = self.trial(number).result
        assert found is not None, f"trial {number} is {self.trial(number).state}"
        return found

    def begun(self, rank: int = 0) -> list[tuple[int, int]]:
        """Trial and attempt of all that a worker was told to train, waves of one counted once."""
        found = [tuple(map(int, letter["id"].split(".")[:2])) for letter in self.workers.sent[rank] if letter.get("do") == "train"]
        return [(number, attempt) for number, attempt in dict.fromkeys(found)]


def train_command(pending: PendingTrial, values: Mapping[str, Any], part: Part, folder: Path) -> dict[str, Any]:
    return {
        "do": "train",
        "number": pending.number,
        "attempt": pending.attempt,
        "values": dict(values),
        "fold": part.fold,
        "repeat": part.repeat,
        "folder": folder,
    }
