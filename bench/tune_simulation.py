"""A study on a virtual clock: the real coordinator, search, store and journal; only the blocks and the waiting are made up.

The coordinator is one server: a round of letters takes on the virtual clock what it takes in reality, letters that come meanwhile
wait in line, and a trial begins at the moment at which its letter is sent. Proposals are made by a second server beside it; or by
the same one, turn by turn, as by a thread that never lets go of Python's lock. Waiting for trials takes no time at all.
"""

from __future__ import annotations

import heapq
import json
import math
import random
import select
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, cast
from unittest.mock import patch

from bench.ranks.tune_unisono import Timed
from unisono.task.task import Range
from unisono.tuning.search.prefetch import Prefetcher
from unisono.tuning.search.search import Proposal, Search
from unisono.tuning.search.space import Dimension, Space
from unisono.tuning.study.store import READ_EVERY_S, PendingTrial, Store, new_job
from unisono.tuning.study.study import Trial
from unisono.tuning.study.trial_plan import Objective, Part, Plan
from unisono.tuning.tune_job import SWITCH_S, TICK_S
from unisono.tuning.workers.block_layout import Layout
from unisono.tuning.workers.coordinator import Coordinator
from unisono.tuning.workers.messages import Message

PLACE: Mapping[str, Any] = {"node": "", "address": "127.0.0.1", "gpus": (), "our_gpus": (), "threads": 1}
SPACE = Space(
    (
        Dimension("x", Range(-1.0, 1.0)),
        Dimension("rate", Range(1e-5, 1e-1, log=True)),
        Dimension("width", Range(1, 64), is_integer=True),
    )
)
"""Three settings, as in the measurements of overhead."""
MOST_QUIET = 300
"""Rounds in which nothing comes and nothing is made, after which nothing will."""


class StandsStill(Exception):
    """A study that will never end; says where it stands."""


def hills(values: Mapping[str, Any]) -> float:
    """Pure: a smooth function of the three settings."""
    return float((values["x"] - 0.3) ** 2 + (math.log10(values["rate"]) + 3) ** 2 + abs(values["width"] - 20) / 20)


@dataclass(frozen=True)
class Case:
    """What is simulated."""

    num_blocks: int
    num_trials: int
    search: str = "tpe"
    seed: int = 0
    mean_s: float = 60.0
    """Of a trial."""
    sigma: float = 0.5
    """Of the logarithm of its duration."""
    shares_lock: bool = False
    """Whether proposals are made by the same server that answers blocks."""
    space: Space = SPACE
    value: Callable[[Mapping[str, Any]], float] = hills

    def duration_s(self, number: int) -> float:
        """Pure: of a trial; the same whoever runs it."""
        drawn = random.Random(f"{self.seed} {number}").gauss(0.0, self.sigma)
        return self.mean_s * math.exp(drawn - self.sigma**2 / 2)


class Clock:
    """Virtual seconds. It runs with real time inside `runs_from`, and stands still outside of it and inside `stands`."""

    def __init__(self) -> None:
        self.at = 0.0
        self._began: float | None = None

    def __call__(self) -> float:
        return self.at if self._began is None else self.at + perf_counter() - self._began

    @contextmanager
    def runs_from(self, at: float) -> Iterator[None]:
        self.at, self._began = at, perf_counter()
        try:
            yield
        finally:
            self.at, self._began = self(), None

    @contextmanager
    def stands(self) -> Iterator[None]:
        was_running, self.at, self._began = self._began is not None, self(), None
        try:
            yield
        finally:
            self._began = perf_counter() if was_running else None


class RealClock(Clock):
    """Seconds since it was made, whatever goes on."""

    def __init__(self) -> None:
        super().__init__()
        self._began = perf_counter()

    @contextmanager
    def stands(self) -> Iterator[None]:
        yield


