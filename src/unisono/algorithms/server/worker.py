"""A worker's part of a training through a server, as a generator that yields calls to the server and receives the replies.

So the same lines run in a process of their own, in each member of a group that acts as one, and a thousand times over on a virtual
clock.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Generator
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from unisono.algorithms.base import GroupSettings, StepInfo
from unisono.algorithms.server.protocol import (
    END,
    HELLO,
    MOST_UNITS,
    PUSH,
    READY,
    SEND_STATE,
    STATE,
    TAKE_STATE,
    Report,
    read_assignment,
)
from unisono.algorithms.server.replica import Replica, VirtualWorkerState
from unisono.algorithms.server.server_algorithm import ServerAlgorithm, WorkerState
from unisono.comm.exchange.base import Numbers, Reply
from unisono.data.loader import Portion
from unisono.model.base import StreamKey


class WorkerCall(NamedTuple):
    """One call of a worker: its kind, its vector, and the numbers beside it."""

    kind: int
    vector: Tensor | None
    tail: Numbers | tuple[float, ...]
    num_units: int = 0
    """Units computed before the call; a virtual clock needs their number."""


NOTHING = Report(0, 0, 0, 0.0, 0.0, 0, 0, 0.0, 0.0)

Work = Generator[WorkerCall, Reply, None]


@dataclass
class Worker:
    """One worker of a training through a server. `run` is collective over the processes of its group, which all receive the same
    replies."""

    rule: ServerAlgorithm
    replica: Replica
    read: Callable[[int], Portion]
    """The samples of a unit."""
    settings: Callable[[int], GroupSettings]
    """A function of the server's counter."""
    seed: int
    shard: int
    """This process's place in its group."""
    out: Tensor
    """The vector to send: weights or gradient, then running statistics."""
    stop_requested: Callable[[], bool] = bool
    virtual_state: VirtualWorkerState | None = None
    """Its own part of the model, for a virtual worker, which shares the model with others."""
    most_units: int = MOST_UNITS
    """Most units of one lease."""
    num_steps: int = 0
    _report: Report = NOTHING

    def run(self) -> Work:
        """Joins, computes and calls until the server ends the training. Local between two yields."""
        replica, rule = self.replica, self.rule
        num = replica.values.numel()
        self._state = state = WorkerState(
            replica.values, replica.gradient, self.out[:num], replica.optimise, np.zeros(replica.num_tensors)
        )
        self._sums = np.zeros(replica.num_sums)
        reply = yield from self._call_server(WorkerCall(HELLO, None, (float(self._units_until_call()),)))
        if reply.kind == TAKE_STATE:
            rule.begin(state)
            self._restore(reply)
            reply = yield from self._call_server(WorkerCall(READY, None, ()))
            self._apply_reply(reply)
        else:
            self._set_weights(reply)
            rule.begin(state)
        while reply.kind != END:
            order, wanted, began = read_assignment(reply.tail), self._units_until_call(), perf_counter()
            for place, unit in enumerate(order.units):
                self._compute_unit(unit, order.step + place)
            state.cut_short = len(order.units) < wanted
            of_rule = rule.message(state, self.num_steps)
            vector = self._fill() if rule.sends_vector(state, self.num_steps) else None
            asked = perf_counter()
            self._report = self._report._replace(wanted=self._units_until_call(), num_steps=self.num_steps, work_s=asked - began)
            said = WorkerCall(PUSH, vector, self._report.numbers(self._sums, of_rule), len(order.units))
            if vector is not None:
                state.uses.fill(0)
            self._report = NOTHING
            self._sums[:] = 0
            reply = yield from self._call_server(said)
            self._report = NOTHING._replace(wait_s=perf_counter() - asked)
            self._apply_reply(reply)
        rule.end(state)
        self._store_state()

    # ---- small steps -----------------------------------------------------------------------------------------------

    def _units_until_call(self) -> int:
        """Returns how many units it computes before it next calls the server."""
        return min(self.most_units, self.rule.steps_until_call(self.num_steps))

    def _compute_unit(self, unit: int, step: int) -> None:
        """Computes the gradient of a unit, lets the rule take it, and adds its sums to the report."""
        state, rule, replica = self._state, self.rule, self.replica
        settings = self.settings(step)
        rule.before_gradient(state)
        at = StepInfo(unit, StreamKey(self.seed, unit, self.shard), {"": settings}, 0, self.stop_requested())
        portion = self.read(unit)
        stats = replica.compute(portion, at._replace(num_samples=len(portion.indices)))
        state.uses += replica.uses
        rule.on_gradient(state, settings)
        self.num_steps += 1
        said = self._report
        self._report = said._replace(
            num_stops=said.num_stops + stats.num_stops,
            num_samples=said.num_samples + stats.num_samples,
            num_not_finite=said.num_not_finite + bool(stats.num_not_finite),
        )
        if not stats.num_not_finite:
            self._report = self._report._replace(loss_sum=said.loss_sum + stats.loss_sum, weight=said.weight + stats.weight)
            self._sums += stats.metric_sums

    def _call_server(self, said: WorkerCall) -> Generator[WorkerCall, Reply, Reply]:
        """Yields the call and returns the server's reply; a server that asks for its state meanwhile gets it."""
        while True:
            self._store_state()
            reply = yield said
            if self.virtual_state is not None:
                self.replica.load_worker(self.virtual_state)
            if reply.kind != SEND_STATE:
                return reply
            said = WorkerCall(STATE, self._pack_state(), ())

    def _store_state(self) -> None:
        """Stores the model into the state of this virtual worker; does nothing in a worker with its own process."""
        if self.virtual_state is not None:
            self.replica.store_worker(self.virtual_state)

    def _fill(self) -> Tensor:
        """Returns the vector to send: what the rule has put there, followed by the running statistics."""
        self.replica.synchronise_statistics()
        self.out[self.replica.values.numel() :].copy_(self.replica.statistics)
        return self.out

    def _set_weights(self, reply: Reply) -> None:
        """Sets weights and running statistics to those of the reply."""
        assert reply.vector is not None
        num = self.replica.values.numel()
        self.replica.values.copy_(reply.vector[:num])
        self.replica.statistics.copy_(reply.vector[num:])

    def _apply_reply(self, reply: Reply) -> None:
        """Gives the rule the server's reply, and takes its running statistics if it comes with weights."""
        num = self.replica.values.numel()
        self.rule.on_reply(self._state, None if reply.vector is None else reply.vector[:num], self.num_steps)
        if reply.vector is not None and self.rule.replies_with_weights:
            self.replica.statistics.copy_(reply.vector[num:])

    def _pack_state(self) -> Tensor:
        """The worker's own state as bytes."""
        held = {
            "replica": self.replica.state(),
            "rule": dict(self._state.state),
            "num_steps": self.num_steps,
            "cut_short": self._state.cut_short,
            "uses": torch.from_numpy(self._state.uses),
        }
        packed = io.BytesIO()
        torch.save(held, packed)
        return torch.frombuffer(bytearray(packed.getbuffer()), dtype=torch.uint8)

    def _restore(self, reply: Reply) -> None:
        """Resumes with the state, saved by an earlier attempt, that the reply holds."""
        assert reply.vector is not None
        held = torch.load(io.BytesIO(reply.vector.numpy().tobytes()), weights_only=True)
        self.replica.restore(held["replica"])
        for name, value in held["rule"].items():
            self._state.state[name].copy_(value)
        self.num_steps = held["num_steps"]
        self._state.cut_short = held["cut_short"]
        self._state.uses[:] = held["uses"].numpy()
