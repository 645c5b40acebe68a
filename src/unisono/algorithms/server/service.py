"""What the server does with each call: apply its update, assign the next batches, answer. It neither waits nor communicates, so
the same code serves real workers, a recorded order and a virtual clock.

A save changes nothing: while it gathers the states of the workers, updates are applied and replies formed as ever, and only held
back until every worker has sent its state. Virtual workers send theirs at once, so that no call has to wait (simulated.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unisono.algorithms.server.ledger import Lease, Ledger
from unisono.algorithms.server.protocol import (
    END,
    GO,
    HELLO,
    PUSH,
    READY,
    SEND_STATE,
    STATE,
    TAKE_STATE,
    Report,
    WorkAssignment,
    read_report,
)
from unisono.algorithms.server.server_algorithm import Push, ServerAlgorithm, ServerModel, WorkerRecord
from unisono.comm.exchange.base import Numbers, Request
from unisono.comm.exchange.plain_copy import copy_plain
from unisono.errors import CommError
from unisono.model.tail import StepStats

MakeBuffer = Callable[[int, int, torch.dtype], Tensor]
"""Makes a buffer for a reply to a caller, of a length and type: in memory that the caller sees, where the carrier can."""


class Answer(NamedTuple):
    """A reply that is ready to be sent."""

    caller: int
    kind: int
    vector: Tensor | None
    tail: Numbers | Sequence[float]


class Applied(NamedTuple):
    """One lease whose update is in the server's weights."""

    stats: StepStats
    report: Report
    lease: Lease
    staleness: int


class _Pushed(NamedTuple):
    request: Request
    report: Report
    metric_sums: Numbers
    of_rule: Numbers
    vector: Tensor | None