@dataclass
class Blocks:
    """A crew whose trials take virtual time and are worth what a function says."""

    case: Case
    clock: Clock
    coming: list[tuple[float, int, bytes]] = field(default_factory=list)
    """When each letter comes, from whom, and what it says."""
    spans: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    """Rank -> when its trials began and ended."""
    ended: list[tuple[float, int, float]] = field(default_factory=list)
    """When each trial ended, its number and what it was worth."""

    def start(self, rank: int) -> None:
        """Nobody dies here."""

    def signal(self, rank: int, signum: int) -> None:
        """Nobody is ended here."""

    def place_of(self, rank: int) -> Mapping[str, Any]:  # noqa: ARG002 - as a crew has it
        return PLACE

    def letters(self, until: float) -> Iterator[tuple[int, bytes]]:
        """Those that have come by then, from whom and what they say."""
        while self.coming and self.coming[0][0] <= until:
            _, rank, text = heapq.heappop(self.coming)
            yield rank, text

    def send(self, rank: int, letter: Message) -> None:
        if letter["do"] == "drop":
            self._drop(rank, letter["id"])
            return
        text = json.dumps(letter, allow_nan=True).encode()  # as the real one does
        with self.clock.stands():
            told, before = json.loads(text), self.spans.get(rank)
            began = max(self.clock(), before[-1][1]) if before else self.clock()  # it may be told what comes next
            took_s, value = self.case.duration_s(told["number"]), self.case.value(told["values"])
            answer = {"is": "done", "id": told["id"], "reason": "", "values": [value], "took_s": took_s}
            heapq.heappush(self.coming, (began + took_s, rank, json.dumps(answer).encode()))
            self.spans.setdefault(rank, []).append((began, began + took_s))
            self.ended.append((began + took_s, told["number"], value))

    def _drop(self, rank: int, name: str) -> None:
        """What was told ahead is not begun."""
        with self.clock.stands():
            self.coming = [one for one in self.coming if json.loads(one[2]).get("id") != name]
            heapq.heapify(self.coming)
            self.spans[rank].pop()
            self.ended = [one for one in self.ended if one[1] != int(name.partition(".")[0])]


