"""Plays the steps of a plan on a communicator and compares every result with numpy's."""

from __future__ import annotations

import hashlib
import random
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.soak.plan import Close, Collective, Message, Split, Step, Wait, groups_of, scenes
from unisono.comm.base import ANY, SUM, Communicator
from unisono.comm.driver import Work
from unisono.errors import CommError
from unisono.testing.checks.expected import Array, array_of, expect, expect_equal, numpy_reduce, parts_of

LARGEST_VALUE = 22
"""Small whole numbers: the sums of a few ranks are exact in every type."""
LONGEST_PAUSE_S = 0.003
NUM_REMEMBERED = 12


@dataclass
class Started:
    """A call or message under way, and what to look at once it is over."""

    group: int
    work: Work[Any]
    check: Callable[[Any], None]
    step: Step


@dataclass
class AnyReceives:
    """Receives of any source in the order of their start, which is the order in which they take messages."""

    num_taken: Counter[int] = field(default_factory=Counter)
    open: deque[list[Any]] = field(default_factory=deque)
    """[buffer, the source once it is known]."""


class Broken(Exception):
    """Something was not as numpy has it, or a call failed: in which step of which seed."""

    def __init__(self, text: str, cause: BaseException, members: tuple[int, ...]) -> None:
        super().__init__(text)
        self.cause = cause
        self.members = members
        """Of the group in which it happened, as ranks of the job."""


