"""Checks of calls that are started and waited for later: many at once, of every kind, beside blocking ones and late members."""

from __future__ import annotations

from time import monotonic, sleep

import numpy as np
import torch

from unisono.comm.base import ANY, MAX, MIN, SUM, Communicator
from unisono.comm.driver import Work
from unisono.errors import CommError
from unisono.testing.checks.expected import contribution, expect, expect_equal, numpy_reduce, parts_of, tensor_of, uneven_counts

ENOUGH_S = 30.0
"""Far more than what is polled for needs; only a call that never ends gets here."""


def check_many_started_calls_beside_blocking_ones(comm: Communicator) -> None:
    """Fifty started all-reduces, with blocking calls in between, all give the right sums."""
    started = []
    for i in range(50):
        numel = (1, 300, 20_000)[i % 3]
        buf = tensor_of(comm, contribution(comm.rank, numel, i), torch.float32, mapped=i % 2 == 0)
        started.append((i, buf, comm.start_allreduce(buf)))
        if i % 10 == 9:
            blocking = tensor_of(comm, contribution(comm.rank, 64, i), torch.float64)
            comm.allreduce(blocking, MAX)
            expect_equal(blocking, numpy_reduce(MAX, _everybody(comm, 64, i)), f"blocking call after {i + 1} started ones")
    for i, buf, work in started:
        work.wait()
        expect_equal(buf, numpy_reduce(SUM, _everybody(comm, buf.numel(), i)), f"started allreduce {i} of 50")


def check_started_calls_of_every_kind(comm: Communicator) -> None:
    """One started call of each kind, waited for in reverse order, gives the right result and is then done."""
    size, rank = comm.size, comm.rank
    counts = uneven_counts(size, 50)
    for numel in (40, 30_000):
        works: list[Work[object]] = []
        summed = tensor_of(comm, contribution(rank, numel), torch.float32)
        works.append(comm.start_allreduce(summed, MIN))
        sent = tensor_of(comm, contribution(rank, numel, 1), torch.int64)
        works.append(comm.start_broadcast([sent], size - 1))
        gathered = torch.zeros(sum(counts), device=comm.device)
        works.append(comm.start_allgather(gathered, tensor_of(comm, contribution(rank, counts[rank], 2), torch.float32), counts))
        scattered = torch.zeros(numel, dtype=torch.float64, device=comm.device)
        long = tensor_of(comm, contribution(rank, numel * size, 3), torch.float64)
        works.append(comm.start_reduce_scatter(scattered, long, op=SUM))
        dealt = torch.zeros(size * 10, dtype=torch.int32, device=comm.device)
        works.append(comm.start_alltoall(dealt, tensor_of(comm, contribution(rank, size * 10, 4), torch.int32)))
        received = torch.zeros(numel, device=comm.device)
        works.append(comm.start_recv(received, (rank - 1) % size, tag=1))
        works.append(comm.start_send(tensor_of(comm, contribution(rank, numel, 5), torch.float32), (rank + 1) % size, tag=1))
        for work in reversed(works):
            work.wait()
            expect(work.done(), "a call that was waited for is not done")
        expect_equal(summed, numpy_reduce(MIN, _everybody(comm, numel)), "started allreduce")
        expect_equal(sent, contribution(size - 1, numel, 1), "started broadcast")
        wanted = np.concatenate([contribution(r, count, 2) for r, count in enumerate(counts)])
        expect_equal(gathered, wanted, "started allgather")
        total = numpy_reduce(SUM, _everybody(comm, numel * size, 3))
        expect_equal(scattered, total[parts_of([numel] * size)[rank]], "started reduce_scatter")
        dealt_to_us = [contribution(r, size * 10, 4)[rank * 10 : rank * 10 + 10] for r in range(size)]
        expect_equal(dealt, np.concatenate(dealt_to_us), "started alltoall")
        expect_equal(received, contribution((rank - 1) % size, numel, 5), "started receive")


