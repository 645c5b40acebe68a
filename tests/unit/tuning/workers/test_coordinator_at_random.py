"""Workers that do what they like: train, fail, hang, die, with their supervisors or without. In the end every trial ended once."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.tuning.workers.coordinating import ACCURACY, KILL, Clock, FakeWorkers, Job
from unisono.files.journal import Reader
from unisono.tuning.study import store as storing
from unisono.tuning.study.study import COMPLETE, ENDED, FAILED, PRUNED
from unisono.tuning.study.trial_plan import Plan
from unisono.tuning.workers.messages import DROPPED
from unisono.tuning.workers.trial_worker import ERROR, MEMORY, PEER

EPOCHS = 4
MOST_STEPS = 60_000


@dataclass
class Process:
    """A worker."""

    said: deque[dict[str, Any]] = field(default_factory=deque)
    """What the coordinator has not heard yet."""
    command: Mapping[str, Any] | None = None
    later: deque[Mapping[str, Any]] = field(default_factory=deque)
    """What it does after that."""
    epoch: int = 0
    waits: bool = False
    stop_requested: bool = False
    hangs: bool = False
    is_alive: bool = True


class World(FakeWorkers):
    """All workers of a job. A word that nobody waits for, and an order to one who has one, are mistakes of the coordinator."""

    def __init__(self, draw: random.Random, num_ranks: int, asks: bool) -> None:
        super().__init__({})
        self.draw, self.asks = draw, asks
        self.processes: dict[int, Process] = {}
        self.saved: dict[tuple[int, int, int], int] = {}
        """Trial, fold, start -> the epoch of its checkpoint."""
        self.left: set[int] = set()
        """Ranks that are gone for good."""
        self.num_prefetched = self.num_dropped = 0
        for rank in range(num_ranks):
            self.start(rank)

    def start(self, rank: int) -> None:
        if rank not in self.left:
            known = self.processes.get(rank)
            assert known is None or not known.is_alive, f"rank {rank} has a process, and gets another"
            self.processes[rank] = Process(deque([{"is": "ready", "pid": 1}]))

    def send(self, rank: int, letter: Mapping[str, Any]) -> None:
        one = self.processes[rank]
        if not one.is_alive or rank in self.left:
            return
        if letter.get("do") == "drop":
            self.num_dropped += any(later["id"] == letter["id"] for later in one.later)
            one.later = deque(later for later in one.later if later["id"] != letter["id"])
        elif "do" in letter:
            assert len(one.later) < 2, f"rank {rank} has an order and more for later, and gets another"  # it may do a dropped one
            one.later.append(letter)
            if one.command is None:
                self._begin(one)
            else:
                self.num_prefetched += 1
        else:
            assert one.waits, f"rank {rank} gets an answer for which it did not ask"
            one.waits = False
            if DROPPED in letter:
                self._say(rank, "failed", kind=ERROR, reason="dropped")
            elif not letter["go"]:
                self._say(rank, "done", reason="pruned", metrics={"accuracy": 0.1})

    def signal(self, rank: int, signum: int) -> None:
        one = self.processes[rank]
        if one.is_alive and signum == KILL:
            self._die(rank, -KILL)
        else:
            one.stop_requested = one.is_alive and one.command is not None

    def lose(self, rank: int) -> None:
        """With its supervisor."""
        self.left.add(rank)
        self.processes[rank].is_alive = False
        self.processes[rank].said.clear()

    def act(self, rank: int) -> None:
        """A worker does something, where it can."""
        one = self.processes[rank]
        if not one.is_alive or one.command is None or one.waits or one.hangs:
            return
        chance = self.draw.random()
        others = [
            other
            for other in self.processes.values()
            if other is not one and other.command is not None and other.command["at"]["token"] == one.command["at"]["token"]
        ]
        if any(not other.is_alive for other in others) or len(others) + 1 < one.command["at"]["world_size"]:
            if self.draw.random() < 0.5:
                one.hangs = True
            else:
                self._say(rank, "failed", kind=PEER, reason="PeerLost")
        elif chance < 0.01:
            self._die(rank, self.draw.choice((-KILL, -KILL, 1)))
        elif chance < 0.02:
            self._say(rank, "failed", kind=self.draw.choice((ERROR, MEMORY)), reason="it raised")
        elif chance < 0.025:
            one.hangs = True
        elif one.stop_requested:
            self.saved[_part(one.command)] = one.epoch
            self._say(rank, "done", reason="interrupted", metrics={})
        elif one.command["at"]["global_rank"]:
            if all(other.command is None or other.epoch == EPOCHS for other in others):
                self._say(rank, "done", reason="", metrics={})
        elif one.epoch < EPOCHS:
            one.epoch += 1
            if self.draw.random() < 0.5:
                self.saved[_part(one.command)] = one.epoch
            one.said.append({"is": "epoch", "id": one.command["id"], "epoch": one.epoch, "metrics": {"accuracy": chance}})
            one.waits = self.asks
        elif not others or any(other.command is None for other in others) or self.draw.random() < 0.5:
            self._say(rank, "done", reason="", metrics={"accuracy": chance})

    def _begin(self, one: Process) -> None:
        command = one.later.popleft() if one.later else None
        one.command, one.waits, one.hangs, one.stop_requested = command, False, False, False
        one.epoch = 0 if command is None else self.saved.get(_part(command), 0)

    def _say(self, rank: int, what: str, **words: Any) -> None:
        one = self.processes[rank]
        assert one.command is not None
        one.said.append({"is": what, "id": one.command["id"], "epochs": one.epoch, "took_s": 1.0, **words})
        self._begin(one)

    def _die(self, rank: int, status: int) -> None:
        one = self.processes[rank]
        one.is_alive = False
        one.said.append({"is": "gone", "status": status, "no_memory": status == -KILL and self.draw.random() < 0.1})


def _part(command: Mapping[str, Any]) -> tuple[int, int, int]:
    return command["number"], command["fold"], command["repeat"]


PLANS: Mapping[str, tuple[Plan, int]] = {
    "blocks of one": (Plan([ACCURACY], epochs=EPOCHS, attempts=3, limit_s=300.0), 4),
    "folds one by one": (Plan([ACCURACY], folds=3, repeats=2, epochs=EPOCHS, limit_s=300.0), 3),
    "folds side by side, pruned": (Plan([ACCURACY], folds=3, parallel=2, epochs=EPOCHS, prune="asha", limit_s=600.0), 2),
    "workers": (Plan([ACCURACY], workers=2, epochs=EPOCHS, prune="median", limit_s=300.0), 3),
    "folds and workers": (Plan([ACCURACY], folds=2, parallel=2, workers=2, epochs=EPOCHS, prune="asha", limit_s=600.0), 3),
    "parts compared": (Plan([ACCURACY], folds=6, parallel=2, epochs=EPOCHS, prune="wilcoxon", limit_s=600.0), 2),
}


@dataclass
class Run:
    """One job among its workers."""

    folder: Path
    clock: Clock
    plan: Plan
    num_blocks: int
    draw: random.Random
    num_trials: int = 8
    name: str = "job"
    pace: float = 1.0
    """Of the clock."""

    def __post_init__(self) -> None:
        asks = self.plan.prune in ("asha", "median")
        self.world = World(self.draw, self.num_blocks * self.plan.workers * self.plan.parallel, asks)
        self.job = Job(
            self.folder,
            self.clock,
            self.plan,
            self.num_blocks,
            self.num_trials,
            name=self.name,
            workers=self.world,
            prefetches=True,
        )

    def step(self) -> None:
        rank = self.draw.choice(list(self.world.processes))
        said = self.world.processes[rank].said
        self.job.search.hopeless = self.draw.random() < 0.05
        self.job.proposals.is_held_up = self.draw.random() < 0.1
        if said and self.draw.random() < 0.5:
            self.job.coordinator.on_message(rank, said.popleft())
        elif self.draw.random() < 0.8:
            self.world.act(rank)
        else:
            self.clock.now += self.draw.choice((0.0, 0.2, 2.0)) * self.pace
            self.job.coordinator.tick()

    def lose(self, rank: int) -> None:
        self.world.lose(rank)
        self.job.coordinator.on_ranks_lost([rank])

    def until_all_ended(self) -> None:
        for _ in range(MOST_STEPS):
            if not self.job.store.num_open():
                return
            self.step()
        pytest.fail(f"trials have no result after {MOST_STEPS} steps: {self.state()}")

    def until_idle(self) -> None:
        for _ in range(MOST_STEPS):
            if self.job.coordinator.is_idle:
                return
            self.step()
        pytest.fail(f"blocks have not stopped after {MOST_STEPS} steps: {self.state()}")

    def state(self) -> str:
        blocks = [(block.ranks, block.running) for block in self.job.coordinator.formation.blocks.values()]
        return f"open {self.job.store.num_open()}, blocks {blocks}, workers {self.world.processes}"


def check(folder: Path, run: Run) -> None:
    """Every trial ended once, and the search knows the same."""
    records = [record.value for record in Reader(folder / "journal").read(is_over=True)]
    endings = [record for record in records if record["event"] == ENDED]
    assert sorted(record["trial"] for record in endings) == list(range(run.num_trials))
    assert all(record["state"] != COMPLETE or len(record["details"]["parts"]) == run.plan.num_parts for record in endings)
    points = {record["trial"]: record["values"] for record in records if record["event"] == "asked"}
    assert len(points) == run.num_trials == sum(record["event"] == "asked" for record in records)
    found = Counter(one.state.name for one in run.job.search._study.get_trials(deepcopy=False))
    told = Counter(record["state"] for record in endings)
    assert (found["COMPLETE"], found["PRUNED"], found["RUNNING"]) == (told[COMPLETE], told[PRUNED], 0)
    assert told[COMPLETE] + told[PRUNED] + told[FAILED] == run.num_trials
    assert run.job.coordinator.is_idle


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(storing, "monotonic", found)
    monkeypatch.setattr("unisono.files.journal.os.fsync", lambda _: None)  # thousands of them, and nobody pulls the plug
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("plan", PLANS)
def test_every_trial_ends_once(tmp_path: Path, clock: Clock, plan: str, seed: int) -> None:
    run = Run(tmp_path, clock, *PLANS[plan], random.Random(f"{plan} {seed}"))
    run.until_all_ended()
    check(tmp_path, run)
    run.job.store.record_leave("done")


@pytest.mark.parametrize("prune", ["none", "asha"])
@pytest.mark.parametrize("seed", range(6))
def test_short_trials_that_blocks_know_of_before_end_once(tmp_path: Path, clock: Clock, seed: int, prune: str) -> None:
    draw, num_prefetched = random.Random(f"short {seed}"), 0
    for attempt in range(4):
        run = Run(tmp_path, clock, Plan([ACCURACY], epochs=EPOCHS, attempts=3, prune=prune), 4, draw, 40, f"job {attempt}", 0.01)
        for _ in range(draw.randrange(200, 600)):
            run.step()
        if attempt < 3:
            run.job.coordinator.stop("the time is over")
            run.until_idle()
            run.job.store.record_leave("the time is over")
        else:
            run.job.coordinator._plan = replace(run.job.coordinator._plan, limit_s=60.0)  # some hang
            run.pace = 1.0
            run.until_all_ended()
        num_prefetched += run.world.num_prefetched
    check(tmp_path, run)
    assert num_prefetched > 5
    run.job.store.record_leave("done")


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("plan", PLANS)
def test_a_stopped_trial_is_resumed_and_ends_once(tmp_path: Path, clock: Clock, plan: str, seed: int) -> None:
    draw = random.Random(f"stop {plan} {seed}")
    for attempt in range(3):
        run = Run(tmp_path, clock, *PLANS[plan], draw, name=f"job {attempt}")
        for _ in range(draw.randrange(50, 400)):
            run.step()
        run.job.coordinator.stop("time")
        run.until_idle()
        run.job.store.record_leave("time")
    run = Run(tmp_path, clock, *PLANS[plan], draw, name="the last job")
    run.until_all_ended()
    check(tmp_path, run)
    run.job.store.record_leave("done")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("plan", PLANS)
def test_lost_supervisors_cost_no_trial(tmp_path: Path, clock: Clock, plan: str, seed: int) -> None:
    draw = random.Random(f"lose {plan} {seed}")
    run = Run(tmp_path, clock, *PLANS[plan], draw)
    size = run.job.layout.block_size
    ranks = list(run.world.processes)
    draw.shuffle(ranks)
    for rank in ranks[: (run.num_blocks - 1) * size]:
        for _ in range(draw.randrange(80)):
            run.step()
        run.lose(rank)
    assert run.job.coordinator.formation.blocks, "what is left is a block"
    run.until_all_ended()
    check(tmp_path, run)
    run.job.store.record_leave("done")
