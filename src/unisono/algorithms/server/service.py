"""What the server does with each call: apply its update, deal out the next batches, answer. It neither waits nor talks, so that
the same code serves real workers, a recorded order and a virtual clock.

A save changes nothing: while it gathers the states of the workers, updates are applied and replies formed as ever, and only held
back until every worker has sent its state.
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
    Order,
    Report,
    read_report,
)
from unisono.algorithms.server.server_algorithm import Push, ServerAlgorithm, ServerModel, WorkerRecord
from unisono.comm.exchange.base import Numbers, Request
from unisono.comm.exchange.plain_copy import copy_plain
from unisono.errors import CommError
from unisono.model.tail import StepStats

MakeBuffer = Callable[[int, int, torch.dtype], Tensor]
"""For a reply to this caller, of this length and type: in memory that the caller sees, where the carrier can."""


class Answer(NamedTuple):
    """A reply that is to be sent."""

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
    """The server's part of a training, call by call."""

    rule: ServerAlgorithm
    model: ServerModel
    statistics: Tensor
    """The running statistics of the server, flat; empty where the model has none."""
    ledger: Ledger
    lr: Callable[[int], float]
    """A function of the step."""
    num_sums: int
    """Of metrics, in every report."""
    make_buffer: MakeBuffer
    expected: int = 0
    """Workers that will come; until one is lost, the rule counts so many."""
    certain: int = 0
    """Workers that are part of the job, so they will come: before they have, nothing is saved or over, and no round is complete."""
    version: int = 0
    """Updates so far."""
    is_ending: bool = False
    workers: dict[int, WorkerRecord] = field(default_factory=dict)
    states: dict[int, Tensor] = field(default_factory=dict)
    """Of the workers, packed: as they came for a save, or from a checkpoint until their workers take them."""
    _arrived: dict[int, _Pushed] = field(default_factory=dict)
    """Pushes that wait for those of the others."""
    _idle: dict[int, tuple[int, Tensor | None]] = field(default_factory=dict)
    """Workers for whom there is nothing to do just now: what they want, and what they will be answered."""
    _held: dict[int, Answer] = field(default_factory=dict)
    """Replies that are ready, held back by a save."""
    _awaited: dict[int, Answer | tuple[int, Tensor | None]] = field(default_factory=dict)
    """Workers of an earlier attempt that have not come yet, with what they will be answered: as in `_held` or `_idle`."""
    _come: set[int] = field(default_factory=set)
    """Workers that have called in this attempt."""
    _asked: set[int] | None = None
    """While a save gathers states: the workers that were asked for theirs."""
    _answers: list[Answer] = field(default_factory=list)

    @property
    def step(self) -> int:
        """The number of units done."""
        return self.ledger.num_done

    @property
    def is_over(self) -> bool:
        """Whether nothing will come any more: every worker was told so."""
        return self.is_ending and not self.workers and self._are_all_here

    @property
    def _are_all_here(self) -> bool:
        return len(self._come) >= self.certain

    def take_answers(self) -> list[Answer]:
        """Local: the replies that are due by now; whoever takes them sends them."""
        answers, self._answers = self._answers, []
        return answers

    def is_of_consequence(self, request: Request) -> bool:
        """Local: whether a call changes anything: not if it only brings or asks for the state of a worker."""
        return request.kind == PUSH or (request.kind == HELLO and request.caller not in self.workers)

    def handle(self, request: Request) -> list[Applied]:
        """Local: one call. Gives the updates that were applied because of it."""
        caller, kind = request.caller, request.kind
        if kind == HELLO:
            self._come.add(caller)
            self._join(caller, int(request.tail[0]))
        elif kind == READY:
            self._take_up(caller)
        elif kind == STATE:
            assert request.vector is not None
            self.states[caller] = request.vector.clone()
        elif kind == PUSH:
            report, sums, of_rule = read_report(request.tail, self.num_sums)
            self._arrived[caller] = _Pushed(request, report, sums, of_rule, request.vector)
            if not self.rule.waits_for_all:
                return self._apply()
        else:
            raise CommError(f"worker {caller} made a call of the unknown kind {kind}")
        return self.apply_round()

    def lose(self, caller: int) -> int:
        """Local: a worker is gone. Gives how many units are dealt out again."""
        num = self.ledger.lose(caller)
        held: tuple[dict[int, Any], ...] = (self.workers, self._arrived, self._idle, self._held, self._awaited, self.states)
        for one in held:
            one.pop(caller, None)
        self.expected -= 1
        self._count()
        self._deal_to_idle()
        return num

    def apply_round(self) -> list[Applied]:
        """Local, after a call or a loss: apply the updates of a round where that was the last call it waited for."""
        is_complete = self._arrived and self._are_all_here and self._arrived.keys() >= self.ledger.leases.keys()
        return self._apply() if is_complete else []

    def end(self) -> None:
        """Local: deal out nothing any more: each worker is told to end with its next reply."""
        self.is_ending = True
        self._deal_to_idle()

    # ---- saving ----------------------------------------------------------------------------------------------------

    @property
    def can_save(self) -> bool:
        """Whether a save can begin: none is under way, and all workers are here, with what they had in an earlier attempt."""
        return self._asked is None and not self._awaited and self._are_all_here

    @property
    def awaits_workers(self) -> bool:
        """Whether workers of an earlier attempt have not taken up yet what they had."""
        return bool(self._awaited)

    @property
    def busy(self) -> set[int]:
        """Workers that will call before they are answered."""
        return self.workers.keys() - self._idle.keys() - self._arrived.keys()

    def begin_save(self) -> None:
        """Local: from now on every worker is asked for its state before it is answered."""
        self._asked = set()
        self.states.clear()
        for caller in self._idle:
            self._ask(caller)

    @property
    def has_all_states(self) -> bool:
        """Whether the state is consistent: no worker is on its way."""
        return self._asked is not None and self.states.keys() >= self.workers.keys()

    # Where there are several servers, the first has more to do here (servers.py).

    def show(self) -> None:
        """Local: put the weights of all servers into the model of this process."""

    def gather(self) -> None:
        """Local, before `state` of a consistent moment is saved: fetch what others hold of it."""

    @property
    def stop_requested(self) -> bool:
        """Whether another server was."""
        return False

    def close(self) -> None:
        """Local: after the last reply; let the others go."""

    def end_save(self) -> None:
        """Local: answer those that were held back."""
        self._asked = None
        self.states.clear()
        for answer in self._held.values():
            if self.is_ending:
                self.ledger.leases.pop(answer.caller, None)
                del self.workers[answer.caller]
                self._answers.append(answer._replace(kind=END, tail=()))
            else:
                self._answers.append(answer)
        self._held.clear()
        self._deal_to_idle()

    def state(self) -> dict[str, Any]:
        """Local: what must be kept besides the weights; tensors are not copied. The names are those of files on disk."""
        return {
            "version": self.version,
            "expected": self.expected,
            "ledger": self.ledger.state(),
            "members": {
                str(number): {
                    "version": worker.version,
                    "state": dict(worker.state),
                    "worker": self.states.get(number),
                    **self._reply_of(number),
                }
                for number, worker in self.workers.items()
            },
        }

    def restore(self, state: Mapping[str, Any], callers: Collection[int]) -> bool:
        """Local, before any call: resume with what `state` gave. False if these callers are not the ones it knew: then each begins
        with the server's weights, and what the others had in hand is dealt out again."""
        self.version = int(state["version"])
        self.ledger.restore(state["ledger"])
        known = {int(number): held for number, held in state["members"].items()}
        if sorted(known) != sorted(callers) or any(held["worker"] is None for held in known.values()):
            for number in list(self.ledger.leases):
                self.ledger.lose(number)
            return False
        self.expected = int(state["expected"])
        for number, held in known.items():
            self.workers[number] = WorkerRecord(number, int(held["version"]), dict(held["state"]))
            self.states[number] = held["worker"]
            if held["order"] is not None:
                self._awaited[number] = Answer(number, GO, held["reply"], np.array(held["order"], dtype=np.float64))
            else:
                self._awaited[number] = (int(held["wanted"]), self.model.values if held["takes_centre"] else held["reply"])
        self._count()
        return True

    # ---- small steps -----------------------------------------------------------------------------------------------

    def _join(self, caller: int, wanted: int) -> None:
        if caller in self.workers:  # of an earlier attempt: it takes its own state first, and is then READY
            self._answers.append(Answer(caller, TAKE_STATE, self.states.pop(caller), ()))
            return
        worker = self.workers[caller] = WorkerRecord(caller, self.version)
        self._count()
        self.rule.on_join(self.model, worker)
        self._offer(caller, wanted, self.model.values)
        self._deal_to_idle()

    def _count(self) -> None:
        self.model.num_workers = max(1, self.expected, len(self.workers))

    def _take_up(self, caller: int) -> None:
        answer = self._awaited.pop(caller)
        if isinstance(answer, Answer):
            self._answers.append(answer)
        else:
            self._idle[caller] = answer
            self._deal_to_idle()

    def _reply_of(self, number: int) -> dict[str, Any]:
        """What a worker that has sent its state will be answered, as it is kept."""
        answer = self._held.get(number)
        if answer is not None and answer.kind == GO:
            return {"order": [float(number) for number in answer.tail], "reply": answer.vector, "wanted": 0, "takes_centre": False}
        wanted, reply = self._idle.get(number, (1, None)) if answer is None else (1, answer.vector)
        takes_centre = reply is self.model.values
        return {"order": None, "reply": None if takes_centre else reply, "wanted": wanted, "takes_centre": takes_centre}

    def _apply(self) -> list[Applied]:
        pushed = sorted(self._arrived.values(), key=lambda one: self.ledger.leases[one.request.caller].units)
        self._arrived.clear()
        found, pushes = [], []
        for one in pushed:
            worker = self.workers[one.request.caller]
            lease = self.ledger.done(worker.number)
            staleness = self.version - worker.version
            if one.vector is not None:
                self._blend(one.vector[self.model.values.numel() :])
            vector = self.model.values[:0] if one.vector is None else one.vector.to(self.model.values.device)
            own = vector[: self.model.values.numel()]
            pushes.append(Push(worker, own, one.of_rule, one.report.weight, staleness))
            found.append(Applied(self._stats(one), one.report, lease, staleness))
        self.model.step = self.step - sum(len(one.lease.units) for one in found)
        self.model.lr = self.lr(self.model.step)
        replies = self.rule.apply_update(self.model, pushes)
        self.version += 1 if self.rule.waits_for_all else sum(one.vector is not None for one in pushed)
        for one, reply in zip(pushed, replies, strict=True):
            self._offer(one.request.caller, one.report.wanted, reply)
        self._deal_to_idle()  # a new epoch may have begun
        return found

    def _stats(self, one: _Pushed) -> StepStats:
        report = one.report
        last = self.ledger.num_done - 1
        return StepStats(
            last, report.loss_sum, report.weight, report.num_samples, report.num_stops, 0, report.num_not_finite, one.metric_sums
        )

    def _blend(self, of_worker: Tensor) -> None:
        """Running statistics are no gradients: the server's move towards a worker's by its share of the workers."""
        if of_worker.numel():
            self.statistics.lerp_(of_worker.to(self.statistics.device), 1.0 / self.model.num_workers)

    def _body(self, caller: int, values: Tensor) -> Tensor:
        num = values.numel()
        body = self.make_buffer(caller, num + self.statistics.numel(), values.dtype)
        copy_plain(body[:num], values)
        body[num:].copy_(self.statistics)
        return body

    def _offer(self, caller: int, wanted: int, reply: Tensor | None) -> None:
        """The next lease, or a place among the idle."""
        lease = None if self.is_ending else self.ledger.deal(caller, wanted)
        if lease is not None:
            self._send(caller, GO, reply, Order(self.step, lease.units).numbers())
            return
        if reply is not None and reply is not self.model.values:
            reply = reply.clone()
        self._idle[caller] = (wanted, reply)
        if self._asked is not None:
            self._ask(caller)

    def _send(self, caller: int, kind: int, reply: Tensor | None, tail: Numbers | Sequence[float]) -> None:
        """Now, or after the save that is under way."""
        body = None if reply is None else self._body(caller, reply)
        if reply is not None:
            self.workers[caller].version = self.version
        if reply is self.model.values:
            self.rule.on_pull(self.model, self.workers[caller])
        if self._asked is None:
            self._answers.append(Answer(caller, kind, body, tail))
            return
        self._held[caller] = Answer(caller, kind, None if body is None else body.clone(), tail)
        self._ask(caller)

    def _ask(self, caller: int) -> None:
        assert self._asked is not None
        if caller not in self._asked:
            self._asked.add(caller)
            self._answers.append(Answer(caller, SEND_STATE, None, ()))

    def _deal_to_idle(self) -> None:
        """Those who had nothing to do may have now; at the end they are told so."""
        if any(not isinstance(one, Answer) for one in self._awaited.values()):
            return  # those of an earlier attempt are dealt to together: the order of their return must not decide
        for caller in sorted(self._idle):
            wanted, reply = self._idle.pop(caller)
            if self.is_ending:
                self._send(caller, END, reply, ())
                if self._asked is None:
                    del self.workers[caller]
                continue
            self._offer(caller, wanted, reply)
            if caller in self._idle:
                return  # there is nothing for the others either