class Prepared:
    """A search for an `Ahead`, whose next proposal was made before; the clock by which that is timed goes on when it is taken."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._next: tuple[Proposal | None, float] | None = None
        self._elapsed_s = 0.0
        self.made_s: list[float] = []
        """How long each took."""

    def prepare(self) -> float:
        """Local, blocking: make one; gives how long that took."""
        began = perf_counter()
        found = self._search.propose()
        self._next = (found, perf_counter() - began)
        return self._next[1]

    def timer(self) -> float:
        return self._elapsed_s

    def propose(self) -> Proposal | None:
        assert self._next is not None
        (found, took_s), self._next = self._next, None
        self._elapsed_s += took_s
        self.made_s.append(took_s)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._search, name)  # all else is that of the search


class Counting(Prefetcher):
    """The real one, which counts how often it was asked and had an answer."""

    num_asked = num_ready = 0

    def next_proposal(self, trial_s: float | None) -> Proposal | None:
        found = super().next_proposal(trial_s)
        self.num_asked += 1
        self.num_ready += found is not None
        return found


class Stepped(Counting):
    """Proposals ahead of demand by the rules of `Ahead`, one after the other in virtual time instead of by a thread."""

    def __init__(self, prepared: Prepared, depth: int, clock: Clock, shares_lock: bool) -> None:
        self._prepared, self._clock, self._shares_lock = prepared, clock, shares_lock
        self._version_of_next = 0
        self.done_at = math.inf
        """When the one that is being made will be there."""
        self.is_woken = False
        super().__init__(cast(Search, prepared), depth, self._woken)

    def _run(self) -> None:
        """The thread has nothing to do."""

    def _woken(self) -> None:
        self.is_woken = True

    def next_proposal(self, trial_s: float | None) -> Proposal | None:
        with self._clock.stands():
            self.catch_up(self._clock())
        found = super().next_proposal(trial_s)
        with self._clock.stands():
            self._go_on(self._clock())
        return found

    def on_result(self, result_every_s: float | None) -> None:
        with self._clock.stands():
            self.catch_up(self._clock())
        super().on_result(result_every_s)
        with self._clock.stands():
            self._go_on(self._clock())

    def catch_up(self, until: float) -> None:
        """Local: all that is made by then is there, and the next is being made where one is wanted."""
        while self.done_at <= until:
            at, self.done_at = self.done_at, math.inf
            self._make(self._version_of_next)
            self._wake()
            self._go_on(at)

    def begin(self, at: float) -> None:
        """Local: make the next where one is wanted."""
        if self.done_at == math.inf and not self._is_closed and self._has_work():
            self._version_of_next = self._version
            self._withdraw_old()
            self.done_at = at + self._prepared.prepare()

    def _go_on(self, at: float) -> None:
        if not self._shares_lock:
            self.begin(at)


class Quiet:
    """A watcher that shows nothing."""

    def trial_ended(self, trial: Trial) -> None: ...

    def say(self, text: str) -> None: ...


def ordered(pending: PendingTrial, values: Mapping[str, Any], part: Part, folder: Path) -> dict[str, Any]:
    """Pure: what a worker is told, as `unisono tune` tells it."""
    return {
        "do": "train",
        "number": pending.number,
        "values": dict(values),
        "fold": part.fold,
        "repeat": part.repeat,
        "out": str(folder / "fold-0"),
        "output": str(folder / "output.txt"),
        "asks": False,
        "options": {},
    }


@dataclass(frozen=True)
class Outcome:
    """What a simulated study was like, in virtual seconds."""

    spans: Mapping[int, list[tuple[float, float]]]
    """Block -> when its trials began and ended."""
    ended: list[tuple[float, int, float]]
    """When each trial ended, its number and what it was worth, in that order."""
    rounds_s: list[float]
    """How long each round of the coordinator took."""
    proposals_s: list[float]
    """How long each proposal took."""
    num_asked: int
    num_ready: int
    """How often a proposal was asked for, and how often one was there."""
    real_s: float


def made(case: Case) -> Search:
    """Local: the search of a study."""
    return Search(case.space, case.search, [False], case.seed, num_trials=case.num_trials)


def _begun(blocks: Blocks, folder: Path, search: Search, proposals: Counting) -> tuple[Store, Coordinator]:
    """Local: a study in which all blocks are ready."""
    case = blocks.case
    store = Store(folder, {}, case.num_trials, new_job("bench"), read_every_s=READ_EVERY_S)
    plan, layout = Plan([Objective("value", False)]), Layout(case.num_blocks, 1)
    coordinator = Coordinator(plan, layout, blocks, store, search, proposals, Quiet(), ordered, blocks.clock)
    store.record_join({"num_blocks": case.num_blocks})
    ready = json.dumps({"is": "ready", "pid": 0}).encode()
    blocks.coming = [(0.0, rank, ready) for rank in range(case.num_blocks)]
    return store, coordinator


def simulate(case: Case, folder: Path) -> Outcome:
    """Local, blocking: a whole study, with its journal in an empty folder. Raises `StandsStill`."""
    began, clock = perf_counter(), Clock()
    search = made(case)
    blocks, prepared = Blocks(case, clock), Prepared(search)
    with patch("unisono.tuning.study.store.monotonic", clock), patch("unisono.tuning.search.prefetch.perf_counter", prepared.timer):
        proposals = Stepped(prepared, case.num_blocks, clock, case.shares_lock)
        store, coordinator = _begun(blocks, folder, search, proposals)
        durations = _go_round(case, coordinator, blocks, proposals, store, clock)
        proposals.close()
        store.record_leave("done")
    return Outcome(
        blocks.spans,
        sorted(blocks.ended),
        durations,
        prepared.made_s,
        proposals.num_asked,
        proposals.num_ready,
        perf_counter() - began,
    )


def _go_round(case: Case, coordinator: Coordinator, blocks: Blocks, proposals: Stepped, store: Store, clock: Clock) -> list[float]:
    """The loop of a job; gives how long each round took."""
    proposals.begin(0.0)
    now, durations, num_quiet = 0.0, list[float](), 0
    while num_open := store.num_open():
        if case.shares_lock:
            proposals.begin(now)
            now = now if math.isinf(proposals.done_at) else proposals.done_at  # nobody else does anything meanwhile
        comes = blocks.coming[0][0] if blocks.coming else math.inf
        news = now if proposals.is_woken else min(comes, proposals.done_at)
        num_quiet = num_quiet + 1 if math.isinf(news) else 0
        if num_quiet > MOST_QUIET:
            raise StandsStill(f"it stands still with {num_open} of {case.num_trials} trials open: blocks wait, and nothing is made")
        start = max(now, min(news, now + coordinator.max_wait_s(TICK_S)))
        proposals.catch_up(start)
        proposals.is_woken = False
        letters = list(blocks.letters(start))
        with clock.runs_from(start):
            for rank, text in letters:
                coordinator.on_message(rank, json.loads(text))
            coordinator.tick()
            store.num_open()
        now = clock.at
        durations.append(now - start)
    return durations


def in_real_time(case: Case, folder: Path) -> Outcome:
    """Local, blocking: the same study with the real thread that makes proposals, and waiting that takes its time."""
    clock, wake, woken = RealClock(), *socket.socketpair()
    search = made(case)
    timed, blocks, durations = Timed(search), Blocks(case, clock), list[float]()
    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    with wake, woken:
        woken.setblocking(False)
        proposals = Counting(cast(Search, timed), case.num_blocks, partial(wake.sendall, b"1"))
        try:
            store, coordinator = _begun(blocks, folder, search, proposals)
            while store.num_open():
                wait_s = coordinator.max_wait_s(min(TICK_S, max(0.0, blocks.coming[0][0] - clock())) if blocks.coming else TICK_S)
                if select.select([woken], [], [], wait_s)[0]:
                    woken.recv(4096)
                start = clock()
                for rank, text in blocks.letters(start):
                    coordinator.on_message(rank, json.loads(text))
                coordinator.tick()
                durations.append(clock() - start)
        finally:
            proposals.close()
            sys.setswitchinterval(switch_s)
        store.record_leave("done")
    made_s = [end - begin for begin, end in timed.made]
    return Outcome(blocks.spans, sorted(blocks.ended), durations, made_s, proposals.num_asked, proposals.num_ready, clock())