def check_started_calls_end_without_being_waited_for(comm: Communicator) -> None:
    """Started calls progress by themselves: no rank enters the communicator until all are done."""
    bufs = [tensor_of(comm, contribution(comm.rank, 100_000, i), torch.float32) for i in range(4)]
    works = [comm.start_allreduce(buf) for buf in bufs]
    deadline = monotonic() + ENOUGH_S
    while not all(work.done() for work in works):
        expect(monotonic() < deadline, "started calls do not end by themselves")
        sleep(0.001)
    for i, (buf, work) in enumerate(zip(bufs, works, strict=True)):
        work.wait()
        expect_equal(buf, numpy_reduce(SUM, _everybody(comm, 100_000, i)), "a started call")


def check_late_member_is_waited_for(comm: Communicator) -> None:
    """Rank 0 sees that its call cannot be done yet before it lets the others make theirs."""
    for numel in (10, 50_000):
        buf = tensor_of(comm, contribution(comm.rank, numel), torch.float32)
        pass_on = torch.zeros(1, device=comm.device)
        if comm.rank == 0:
            work = comm.start_allreduce(buf)
            if comm.size > 1:
                _expect_not_done(work)
                for r in range(1, comm.size):
                    comm.send(pass_on, r, tag=12)
            work.wait()
        else:
            comm.recv(pass_on, 0, tag=12)
            comm.allreduce(buf)
        expect_equal(buf, numpy_reduce(SUM, _everybody(comm, numel)), "allreduce with late members")


def check_waiting_in_vain_spends_nothing(comm: Communicator) -> None:
    """A wait with its own time limit may be repeated until the message comes: a server does other work between two waits."""
    pass_on, buf = torch.zeros(1, device=comm.device), torch.zeros(5, device=comm.device)
    if comm.rank == 0 and comm.size > 1:
        receive = comm.start_recv(buf, ANY, tag=13)
        for _ in range(3):
            _expect_not_done(receive)
        for r in range(1, comm.size):
            comm.send(pass_on, r, tag=14)
        sources = [receive.wait().source]
        sources += [comm.recv(buf, ANY, tag=13).source for _ in range(comm.size - 2)]
        expect(sorted(sources) == list(range(1, comm.size)), f"messages came from {sources}")
    elif comm.rank > 0:
        comm.recv(pass_on, 0, tag=14)
        comm.send(buf, 0, tag=13)
    comm.barrier()


def check_messages_pass_beside_started_collectives(comm: Communicator) -> None:
    """A receive that is still open holds up neither collectives nor other messages."""
    following, preceding = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    held = torch.zeros(8, device=comm.device)
    receive = comm.start_recv(held, ANY, tag=20)
    for i in range(10):
        buf = tensor_of(comm, contribution(comm.rank, 500, i), torch.float32)
        work = comm.start_allreduce(buf)
        send = comm.start_send(tensor_of(comm, np.full(8, i), torch.float32), following, tag=21)
        other = torch.zeros(8, device=comm.device)
        comm.recv(other, preceding, tag=21)
        expect_equal(other, np.full(8, i), f"message {i} beside a started allreduce")
        send.wait()
        work.wait()
        expect_equal(buf, numpy_reduce(SUM, _everybody(comm, 500, i)), f"allreduce {i} beside messages")
    expect(not receive.done(), "a receive is done although nothing was sent to it")
    comm.barrier()  # nobody sends before everybody has looked
    send = comm.start_send(tensor_of(comm, np.full(8, comm.rank), torch.float32), following, tag=20)
    expect(receive.wait().source == preceding, "the open receive took another message")
    send.wait()
    expect_equal(held, np.full(8, preceding), "the message of the open receive")


def _expect_not_done(work: Work[object]) -> None:
    """Asserts that a short wait for an operation times out, and that it is not done."""
    try:
        work.wait(timeout_s=0.05)
    except CommError as error:
        expect("not done" in str(error), f"a wait that is over too early says {error}")
    else:
        raise AssertionError("a call is done although the others have not made theirs")
    expect(not work.done(), "a call is done although the others have not made theirs")


def _everybody(comm: Communicator, numel: int, salt: int = 0) -> list[np.ndarray]:
    """Returns the contributions of all ranks."""
    return [contribution(r, numel, salt) for r in range(comm.size)]
