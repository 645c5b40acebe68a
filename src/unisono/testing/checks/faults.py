"""Faults between members. Each makes the communicators of the whole job unusable, so each is given a new one.

A fault returns the error of this rank, for the caller to compare over ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, sleep

import torch

from unisono.comm.base import Communicator
from unisono.comm.exchange.over_comm import MessageServer, open_exchange
from unisono.errors import CollectiveTimeout, CommError, MismatchedCall, PeerLost
from unisono.testing.checks.expected import expect

SHORT_LIMIT_S = 3.0
"""Time limit of the calls that must run into it."""
ENOUGH_S = 30.0
"""Far more than what is polled for needs."""
SEEN_AT_ONCE_S = 10.0
"""A loss is reported by a channel, not found by waiting; the limit of the call is far longer."""


def fault_exception_on_one_rank(comm: Communicator) -> str:
    """The last rank raises inside `with comm`; the others' call ends with `PeerLost` that names it and its words."""
    comm.time_limit_s = 60.0
    culprit, word = comm.size - 1, torch.zeros(1, device=comm.device)
    if comm.rank != culprit:
        comm.send(word, culprit)
    else:
        for r in range(culprit):  # a rank that is still opening its communicator cannot be told by it
            comm.recv(word, r)
        try:
            with comm:
                raise ValueError("the loss is not finite")
        except ValueError as own:
            return f"raised {own}"
    began = monotonic()
    error = _error_of(lambda: comm.allreduce(torch.ones(1000, device=comm.device)))
    expect(monotonic() - began < SEEN_AT_ONCE_S, f"the exception was seen only after {monotonic() - began:.1f} s")
    expect(isinstance(error, PeerLost) and error.ranks == (culprit,), f"expected PeerLost of rank {culprit}: {error!r}")
    expect("ValueError: the loss is not finite" in str(error), f"the reason is missing: {error}")
    _expect_spent(comm)
    return _describe_error(error)


def fault_leaving_early(comm: Communicator) -> str:
    """The first rank closes the communicator and leaves cleanly while the others still wait for it."""
    comm.time_limit_s = 20.0
    if comm.rank == 0:
        comm.barrier()
        comm.close()
        return "left"
    error = _error_of_call(comm, lambda: comm.allreduce(torch.ones(1000, device=comm.device)))
    expect(0 in getattr(error, "ranks", ()), f"rank 0 is not named: {error!r}")
    return _describe_error(error)


def fault_different_operations(comm: Communicator) -> str:
    """All but the last rank reduce, the last waits for a broadcast: refused with both calls named."""
    comm.time_limit_s = SHORT_LIMIT_S
    buf = torch.ones(1000, device=comm.device)
    last = comm.size - 1
    error = _error_of_call(comm, lambda: comm.broadcast(buf, 0) if comm.rank == last else comm.allreduce(buf))
    expect("allreduce" in str(error) and "broadcast" in str(error), f"both calls are not named: {error}")
    expect(isinstance(error, (MismatchedCall, PeerLost)), f"expected MismatchedCall or its consequence: {error!r}")
    _expect_spent(comm)
    return _describe_error(error)


def fault_different_sizes(comm: Communicator) -> str:
    """The last rank reduces fewer elements: every rank gets a `CommError`, of which kind depends on the engine, and may make no
    further call."""
    comm.time_limit_s = SHORT_LIMIT_S
    last = comm.size - 1
    error = _error_of_call(comm, lambda: comm.allreduce(torch.ones(500 if comm.rank == last else 1000, device=comm.device)))
    _expect_spent(comm)
    return _describe_error(error)