class Player:
    """One rank's part in the plan of a seed."""

    def __init__(self, world: Communicator, seed: int) -> None:
        self._seed = seed
        self._world = world
        self._groups = {0: world}
        self._members = {0: list(range(world.size))}
        """Of all groups, also of those without us."""
        self._own = random.Random(f"{seed} on {world.rank}")
        """What this rank decides for itself: when it comes, and in which order it waits."""
        self._started: list[Started] = []
        self._num_sent: Counter[tuple[int, int, int]] = Counter()
        self._num_named: Counter[tuple[int, int, int]] = Counter()
        self._any_source: dict[tuple[int, int], AnyReceives] = {}
        self._last: deque[str] = deque(maxlen=NUM_REMEMBERED)
        self._acting = world

    def play(self, num_scenes: int) -> None:
        """Collective, blocking: the first scenes of the plan, and the end of all that was started."""
        for position, scene in enumerate(islice(scenes(self._seed, self._world.size), num_scenes)):
            for step in scene:
                self._guarded(f"scene {position}: {step}", partial(self._step, step))
        self._guarded("the end", self._finish)

    def _guarded(self, what: str, act: Callable[[], None]) -> None:
        self._last.append(what)
        try:
            act()
        except (AssertionError, CommError) as error:
            before = "\n  ".join(self._last)
            notes = "\n".join(getattr(error, "__notes__", ()))
            place = f"seed {self._seed}, rank {self._world.rank} of {self._world.size}, group {self._acting.name}"
            text = f"{type(error).__name__} at {what}\n({place})\n{error}\n{notes}\nthe last steps were:\n  {before}"
            raise Broken(text, error, self._acting.members) from error

    def _step(self, step: Step) -> None:
        if self._own.random() < 0.1:
            time.sleep(self._own.uniform(0, LONGEST_PAUSE_S))  # so that now this one is late and now that
        if isinstance(step, Wait):
            chosen = [one for one in self._started if self._own.random() < step.share]
            self._own.shuffle(chosen)
            for one in chosen:
                self._end(one)
            return
        if isinstance(step, Split):
            self._split(step)
            return
        comm = self._groups.get(step.group)
        if isinstance(step, Close):
            self._close(step.group)
        elif comm is not None:
            self._acting = comm
            self._collective(comm, step) if isinstance(step, Collective) else self._message(comm, step)

    def _finish(self) -> None:
        for group in sorted(self._groups)[::-1]:
            self._close(group)
        expect(not any(held.open for held in self._any_source.values()), "receives are left without a message")

    def _end(self, one: Started) -> None:
        self._acting = self._groups[one.group]
        self._started.remove(one)
        try:
            found = one.work.wait()
            one.check(found)
        except (AssertionError, CommError) as error:
            error.add_note(f"which was started in {one.step}")
            raise
        expect(one.work.done(), "a call that was waited for is not done")

    def _close(self, group: int) -> None:
        """Ours is closed when our part is over, whatever the others still do; the world belongs to the caller."""
        if group in self._groups:
            for one in [one for one in self._started if one.group == group]:
                self._end(one)
            if group != 0:
                self._groups.pop(group).close()

    def _split(self, step: Split) -> None:
        new = groups_of(step, self._members[step.group])
        self._members.update(new)
        parent = self._groups.get(step.group)
        if parent is None:
            return
        self._acting = parent
        child = parent.split(step.colors[parent.rank], step.keys[parent.rank])
        mine = [(number, members) for number, members in new.items() if self._world.rank in members]
        expect((child is None) == (not mine), f"split gave {child} where {mine} was expected")
        if child is not None:
            (number, members) = mine[0]
            place = (child.members, child.rank)
            expect(place == (tuple(members), members.index(self._world.rank)), f"split gave {place}, expected {members}")
            self._groups[number] = child

    # ---- collectives ---------------------------------------------------------------------------------------------------

    def _collective(self, comm: Communicator, step: Collective) -> None:
        if step.kind == "barrier":
            comm.barrier()
        elif step.kind == "objects":
            answers = comm.allgather_object((step.number, comm.rank))
            expect(answers == [(step.number, r) for r in range(comm.size)], f"allgather_object gave {answers}")
        elif step.kind == "noise":
            self._noise(comm, step)
        else:
            start, call, arguments, check = getattr(self, f"_{step.kind}")(comm, step)
            if step.started:
                self._started.append(Started(step.group, start(*arguments), lambda _: check(), step))
            else:
                call(*arguments)
                check()

    def _allreduce(self, comm: Communicator, step: Collective) -> Any:
        bufs = self._list(comm, step)

        def check() -> None:
            for i, (numel, buf) in enumerate(zip(step.counts, bufs, strict=True)):
                wanted = numpy_reduce(step.op, [self._values(step, r, numel, i) for r in range(comm.size)])
                expect_equal(buf, wanted, f"allreduce, buffer {i}")

        return comm.start_allreduce, comm.allreduce, (bufs if len(bufs) > 1 else bufs[0], step.op), check

    def _broadcast(self, comm: Communicator, step: Collective) -> Any:
        bufs = self._list(comm, step)

        def check() -> None:
            for i, (numel, buf) in enumerate(zip(step.counts, bufs, strict=True)):
                expect_equal(buf, self._values(step, step.root, numel, i), f"broadcast, buffer {i}")

        return comm.start_broadcast, comm.broadcast, (bufs, step.root), check

    def _allgather(self, comm: Communicator, step: Collective) -> Any:
        buf = self._tensor(comm, step, self._values(step, comm.rank, step.counts[comm.rank]))
        out = self._tensor(comm, step, np.full(sum(step.counts), 99))

        def check() -> None:
            wanted = [self._values(step, r, numel) for r, numel in enumerate(step.counts)]
            expect_equal(out, np.concatenate(wanted), "allgather")

        return comm.start_allgather, comm.allgather, (out, buf, list(step.counts)), check

    def _reduce_scatter(self, comm: Communicator, step: Collective) -> Any:
        total = sum(step.counts)
        buf = self._tensor(comm, step, self._values(step, comm.rank, total))
        out = self._tensor(comm, step, np.full(step.counts[comm.rank], 99))

        def check() -> None:
            wanted = numpy_reduce(step.op, [self._values(step, r, total) for r in range(comm.size)])
            expect_equal(out, wanted[parts_of(step.counts)[comm.rank]], "reduce_scatter")
            expect_equal(buf, self._values(step, comm.rank, total), "the input of a reduce_scatter afterwards")

        return comm.start_reduce_scatter, comm.reduce_scatter, (out, buf, list(step.counts), step.op), check

    def _alltoall(self, comm: Communicator, step: Collective) -> Any:
        table = [list(step.counts[r:] + step.counts[:r]) for r in range(comm.size)]
        sent, received = table[comm.rank], [row[comm.rank] for row in table]
        buf = self._tensor(comm, step, self._values(step, comm.rank, sum(sent)))
        out = self._tensor(comm, step, np.full(sum(received), 99))

        def check() -> None:
            parts = [self._values(step, r, sum(row))[parts_of(row)[comm.rank]] for r, row in enumerate(table)]
            expect_equal(out, np.concatenate(parts), "alltoall")

        return comm.start_alltoall, comm.alltoall, (out, buf, received, sent), check

    def _noise(self, comm: Communicator, step: Collective) -> None:
        """Sums that must be rounded: near enough, and to the last bit the same on all members."""
        (dtype,), (numel,) = step.dtypes, step.counts
        drawn = [np.random.default_rng([self._seed, step.number, r]).standard_normal(numel) for r in range(comm.size)]
        values = [array_of(torch.from_numpy(one).to(dtype)) for one in drawn]
        buf = self._tensor(comm, step, values[comm.rank])
        comm.allreduce(buf, SUM)
        bound = comm.size * torch.finfo(dtype).eps * sum(np.abs(one) for one in values)
        error = np.abs(array_of(buf) - sum(values))
        expect(bool((error <= bound).all()), f"a sum of noise is off by {error.max() if numel else 0:g}")
        digests = comm.allgather_object(hashlib.sha256(buf.view(torch.uint8).numpy().tobytes()).hexdigest())
        expect(len(set(digests)) == 1, "members hold different bits after an allreduce")

    # ---- messages ------------------------------------------------------------------------------------------------------

    def _message(self, comm: Communicator, step: Message) -> None:
        if step.is_send and comm.rank == step.source:
            key = (step.group, step.dest, step.tag)
            buf = self._placed(comm, self._content(step, step.source, self._num_sent[key]), step.dtype, step.mapped)
            self._num_sent[key] += 1
            # The buffer may be forgotten before the message is gone: the call holds it.
            self._await(step, comm.start_send(buf, step.dest, step.tag), lambda _: None)
        elif not step.is_send and comm.rank == step.dest:
            buf = self._placed(comm, np.full(step.numel, 99), step.dtype, step.mapped)
            work = comm.start_recv(buf, step.source, step.tag)
            self._await(step, work, self._any_check(step, buf) if step.source == ANY else self._named_check(step, buf))

    def _await(self, step: Message, work: Work[Any], check: Callable[[Any], None]) -> None:
        if step.blocking:
            check(work.wait())
        else:
            self._started.append(Started(step.group, work, check, step))

    def _named_check(self, step: Message, buf: Tensor) -> Callable[[Any], None]:
        key = (step.group, step.source, step.tag)
        number = self._num_named[key]
        self._num_named[key] += 1

        def check(envelope: Any) -> None:
            expect((envelope.source, envelope.tag) == (step.source, step.tag), f"the receive of {step} took {envelope}")
            expect_equal(buf, self._content(step, step.source, number), f"message {number} of {step.source}")

        return check

    def _any_check(self, step: Message, buf: Tensor) -> Callable[[Any], None]:
        held = self._any_source.setdefault((step.group, step.tag), AnyReceives())
        entry: list[Any] = [buf, None]
        held.open.append(entry)

        def check(envelope: Any) -> None:
            expect(envelope.tag == step.tag, f"the receive of {step} took {envelope}")
            entry[1] = envelope.source
            while held.open and held.open[0][1] is not None:
                first, source = held.open.popleft()
                number = held.num_taken[source]
                held.num_taken[source] += 1
                expect_equal(first, self._content(step, source, number), f"message {number} of {source}, received from any")

        return check

    # ---- values --------------------------------------------------------------------------------------------------------

    def _list(self, comm: Communicator, step: Collective) -> list[Tensor]:
        mapped = step.mapped[comm.rank]
        return [
            self._placed(comm, self._values(step, comm.rank, numel, i), dtype, mapped, step.offset)
            for i, (numel, dtype) in enumerate(zip(step.counts, step.dtypes, strict=True))
        ]

    def _tensor(self, comm: Communicator, step: Collective, values: Array) -> Tensor:
        return self._placed(comm, values, step.dtypes[0], step.mapped[comm.rank], step.offset)

    def _placed(self, comm: Communicator, values: Array, dtype: torch.dtype, mapped: bool, offset: int = 0) -> Tensor:
        shape = (len(values) + offset,)
        whole = comm.empty(shape, dtype) if mapped else torch.empty(shape, dtype=dtype)
        return whole[offset:].copy_(torch.from_numpy(np.ascontiguousarray(values)))

    def _values(self, step: Collective, rank: int, numel: int, position: int = 0) -> Array:
        return self._drawn(numel, 0, step.number, rank, position)

    def _content(self, step: Message, source: int, number: int) -> Array:
        return self._drawn(step.numel, 1, step.group, source, step.dest, step.tag, number)

    def _drawn(self, numel: int, *place: int) -> Array:
        return np.random.default_rng([self._seed, *place]).integers(0, LARGEST_VALUE + 1, numel)