@dataclass
class Service:
    """Handles the calls of workers one by one: applies their updates and assigns their next batches."""

    rule: ServerAlgorithm
    model: ServerModel
    statistics: Tensor
    """The running statistics of the server, flat; empty where the model has none."""
    ledger: Ledger
    lr: Callable[[int], float]
    """A function of the step."""
    num_sums: int
    """Number of sums of metrics in every report."""
    make_buffer: MakeBuffer
    expected: int = 0
    """Number of workers that will join; until one is lost, the rule counts so many."""
    certain: int = 0
    """Number of workers that are part of the job, so they will join: before that nothing is saved or over, and no round is
    complete."""
    simulation: Callable[[], dict[str, Any]] | None = None
    """Where workers are virtual, on a clock of their own: returns what a checkpoint holds of the clock and the calls under way."""
    version: int = 0
    """Updates so far."""
    is_ending: bool = False
    workers: dict[int, WorkerRecord] = field(default_factory=dict)
    states: dict[int, Tensor] = field(default_factory=dict)
    """Packed states of the workers: as they came for a save, or from a checkpoint until their workers take them."""
    _arrived: dict[int, _Pushed] = field(default_factory=dict)
    """Pushes that wait for those of the others."""
    _idle: dict[int, tuple[int, Tensor | None]] = field(default_factory=dict)
    """Workers without work at the moment: how many units they want, and the reply that they will get."""
    _held_replies: dict[int, Answer] = field(default_factory=dict)
    """Replies that are ready, held back by a save."""
    _expected_to_rejoin: dict[int, Answer | tuple[int, Tensor | None] | None] = field(default_factory=dict)
    """Workers of an earlier attempt that have not rejoined yet, with the reply that they will get, as in `_held_replies` or
    `_idle`; None where their call is still under way."""
    _joined: set[int] = field(default_factory=set)
    """Workers that have joined in this attempt."""
    _asked: set[int] | None = None
    """While a save gathers states: the workers that were asked for theirs."""
    _answers: list[Answer] = field(default_factory=list)

    @property
    def step(self) -> int:
        """Number of units done."""
        return self.ledger.num_done

    @property
    def is_over(self) -> bool:
        """Whether the training is over: every worker was told to end."""
        return self.is_ending and not self.workers and self._all_joined

    @property
    def _all_joined(self) -> bool:
        """Whether as many workers have joined as are certain to come."""
        return len(self._joined) >= self.certain

    def serve_simulation(self, state: Callable[[], dict[str, Any]]) -> None:
        """Local: the workers are virtual; `state` returns what belongs to a checkpoint of their clock and calls."""
        self.simulation = state

    def pop_answers(self) -> list[Answer]:
        """Local: returns the replies that are due and forgets them; the caller sends them."""
        answers, self._answers = self._answers, []
        return answers

    def changes_state(self, request: Request) -> bool:
        """Local: whether a call changes the state of the training: not if it only brings or requests the state of a worker."""
        return request.kind == PUSH or (request.kind == HELLO and request.caller not in self.workers)

    def handle(self, request: Request) -> list[Applied]:
        """Local: handles one call. Returns the updates that were applied because of it."""
        caller, kind = request.caller, request.kind
        if kind == HELLO:
            self._joined.add(caller)
            self._add_worker(caller, int(request.tail[0]))
        elif kind == READY:
            self._complete_rejoin(caller)
        elif kind == STATE:
            assert request.vector is not None
            self.states[caller] = request.vector.clone()
        elif kind == PUSH:
            report, sums, of_rule = read_report(request.tail, self.num_sums)
            self._arrived[caller] = _Pushed(request, report, sums, of_rule, request.vector)
            if not self.rule.waits_for_all:
                return self._apply_arrived()
        else:
            raise CommError(f"worker {caller} made a call of the unknown kind {kind}")
        return self.apply_round()

    def lose(self, caller: int) -> int:
        """Local: removes a worker that is gone. Returns how many units are assigned again."""
        num = self.ledger.lose(caller)
        held: tuple[dict[int, Any], ...] = (
            self.workers,
            self._arrived,
            self._idle,
            self._held_replies,
            self._expected_to_rejoin,
            self.states,
        )
        for one in held:
            one.pop(caller, None)
        self.expected -= 1
        self._count_workers()
        self._deal_to_idle()
        return num

    def apply_round(self) -> list[Applied]:
        """Local, after a call or a loss: applies the updates of a round if it waits for no further call."""
        is_complete = self._arrived and self._all_joined and self._arrived.keys() >= self.ledger.leases.keys()
        return self._apply_arrived() if is_complete else []

    def end(self) -> None:
        """Local: assigns no more work: each worker is told to end with its next reply."""
        self.is_ending = True
        self._deal_to_idle()

    # ---- saving ----------------------------------------------------------------------------------------------------

    @property
    def can_save(self) -> bool:
        """Whether a save can begin: none is under way, and all workers have joined, with the state that they had in an earlier
        attempt; in a simulation no round has begun."""
        in_round = self.simulation is not None and bool(self._arrived)
        return self._asked is None and not self._expected_to_rejoin and self._all_joined and not in_round

    @property
    def awaits_workers(self) -> bool:
        """Whether workers of an earlier attempt have not rejoined yet."""
        return bool(self._expected_to_rejoin)

    @property
    def busy(self) -> set[int]:
        """Workers that will call again before they are answered."""
        return self.workers.keys() - self._idle.keys() - self._arrived.keys()

    def begin_save(self) -> None:
        """Local: begins a save: every worker is asked for its state before it is answered, a virtual one at once."""
        self._asked = set()
        self.states.clear()
        for caller in self._idle if self.simulation is None else self.workers:
            self._ask_for_state(caller)

    @property
    def has_all_states(self) -> bool:
        """Whether the states of all workers have come, so that the state is consistent."""
        return self._asked is not None and self.states.keys() >= self.workers.keys()

    # Where there are several servers, the first has more to do here (servers.py).

    def show(self) -> None:
        """Local: copies the weights of all servers into the model of this process."""

    def gather(self) -> None:
        """Local, before a consistent `state` is saved: fetches the parts of it that other servers hold."""

    @property
    def stop_requested(self) -> bool:
        """Whether a stop was requested of another server."""
        return False

    def close(self) -> None:
        """Local, after the last reply: ends the other servers."""

    def end_save(self) -> None:
        """Local: ends a save: the replies that were held back become due."""
        self._asked = None
        self.states.clear()
        for answer in self._held_replies.values():
            if self.is_ending:
                self.ledger.leases.pop(answer.caller, None)
                del self.workers[answer.caller]
                self._answers.append(answer._replace(kind=END, tail=()))
            else:
                self._answers.append(answer)
        self._held_replies.clear()
        self._deal_to_idle()

    def state(self) -> dict[str, Any]:
        """Local: what a checkpoint must hold besides the weights; tensors are not copied. The names are those of files on disk."""
        return {
            "version": self.version,
            "expected": self.expected,
            "ledger": self.ledger.state(),
            "simulation": None if self.simulation is None else self.simulation(),
            "members": {
                str(number): {
                    "version": worker.version,
                    "keeps_back": worker.keeps_back,
                    "state": dict(worker.state),
                    "worker": self.states.get(number),
                    **self._reply_of(number),
                }
                for number, worker in self.workers.items()
            },
        }

    def restore(self, state: Mapping[str, Any], callers: Collection[int]) -> bool:
        """Local, before any call: resumes with what `state` gave. False if these callers are not the ones of that state: then each
        begins with the server's weights, and the leases of the others are assigned again."""
        self.version = int(state["version"])
        self.ledger.restore(state["ledger"])
        known = {int(number): held for number, held in state["members"].items()}
        if sorted(known) != sorted(callers) or any(held["worker"] is None for held in known.values()):
            for number in list(self.ledger.leases):
                self.ledger.lose(number)
            return False
        self.expected = int(state["expected"])
        for number, held in known.items():
            self.workers[number] = WorkerRecord(number, int(held["version"]), bool(held.get("keeps_back")), dict(held["state"]))
            self.states[number] = held["worker"]
            if held["order"] is not None:
                self._expected_to_rejoin[number] = Answer(number, GO, held["reply"], np.array(held["order"], dtype=np.float64))
            elif number in self.ledger.leases:
                self._expected_to_rejoin[number] = None
            else:
                self._expected_to_rejoin[number] = (
                    int(held["wanted"]),
                    self.model.values if held["takes_centre"] else held["reply"],
                )
        self._count_workers()
        return True

    # ---- small steps -----------------------------------------------------------------------------------------------

    def _add_worker(self, caller: int, wanted: int) -> None:
        """Adds a worker that joins, and gives it the weights; one of an earlier attempt first gets its own state."""
        if caller in self.workers:  # of an earlier attempt: it takes its own state first, and is then READY
            self._answers.append(Answer(caller, TAKE_STATE, self.states.pop(caller), ()))
            return
        worker = self.workers[caller] = WorkerRecord(caller, self.version)
        self._count_workers()
        self.rule.on_join(self.model, worker)
        self._offer(caller, wanted, self.model.values)
        self._deal_to_idle()

    def _count_workers(self) -> None:
        """Sets the number of workers in the model: those that are there, or that are expected if these are more."""
        self.model.num_workers = max(1, self.expected, len(self.workers))

    def _complete_rejoin(self, caller: int) -> None:
        """Gives a worker of an earlier attempt, which has its state again, the answer or the work that it waited for."""
        answer = self._expected_to_rejoin.pop(caller)
        if isinstance(answer, Answer):
            self._answers.append(answer)
        elif answer is not None:
            self._idle[caller] = answer
            self._deal_to_idle()

    def _reply_of(self, number: int) -> dict[str, Any]:
        """The reply to a worker that has sent its state, as a checkpoint holds it."""
        answer = self._held_replies.get(number)
        if answer is not None and answer.kind == GO:
            return {"order": [float(number) for number in answer.tail], "reply": answer.vector, "wanted": 0, "takes_centre": False}
        wanted, reply = self._idle.get(number, (1, None)) if answer is None else (1, answer.vector)
        is_server_weights = reply is self.model.values
        return {"order": None, "reply": None if is_server_weights else reply, "wanted": wanted, "takes_centre": is_server_weights}

    def _apply_arrived(self) -> list[Applied]:
        """Lets the rule update the model with the pushes that have arrived; returns what was applied, in order of the work."""
        pushed = sorted(self._arrived.values(), key=lambda one: self.ledger.leases[one.request.caller].units)
        self._arrived.clear()
        found, pushes = [], []
        for one in pushed:
            worker = self.workers[one.request.caller]
            lease = self.ledger.done(worker.number)
            worker.keeps_back = one.vector is None and bool(lease.units)  # it is asked once
            staleness = self.version - worker.version
            if one.vector is not None and not one.report.num_not_finite:
                self._blend(one.vector[self.model.values.numel() :])
            vector = self.model.values[:0] if one.vector is None else one.vector.to(self.model.values.device)
            own = vector[: self.model.values.numel()]
            pushes.append(Push(worker, own, one.of_rule, one.report.weight, staleness))
            found.append(Applied(self._stats_of_push(one), one.report, lease, staleness))
        num_units = sum(len(one.lease.units) for one in found)
        self.model.step = self.step - max(1, num_units)  # what comes without units at the end belongs to the last of them
        self.model.lr = self.lr(self.model.step)
        replies = self.rule.apply_update(self.model, pushes)
        self.version += 1 if self.rule.waits_for_all else sum(one.vector is not None for one in pushed)
        for one, reply in zip(pushed, replies, strict=True):
            self._offer(one.request.caller, one.report.wanted, reply)
        self._deal_to_idle()  # a new epoch may have begun
        return found

    def _stats_of_push(self, one: _Pushed) -> StepStats:
        """Returns what a worker reported with its push as the statistics of a step."""
        report = one.report
        last = self.ledger.num_done - 1
        return StepStats(
            last, report.loss_sum, report.weight, report.num_samples, report.num_stops, 0, report.num_not_finite, one.metric_sums
        )

    def _blend(self, of_worker: Tensor) -> None:
        """Moves the server's running statistics towards a worker's, by that worker's share of all workers."""
        if of_worker.numel():
            self.statistics.lerp_(of_worker.to(self.statistics.device), 1.0 / self.model.num_workers)

    def _reply_body(self, caller: int, values: Tensor) -> Tensor:
        """Returns the vector of a reply: the values, and behind them the running statistics."""
        num = values.numel()
        body = self.make_buffer(caller, num + self.statistics.numel(), values.dtype)
        copy_plain(body[:num], values)
        body[num:].copy_(self.statistics)
        return body

    def _offer(self, caller: int, wanted: int, reply: Tensor | None) -> None:
        """Sends a worker its next lease, or puts it among the idle ones."""
        lease = self._next_lease(caller, wanted)
        if lease is not None:
            self._send(caller, GO, reply, WorkAssignment(self.step, lease.units).numbers())
            return
        if reply is not None and reply is not self.model.values:
            reply = reply.clone()
        self._idle[caller] = (wanted, reply)
        if self._asked is not None:
            self._ask_for_state(caller)

    def _next_lease(self, caller: int, wanted: int) -> Lease | None:
        """Assigns the next units to a worker, or at the end none, so that it sends what it keeps back; None if it has to wait."""
        if self.is_ending:
            return None
        lease = self.ledger.deal(caller, wanted)
        if lease is None and self.workers[caller].keeps_back and self.ledger.takes_remains:
            return self.ledger.deal_nothing(caller)
        return lease

    def _send(self, caller: int, kind: int, reply: Tensor | None, tail: Numbers | Sequence[float]) -> None:
        """Makes a reply due now, or after the save that is under way."""
        body = None if reply is None else self._reply_body(caller, reply)
        if reply is not None:
            self.workers[caller].version = self.version
        if reply is self.model.values:
            self.rule.on_pull(self.model, self.workers[caller])
        if self._asked is None:
            self._answers.append(Answer(caller, kind, body, tail))
            return
        self._held_replies[caller] = Answer(caller, kind, None if body is None else body.clone(), tail)
        self._ask_for_state(caller)

    def _ask_for_state(self, caller: int) -> None:
        """Asks a worker for its state, for a checkpoint; only once."""
        assert self._asked is not None
        if caller not in self._asked:
            self._asked.add(caller)
            self._answers.append(Answer(caller, SEND_STATE, None, ()))

    def _deal_to_idle(self) -> None:
        """Assigns work to idle workers, where there is some again; at the end tells them to end."""
        if any(not isinstance(one, Answer | None) for one in self._expected_to_rejoin.values()):
            return  # workers of an earlier attempt get their work together: the order of their return must not decide
        for caller in sorted(self._idle):
            wanted, reply = self._idle[caller]
            if self.is_ending:
                del self._idle[caller]
                self._send(caller, END, reply, ())
                if self._asked is None:
                    del self.workers[caller]
            elif (lease := self._next_lease(caller, wanted)) is not None:
                del self._idle[caller]
                self._send(caller, GO, reply, WorkAssignment(self.step, lease.units).numbers())