def fault_rank_late_beyond_the_limit(comm: Communicator) -> str:
    """The last rank comes only when the others' time is up: they say which call, who is missing and what it does."""
    comm.time_limit_s = SHORT_LIMIT_S
    late = comm.size - 1
    if comm.rank == late:
        comm.barrier(ENOUGH_S)
        _do_something_else(comm)
        return _describe_error(_error_of(lambda: _reduce_twice(comm)))
    error = _error_of_call(comm, lambda: comm.allreduce(torch.ones(1000, device=comm.device)))
    expect(isinstance(error, (CollectiveTimeout, PeerLost)), f"expected CollectiveTimeout: {error!r}")
    expect(getattr(error, "ranks", None) == (late,), f"rank {late} is late, but blamed are {getattr(error, 'ranks', None)}")
    expect("allreduce" in str(error), f"the call is not named: {error}")
    _expect_spent(comm)
    return _describe_error(error)


def fault_message_that_never_comes(comm: Communicator) -> str:
    """All wait for a message of the last rank, which waits for one of rank 0: nobody sends, so all run into the limit."""
    comm.time_limit_s = SHORT_LIMIT_S
    source = 0 if comm.rank == comm.size - 1 else comm.size - 1
    error = _error_of_call(comm, lambda: comm.recv(torch.ones(10, device=comm.device), source, tag=77))
    expect(isinstance(error, (CollectiveTimeout, PeerLost)), f"expected CollectiveTimeout: {error!r}")
    expect("recv" in str(error), f"the call is not named: {error}")
    return _describe_error(error)


def fault_worker_of_an_exchange_raises(comm: Communicator) -> str:
    """The last worker raises when all others wait: the server for a call, a worker for its answer. All are told who it was."""
    if comm.device.type != "cpu":
        return "an exchange needs an engine of the host"
    culprit = comm.size - 1
    end = open_exchange(comm)
    if isinstance(end, MessageServer):
        for _ in range(comm.size - 1):
            end.receive(ENOUGH_S)
        end.reply(culprit - 1, 0)
        error = _error_of(end.receive)
        _expect_blamed(error, culprit)
        end.close()
        return _describe_error(error)
    end[0].post(0)
    if comm.rank == culprit:
        end[0].wait_reply(ENOUGH_S)
        try:
            with comm:
                raise ValueError("the loss is not finite")
        except ValueError as own:
            return f"raised {own}"
    error = _error_of(end[0].wait_reply)
    _expect_blamed(error, culprit)
    end[0].close()
    return _describe_error(error)


def _expect_blamed(error: CommError, culprit: int) -> None:
    """Asserts that an error is `PeerLost` of the culprit and quotes its reason."""
    expect(isinstance(error, PeerLost) and culprit in error.ranks, f"expected PeerLost of rank {culprit}: {error!r}")
    expect("the loss is not finite" in str(error), f"the reason is missing: {error}")


def _do_something_else(comm: Communicator) -> None:
    """Stays away until all others have given up, as a rank that has not may still find what it needs from us; the name of this
    function must appear in the stack that they show."""
    deadline = monotonic() + ENOUGH_S
    while len(comm.control.lost) < comm.size - 1 and monotonic() < deadline:
        sleep(0.01)


def _reduce_twice(comm: Communicator) -> None:
    """The others' parts may still be there, so that one call may find all it needs; a second one cannot."""
    for _ in range(2):
        comm.allreduce(torch.ones(1000, device=comm.device))


def _error_of_call(comm: Communicator, call: Callable[[], object]) -> CommError:
    """The error of a call that all make together. A rank that is slow to leave the barrier may already fail there."""

    def met() -> None:
        comm.barrier(ENOUGH_S)
        call()

    return _error_of(met)


def _error_of(call: Callable[[], object]) -> CommError:
    """Makes a call that must fail; returns its `CommError`."""
    try:
        call()
    except CommError as error:
        return error
    raise AssertionError("the call returned although it could not succeed")


def _expect_spent(comm: Communicator) -> None:
    """Asserts that the communicator refuses further calls as unusable."""
    error = _error_of(comm.barrier)
    expect("cannot be used any more" in str(error), f"a spent communicator says {error}")


def _describe_error(error: CommError) -> str:
    """Returns 'Kind: message' of an error."""
    return f"{type(error).__name__}: {error}"
