"""Checks that wrong arguments raise one clear `UsageError` where the call was made, and the communicator works as before."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from unisono.comm.base import Communicator
from unisono.errors import UsageError
from unisono.testing.checks.expected import expect, expect_equal, tensor_of


def check_wrong_buffers_are_refused(comm: Communicator) -> None:
    """Buffers that are not contiguous, overlap, are on another device or have a wrong dtype raise an error that says so."""
    good = torch.ones(6, device=comm.device)
    across = torch.ones(4, 6, device=comm.device).t()
    for call in _calls_with(comm, across):
        _expect_refused(comm, call, "contiguous")
    for dtype in (torch.bool, torch.complex64):
        for call in _calls_with(comm, torch.ones(6, device=comm.device).to(dtype)):
            _expect_refused(comm, call, str(dtype))
    elsewhere = torch.empty(6, device="meta")
    for call in _calls_with(comm, elsewhere):
        _expect_refused(comm, call, "meta")
    _expect_refused(comm, lambda: comm.allreduce([good, across]), "buffer 1")
    _expect_refused(comm, lambda: comm.allreduce([good[:4], good[3:]]), "buffers 0 and 1")
    _expect_refused(comm, lambda: comm.allgather(torch.ones(6 * comm.size, device=comm.device), good.double()), "float64")
    _expect_refused(comm, lambda: comm.reduce_scatter(good, torch.ones(6 * comm.size, device=comm.device).int()), "int32")
    _expect_refused(comm, lambda: comm.alltoall(good.half(), good), "float16")


def check_wrong_ranks_are_refused(comm: Communicator) -> None:
    """Ranks and tags out of range raise an error that names the number."""
    buf = torch.ones(6, device=comm.device)
    for wrong in (comm.size, comm.size + 5, -2):
        for call in (
            partial(comm.broadcast, buf, wrong),
            partial(comm.start_broadcast, buf, wrong),
            partial(comm.broadcast_object, 1, wrong),
            partial(comm.send, buf, wrong),
            partial(comm.start_send, buf, wrong),
            partial(comm.recv, buf, wrong),
            partial(comm.start_recv, buf, wrong),
        ):
            _expect_refused(comm, call, str(wrong))
    for wrong in (-1, 32_768):
        _expect_refused(comm, partial(comm.send, buf, 0, wrong), str(wrong))
        _expect_refused(comm, partial(comm.recv, buf, 0, wrong), str(wrong))


def check_wrong_counts_are_refused(comm: Communicator) -> None:
    """Counts that do not fit the ranks or the buffers raise an error that names them."""
    size = comm.size
    buf, long = torch.ones(6, device=comm.device), torch.ones(6 * size + 1, device=comm.device)
    even = torch.ones(6 * size, device=comm.device)
    _expect_refused(comm, lambda: comm.allgather(long, buf), str(6 * size + 1))
    _expect_refused(comm, lambda: comm.reduce_scatter(buf, long), str(6 * size + 1))
    for wrong in ([6] * (size + 1), [7] * size, [6 * size + 1, *([0] * (size - 2)), -1][:size] if size > 1 else [-6]):
        _expect_refused(comm, partial(comm.allgather, even, buf, wrong), "counts")
        _expect_refused(comm, partial(comm.reduce_scatter, buf, even, wrong), "counts")
        _expect_refused(comm, partial(comm.alltoall, even, even, wrong, [6] * size), "out_counts")
        _expect_refused(comm, partial(comm.alltoall, even, even, [6] * size, wrong), "in_counts")
    if size > 1:
        _expect_refused(comm, lambda: comm.alltoall(long, long), str(6 * size + 1))
        others = [12 if r == (comm.rank + 1) % size else 6 for r in range(size)]
        others[comm.rank] = 6 * size - sum(others) + others[comm.rank]
        _expect_refused(comm, lambda: comm.allgather(even, buf, others), f"counts[{comm.rank}]")


def _calls_with(comm: Communicator, buf: torch.Tensor) -> tuple[Callable[[], object], ...]:
    """Returns one call of each kind, each with this buffer."""
    return (
        lambda: comm.allreduce(buf),
        lambda: comm.start_allreduce(buf),
        lambda: comm.broadcast(buf),
        lambda: comm.allgather(buf, buf),
        lambda: comm.reduce_scatter(buf, buf),
        lambda: comm.alltoall(buf, buf),
        lambda: comm.send(buf, 0),
        lambda: comm.recv(buf, 0),
    )


def _expect_refused(comm: Communicator, call: Callable[[], object], named: str) -> None:
    """All ranks make the wrong call, then one of them alone, and all continue together; each rank in turn would be too slow."""
    for alone in (False, True):
        if not alone or comm.rank == comm.size - 1:
            try:
                call()
            except UsageError as error:
                expect(named in str(error), f"the refusal does not name {named!r}: {error}")
            else:
                raise AssertionError(f"a call that should be refused (naming {named!r}) was made")
    buf = tensor_of(comm, np.full(2, 1), torch.int64)
    comm.allreduce(buf)
    expect_equal(buf, np.full(2, comm.size), "allreduce after a refused call")
