"""Several servers that serve as one (`--servers K`).

The first one leads: it alone decides the order of calls, and all that a single server decides besides. Before it acts it sends
a command to the others, which follow with the same service on their own slices of the weights. So each of them applies the same
updates in the same order, answers its workers by itself, and the result has the same bits as with one server:

    worker                       leader                                   follower
    its slice  ----------------------------------------------------->     waits for the command
    its slice  ------------->    command: serve this worker's call  ->    apply, answer
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
from unisono.algorithms.server.slices import SliceLayout, vectors_in, with_vectors
from unisono.comm.exchange.base import Caller, Reply, Request, Server
from unisono.errors import CommError
from unisono.events import Spans
from unisono.model.torch.parameters import FlatParameters

SERVE, END, BEGIN_SAVE, END_SAVE, GIVE_VALUES, GIVE_VECTOR, OVER = range(1, 8)
"""Commands: serve the next call of a worker; end, begin or end a save; send the slice, or one of the vectors that are saved with
it; the training is over."""
ASKS = (GIVE_VALUES, GIVE_VECTOR, OVER)
"""Commands that are answered when they are done; others are answered at once, so that the leader need not wait."""
LEADER = 0
"""The leader's number among the callers of a follower; workers have the numbers after it."""


class FollowerCommands:
    """Sends the leader's commands to the followers, one at a time."""

    def __init__(self, callers: Sequence[Caller]) -> None:
        self._callers = callers
        self._is_given = False
        self.stop_requested = False
        """Whether a stop was requested of a follower."""

    def give(self, command: int, number: int = 0) -> None:
        """Local: sends a command; blocks until all followers have received the one before. They execute commands when they can."""
        self._await_replies()
        for caller in self._callers:
            caller.post(command, None, (float(number),))
        self._is_given = True

    def ask(self, command: int, number: int = 0) -> list[Tensor]:
        """Local, blocking: sends a command, waits until all followers have executed everything up to it, and returns their
        vectors."""
        self.give(command, number)
        return [reply.vector for reply in self._await_replies() if reply.vector is not None]

    def _await_replies(self) -> list[Reply]:
        """Returns each follower's reply to the last command, and notes requests to stop; [] if none is outstanding."""
        if not self._is_given:
            return []
        replies = [caller.wait_reply() for caller in self._callers]
        self._is_given = False
        self.stop_requested = self.stop_requested or any(reply.tail[0] for reply in replies)
        return replies


@dataclass
class LeadingService(Service):
    """The service of the first of several servers: it works on its own slice and makes the others do the same on theirs."""

    commands: FollowerCommands = field(kw_only=True)
    slices: SliceLayout = field(kw_only=True)
    part: FlatParameters = field(kw_only=True)
    """The parameters of the whole model, of which this server holds the first slice."""
    _gathered: list[Tensor] = field(default_factory=list, init=False)
    """For a save: whole vectors, joined from all slices."""

    def handle(self, request: Request) -> list[Applied]:
        self.commands.give(SERVE, request.caller)
        return super().handle(request)

    def end(self) -> None:
        self.commands.give(END)
        super().end()

    def begin_save(self) -> None:
        self.commands.give(BEGIN_SAVE)
        super().begin_save()

    def end_save(self) -> None:
        self.commands.give(END_SAVE)
        super().end_save()
        self._gathered = []
        self.part.set_full_state({})

    def lose(self, caller: int) -> int:
        raise CommError(f"worker {caller} is lost, and the other servers cannot be informed")

    def show(self) -> None:
        (whole,) = self.part.values.values()
        for server, values in enumerate(self.commands.ask(GIVE_VALUES), 1):
            whole[self.slices.slice_of(server)].copy_(values)

    def gather(self) -> None:
        own, of_optimizer = vectors_in(super().state()), self.part.slice_state()
        gathered = [
            self.slices.join([vector, *self.commands.ask(GIVE_VECTOR, place)])
            for place, vector in enumerate([*own, *of_optimizer.values()])
        ]
        self._gathered = gathered[: len(own)]
        self.part.set_full_state(dict(zip(of_optimizer, gathered[len(own) :], strict=True)))

    def state(self) -> dict[str, Any]:
        state = super().state()
        own = vectors_in(state)
        assert len(self._gathered) == len(own) or not self.has_all_states, "gather first"
        # Before anything is gathered a caller may ask how large the state will be.
        more = self.slices.numel - self.model.values.numel()
        return with_vectors(state, self._gathered or [vector.new_empty(vector.numel() + more) for vector in own])

    @property
    def stop_requested(self) -> bool:
        return self.commands.stop_requested

    def close(self) -> None:
        self.commands.ask(OVER)


@dataclass
class Follower:
    """One of the other servers. Local, one thread: the leader's commands and the workers' calls arrive at the same end."""

    server: Server
    service: Service
    part: FlatParameters
    stop_requested: Callable[[], bool]
    spans: Spans | None = None
    _commands: deque[tuple[int, int]] = field(default_factory=deque)
    _early: dict[int, Request] = field(default_factory=dict)
    """Calls whose turn has not come, by worker."""
    _giving: list[Tensor] = field(default_factory=list)
    """Vectors that the leader fetches for a save."""

    def run(self) -> None:
        """Blocking: serves until the leader ends the training."""
        while True:
            request = self.server.receive()
            assert request is not None
            if request.caller == LEADER:
                self._commands.append((request.kind, int(request.tail[0])))
                if request.kind not in ASKS:
                    self._tell_leader(request.kind)
            else:
                self._early[request.caller - 1] = request._replace(caller=request.caller - 1)
            while self._commands and (self._commands[0][0] != SERVE or self._commands[0][1] in self._early):
                command, number = self._commands.popleft()
                self._execute(command, number)
                if command == OVER:
                    return

    def _execute(self, command: int, number: int) -> None:
        """Executes one command of the leading server, and sends the workers the answers that come of it."""
        service, began = self.service, perf_counter_ns()
        if command == SERVE:
            service.handle(self._early.pop(number))
        elif command == END:
            service.end()
        elif command == BEGIN_SAVE:
            service.begin_save()
        elif command == END_SAVE:
            service.end_save()
        elif command == GIVE_VALUES:
            self._tell_leader(command, service.model.values)
        elif command == GIVE_VECTOR:
            if number == 0:
                self._giving = [*vectors_in(service.state()), *self.part.slice_state().values()]
            self._tell_leader(command, self._giving[number])
        else:
            self._tell_leader(command)
        for answer in service.pop_answers():
            self.server.reply(answer.caller + 1, answer.kind, answer.vector, answer.tail)
        if self.spans is not None and command == SERVE:
            self.spans.add("compute", "serve a call", began, perf_counter_ns())

    def _tell_leader(self, command: int, vector: Tensor | None = None) -> None:
        """Replies to the leading server, with a vector if given, and whether this process was asked to stop."""
        self.server.reply(LEADER, command, vector, (float(self.stop_requested()),))


def buffer_of_follower(server: Server) -> MakeBuffer:
    """Local: `Server.buffer` of a follower, with workers numbered as the leader counts them."""
    return lambda worker, numel, dtype: server.buffer(worker + 1, numel, dtype)
