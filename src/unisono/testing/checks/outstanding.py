"""Checks of many messages under way at once: received in another order than they were sent, with other calls in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from unisono.comm.base import ANY, Communicator
from unisono.comm.driver import Work
from unisono.testing.checks.expected import Array, contribution, expect, expect_equal, tensor_of

NUM_MESSAGES = 40
"""More than twice as many as an engine has places for."""
SHORT, LONG = 6, 10_000
"""Elements. An engine may send a short message off before anybody asks for it; a long one waits for its receiver."""
MIXTURES = ((SHORT,), (LONG,), (SHORT, 1_500, LONG))
"""Lengths of messages, in turn."""


def check_outstanding_messages_in_reverse_order(comm: Communicator) -> None:
    """Many messages to the next rank, short and long, are received in reverse order of their tags."""
    for lengths in MIXTURES:
        sends = _start_sends(comm, lengths)
        _receive_reversed(comm, lengths)
        _wait_for(sends)


def check_outstanding_messages_with_collectives_between(comm: Communicator) -> None:
    """All messages are started before a collective, received around others, and waited for after the last; and all this on the
    whole group, on a part of it, and on both at once."""
    part = comm.split(comm.rank % 2)
    assert part is not None
    for groups in ((comm,), (part,), (comm, part)):
        for lengths in MIXTURES:
            sends = [send for group in groups for send in _start_sends(group, lengths)]
            _meet(comm)
            for group in groups:
                _receive_reversed(group, lengths, lambda: _meet(comm))
                _meet(part)
            _wait_for(sends)
    part.close()


def check_outstanding_messages_in_both_directions(comm: Communicator) -> None:
    """Every rank writes to every rank before it reads: first the later half of named sources, then the earlier of any source."""
    ranks, half = range(comm.size), NUM_MESSAGES // 2
    for numel in (SHORT, LONG):
        sends = [
            comm.start_send(tensor_of(comm, _values(comm.rank, i, numel), torch.float32), r, tag=i // half)
            for i in range(NUM_MESSAGES)
            for r in ranks
        ]
        for r in reversed(ranks):
            for i in range(half, NUM_MESSAGES):
                buf = torch.zeros(numel, device=comm.device)
                comm.recv(buf, r, tag=1)
                expect_equal(buf, _values(r, i, numel), f"message {i} of {r} among many")
        num_seen = [0] * comm.size
        for _ in range(comm.size * half):
            buf = torch.zeros(numel, device=comm.device)
            source = comm.recv(buf, ANY, tag=0).source
            expect_equal(buf, _values(source, num_seen[source], numel), f"message {num_seen[source]} of {source} among many")
            num_seen[source] += 1
        _wait_for(sends)
        comm.barrier()  # a receive from any source must not meet messages of the next length


def check_started_receives_progress_while_their_rank_waits(comm: Communicator) -> None:
    """Rank 0 sends, waits until it has got rid of it, and only then joins the call in which the receivers wait."""
    part, copy = comm.split(comm.rank % 2), comm.duplicate()
    assert part is not None
    numpy_reduce = torch.zeros(100, device=comm.device)
    joins: Sequence[tuple[str, Callable[[], object]]] = (
        ("a barrier", comm.barrier),
        ("a started allreduce", lambda: comm.start_allreduce(numpy_reduce).wait()),
        ("an exchange of objects", lambda: comm.allgather_object(comm.rank)),
        ("a split", lambda: comm.split(None)),
        ("a barrier of another group", copy.barrier),
        ("a message of another group", lambda: _pass_round(copy)),
    )
    for numel in (LONG, SHORT):
        for where, join in joins:
            for group in (comm, part):
                _send_then_join(group, numel, where, join)
    for group in (part, copy):
        group.close()


def _send_then_join(group: Communicator, numel: int, where: str, join: Callable[[], object]) -> None:
    """Sends from the first of the group to each of the others."""
    num_messages = NUM_MESSAGES // 2
    if group.rank == 0:
        for i in range(num_messages):
            for r in range(1, group.size):
                group.send(tensor_of(group, _values(0, i, numel), torch.float32), r, tag=3)
        join()
        return
    bufs = [torch.zeros(numel, device=group.device) for _ in range(num_messages)]
    receives = [group.start_recv(buf, 0, tag=3) for buf in bufs]
    join()
    for i, (buf, receive) in enumerate(zip(bufs, receives, strict=True)):
        receive.wait()
        expect_equal(buf, _values(0, i, numel), f"message {i} of {numel} elements to a rank that waits in {where}")


def _pass_round(comm: Communicator) -> None:
    """Passes a message round all ranks, from rank 0."""
    token = torch.zeros(1, device=comm.device)
    if comm.size == 1:
        return
    if comm.rank > 0:
        comm.recv(token, comm.rank - 1)
    comm.send(token + 1, (comm.rank + 1) % comm.size)
    if comm.rank == 0:
        comm.recv(token, comm.size - 1)
        expect(float(token) == comm.size, f"a message passed through {float(token)} ranks of {comm.size}")


def _start_sends(comm: Communicator, lengths: Sequence[int]) -> list[Work[None]]:
    """Starts all messages to the next rank, with tags 0, 1, ...; returns what is to be waited for."""
    following = (comm.rank + 1) % comm.size
    return [
        comm.start_send(tensor_of(comm, _values(comm.rank, i, numel), torch.float32, mapped=i % 2 == 0), following, tag=i)
        for i, numel in enumerate(_cycle_lengths(lengths))
    ]


def _receive_reversed(comm: Communicator, lengths: Sequence[int], between: Callable[[], None] | None = None) -> None:
    """Receives and checks the messages of the preceding rank, last tag first; calls `between` from time to time."""
    preceding = (comm.rank - 1) % comm.size
    for i, numel in reversed(list(enumerate(_cycle_lengths(lengths)))):
        buf = torch.zeros(numel, device=comm.device)
        comm.recv(buf, preceding, tag=i)
        expect_equal(buf, _values(preceding, i, numel), f"message with tag {i} of {numel} elements, received in reverse order")
        if between is not None and i % 15 == 0:
            between()


def _meet(comm: Communicator) -> None:
    """Collective: an all-reduce, a barrier and an exchange of objects, which are checked."""
    buf = torch.ones(20, device=comm.device)
    comm.allreduce(buf)
    expect_equal(buf, np.full(20, comm.size), "allreduce among many messages")
    comm.barrier()
    expect(comm.allgather_object(comm.rank) == list(range(comm.size)), "an exchange of objects among many messages")


def _wait_for(works: Sequence[Work[None]]) -> None:
    """Waits for all of these operations."""
    for work in works:
        work.wait()


def _cycle_lengths(lengths: Sequence[int]) -> list[int]:
    """Returns the lengths of all messages: the given ones, repeated."""
    return [lengths[i % len(lengths)] for i in range(NUM_MESSAGES)]


def _values(rank: int, number: int, numel: int) -> Array:
    """Returns the values of message `number` of a rank."""
    return contribution(rank, numel, salt=number)
