"""Several servers that serve as one (`--servers K`).

The first one leads: it alone decides the order of calls, and all that a single server decides besides. Before it acts it gives
the order to the others, which follow with the same service on their own slices of the weights. So each of them applies the same
updates in the same order, answers its workers by itself, and the result has the same bits as with one server:

    worker                       leader                                   follower
    its slice  ----------------------------------------------------->     waits for the order
    its slice  ------------->    order: the next call is this worker's -> apply, answer
                                 apply, answer
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

from torch import Tensor

from unisono.algorithms.server.service import Applied, MakeBuffer, Service
from unisono.algorithms.server.slices import Cut, vectors_in, with_vectors
from unisono.comm.exchange.base import Caller, Reply, Request, Server
from unisono.errors import CommError
from unisono.events import Spans
from unisono.model.torch.parameters import FlatParameters

SERVE, END, BEGIN_SAVE, END_SAVE, GIVE_VALUES, GIVE_VECTOR, OVER = range(1, 8)
"""Orders: serve the next call of a worker; what a service can be told; give the slice, or one vector of those that are saved with
it; it is over."""
ASKS = (GIVE_VALUES, GIVE_VECTOR, OVER)
"""Orders that are answered when they are done; others at once, so that the leader need not wait."""
LEADER = 0
"""Its number among the callers of a follower; its workers come after it."""


class Orders:
    """The leader's end towards the followers: one order at a time."""

    def __init__(self, callers: Sequence[Caller]) -> None:
        self._callers = callers
        self._is_given = False
        self.stop_requested = False
        """Whether a stop was requested of a follower."""

    def give(self, order: int, number: int = 0) -> None:
        """Local, blocking until all followers have heard the one before; they do them when they can."""
        self._heard()
        for caller in self._callers:
            caller.post(order, None, (float(number),))
        self._is_given = True

    def ask(self, order: int, number: int = 0) -> list[Tensor]:
        """Local, blocking: until all followers have done everything up to this."""
        self.give(order, number)
        return [reply.vector for reply in self._heard() if reply.vector is not None]

    def _heard(self) -> list[Reply]:
        if not self._is_given:
            return []
        replies = [caller.wait_reply() for caller in self._callers]
        self._is_given = False
        self.stop_requested = self.stop_requested or any(reply.tail[0] for reply in replies)
        return replies


@dataclass
class LeadingService(Service):
    """The service of the first of several servers: on its own slice, and the others do as it does."""

    orders: Orders = field(kw_only=True)
    cut: Cut = field(kw_only=True)
    part: FlatParameters = field(kw_only=True)
    """Of the whole model, of which this server holds the first slice."""
    _gathered: list[Tensor] = field(default_factory=list, init=False)
    """For a save: vectors of all slices together."""

    def handle(self, request: Request) -> list[Applied]:
        self.orders.give(SERVE, request.caller)
        return super().handle(request)

    def end(self) -> None:
        self.orders.give(END)
        super().end()

    def begin_save(self) -> None:
        self.orders.give(BEGIN_SAVE)
        super().begin_save()

    def end_save(self) -> None:
        self.orders.give(END_SAVE)
        super().end_save()
        self._gathered = []
        self.part.set_full_state({})

    def lose(self, caller: int) -> int:
        raise CommError(f"worker {caller} is lost, and the other servers cannot be told so")

    def show(self) -> None:
        (whole,) = self.part.values.values()
        for server, values in enumerate(self.orders.ask(GIVE_VALUES), 1):
            whole[self.cut.where(server)].copy_(values)

    def gather(self) -> None:
        own, of_optimizer = vectors_in(super().state()), self.part.slice_state()
        gathered = [
            self.cut.joined([vector, *self.orders.ask(GIVE_VECTOR, place)])
            for place, vector in enumerate([*own, *of_optimizer.values()])
        ]
        self._gathered = gathered[: len(own)]
        self.part.set_full_state(dict(zip(of_optimizer, gathered[len(own) :], strict=True)))

    def state(self) -> dict[str, Any]:
        state = super().state()
        own = vectors_in(state)
        assert len(self._gathered) == len(own) or not self.has_all_states, "gather first"
        # Before anything was gathered somebody may ask how much it will be.
        more = self.cut.numel - self.model.values.numel()
        return with_vectors(state, self._gathered or [vector.new_empty(vector.numel() + more) for vector in own])

    @property
    def stop_requested(self) -> bool:
        return self.orders.stop_requested

    def close(self) -> None:
        self.orders.ask(OVER)


@dataclass
class Follower:
    """One of the other servers. Local, one thread: the leader's orders and the workers' calls come in at the same end."""

    server: Server
    service: Service
    part: FlatParameters
    stop_requested: Callable[[], bool]
    spans: Spans | None = None
    _orders: deque[tuple[int, int]] = field(default_factory=deque)
    _early: dict[int, Request] = field(default_factory=dict)
    """Calls whose turn has not come, by worker."""
    _giving: list[Tensor] = field(default_factory=list)
    """What the leader fetches for a save."""

    def run(self) -> None:
        """Blocking: until the leader says that it is over."""
        while True:
            request = self.server.receive()
            assert request is not None
            if request.caller == LEADER:
                self._orders.append((request.kind, int(request.tail[0])))
                if request.kind not in ASKS:
                    self._tell_leader(request.kind)
            else:
                self._early[request.caller - 1] = request._replace(caller=request.caller - 1)
            while self._orders and (self._orders[0][0] != SERVE or self._orders[0][1] in self._early):
                order, number = self._orders.popleft()
                self._obey(order, number)
                if order == OVER:
                    return

    def _obey(self, order: int, number: int) -> None:
        service, began = self.service, perf_counter_ns()
        if order == SERVE:
            service.handle(self._early.pop(number))
        elif order == END:
            service.end()
        elif order == BEGIN_SAVE:
            service.begin_save()
        elif order == END_SAVE:
            service.end_save()
        elif order == GIVE_VALUES:
            self._tell_leader(order, service.model.values)
        elif order == GIVE_VECTOR:
            if number == 0:
                self._giving = [*vectors_in(service.state()), *self.part.slice_state().values()]
            self._tell_leader(order, self._giving[number])
        else:
            self._tell_leader(order)
        for answer in service.take_answers():
            self.server.reply(answer.caller + 1, answer.kind, answer.vector, answer.tail)
        if self.spans is not None and order == SERVE:
            self.spans.add("compute", "serve a call", began, perf_counter_ns())

    def _tell_leader(self, order: int, vector: Tensor | None = None) -> None:
        self.server.reply(LEADER, order, vector, (float(self.stop_requested()),))


def buffer_of_follower(server: Server) -> MakeBuffer:
    """Local: as `Server.room`, for workers as the leader counts them."""
    return lambda worker, numel, dtype: server.buffer(worker + 1, numel, dtype)
