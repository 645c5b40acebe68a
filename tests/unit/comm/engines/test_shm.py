"""What the contract suite cannot see of the shared-memory engine: its memory, its counters, its stages.

The ranks are threads here: a segment opens through /proc just as well inside one process.
"""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from unisono.comm.base import ANY, Communicator, Group
from unisono.comm.engines.shm import ShmCommunicator, open_shm
from unisono.comm.shared_memory import board as board_module
from unisono.comm.shared_memory.mailbox import RecvWork
from unisono.comm.shared_memory.memory_allreduce import STAGE_BYTES
from unisono.comm.shared_memory.receipts import PAGE_BYTES, Receipts, sign
from unisono.comm.shared_memory.segments import Arena, Segment, open_peer
from unisono.errors import CommError, MismatchedCall, PeerLost, UsageError
from unisono.testing.thread_communicator import run_threads

T = TypeVar("T")


def run_shm(size: int, body: Callable[[ShmCommunicator], T]) -> list[T]:
    def inside(threads: Communicator) -> T:
        ranks = tuple(range(size))
        with open_shm(Group("shm", threads.rank, ranks, ranks), threads.control, 20.0, num_cpus=1) as comm:
            assert isinstance(comm, ShmCommunicator)
            return body(comm)

    return run_threads(size, inside, time_limit_s=20.0)


def num_segments() -> int:
    return sum("memfd:unisono" in str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink())


def test_a_block_is_used_again_only_when_its_last_view_is_gone() -> None:
    arena = Arena()
    arena.hold()
    first = arena.empty((10, 3), torch.float64)
    address, row = first.data_ptr(), first[2]
    del first
    second = arena.empty(30, torch.float64)
    assert second.data_ptr() != address, "a view still holds the block"
    row.fill_(1.0)
    del row
    gc.collect()
    assert arena.empty(30, torch.float64).data_ptr() == address
    arena.release()


def test_buffers_outlive_the_communicator() -> None:
    def body(comm: ShmCommunicator) -> torch.Tensor:
        buf = comm.empty(1000)
        buf.fill_(1.0)
        comm.allreduce(buf)
        return buf

    for buf in run_shm(2, body):
        assert (buf + 1 == 3).all()


def test_nothing_is_left_open() -> None:
    def body(comm: ShmCommunicator) -> None:
        buf = comm.empty(STAGE_BYTES)
        comm.allreduce([buf, torch.zeros(STAGE_BYTES)])
        comm.send(torch.zeros(5000), (comm.rank + 1) % 2) if comm.rank == 0 else comm.recv(torch.zeros(5000))

    run_shm(2, body)
    gc.collect()
    assert num_segments() == 0


def test_arrays_are_freed_with_the_process_running_on() -> None:
    arena = Arena()
    arena.hold()
    tensor = arena.empty(10, torch.int32)
    gone = weakref.ref(tensor)
    del tensor
    assert gone() is None
    arena.release()


@pytest.mark.parametrize("numel", [STAGE_BYTES // 4 - 1, STAGE_BYTES // 4, STAGE_BYTES // 4 + 1, 3 * STAGE_BYTES // 4 + 17])
@pytest.mark.parametrize("mapped_ranks", [(), (0,), (2,), (0, 1, 2)], ids=str)
def test_any_mixture_of_mapped_and_plain_buffers(numel: int, mapped_ranks: tuple[int, ...]) -> None:
    def body(comm: ShmCommunicator) -> torch.Tensor:
        mapped = comm.rank in mapped_ranks
        buf = comm.empty(numel) if mapped else torch.empty(numel)
        buf.copy_(torch.arange(numel) % 1000 + comm.rank)
        tail = torch.full((3,), float(comm.rank), dtype=torch.float64)
        comm.allreduce([buf, tail])
        assert (tail == 3.0).all()
        return buf.clone()

    expected = (torch.arange(numel) % 1000) * 3.0 + 3.0
    for result in run_shm(3, body):
        assert torch.equal(result, expected)


def test_more_buffers_than_places_in_a_page() -> None:
    def body(comm: ShmCommunicator) -> list[torch.Tensor]:
        bufs = [torch.full((600,), float(comm.rank + i)) for i in range(150)]
        comm.allreduce(bufs)
        copies = [torch.full((600,), float(comm.rank)) for _ in range(150)]
        comm.broadcast(copies, root=1)
        assert all((copy == 1.0).all() for copy in copies)
        return bufs

    for bufs in run_shm(2, body):
        assert all((buf == 2.0 * i + 1.0).all() for i, buf in enumerate(bufs))


def test_the_phase_counter_may_wrap_round() -> None:
    def body(comm: ShmCommunicator) -> list[float]:
        comm.control.exchange("before", comm.members, None, 20.0)
        comm._board._phase = 0xFFFFFFF0
        comm._board.words[comm.rank][0] = 0xFFFFFFF0
        comm.control.exchange("after", comm.members, None, 20.0)
        sums = []
        for step in range(40):
            buf = torch.full((step * 1000 + 1,), 1.0)
            comm.allreduce(buf)
            sums.append(float(buf.sum()))
        return sums

    for sums in run_shm(2, body):
        assert sums == [2.0 * (step * 1000 + 1) for step in range(40)]


def test_a_full_box_holds_further_messages_back_in_order() -> None:
    num = 5 * board_module.NUM_SLOTS

    def body(comm: ShmCommunicator) -> list[float]:
        if comm.rank == 0:
            sent = [comm.start_send(torch.full((2000 if i % 3 else 5,), float(i)), 1, tag=i % 2) for i in range(num)]
            comm.barrier()
            for work in sent:
                work.wait()
            return []
        comm.barrier()  # every slot is full by now
        bufs = {i: torch.empty(2000 if i % 3 else 5) for i in range(num)}
        for tag in (1, 0):  # more of the other tag lie before the wanted ones than there are slots
            for i in range(tag, num, 2):
                comm.recv(bufs[i], 0, tag)
        return [float(bufs[i][0]) for i in range(num)]

    assert run_shm(2, body)[1] == [float(i) for i in range(num)]


def test_a_large_message_is_its_senders_until_it_is_received() -> None:
    """Also when its slot serves another message by then."""
    num = 3 * board_module.NUM_SLOTS

    def body(comm: ShmCommunicator) -> list[bool]:
        done: list[bool] = []
        if comm.rank == 0:
            sent = [comm.start_send(torch.full((2000,), float(i)), 1, tag=i) for i in range(num)]
            comm.barrier()
            done = [work.done() for work in sent]
            comm.barrier()
            for work in sent:
                work.wait()
            return done
        buf = torch.empty(2000)
        comm.recv(buf, 0, tag=num - 1)
        comm.barrier()
        comm.barrier()
        for i in range(num - 1):
            comm.recv(buf, 0, tag=i)
            assert (buf == i).all()
        return done

    assert run_shm(2, body)[0] == [False] * (num - 1) + [True]


def test_small_messages_to_a_rank_in_a_collective_do_not_block_the_sender() -> None:
    num = 5 * board_module.NUM_SLOTS

    def body(comm: ShmCommunicator) -> list[float]:
        if comm.rank == 0:
            for i in range(num):
                comm.send(torch.full((10,), float(i)), 1)
        comm.barrier()
        if comm.rank == 0:
            return []
        bufs = [torch.empty(10) for _ in range(num)]
        for buf in bufs:
            comm.recv(buf, 0)
        return [float(buf[0]) for buf in bufs]

    assert run_shm(2, body)[1] == [float(i) for i in range(num)]


def test_messages_move_while_the_helper_thread_runs_collectives() -> None:
    """Both threads of a rank move the same mailbox."""
    num = 100

    def body(comm: ShmCommunicator) -> list[float]:
        other, buf, sums = 1 - comm.rank, torch.empty(3), torch.ones(1)
        received = []
        for i in range(num):
            work = comm.start_allreduce(sums)
            sends = [comm.start_send(torch.full((3,), float(10 * i + k)), other, tag=k) for k in range(2)]
            for tag in (1, 0):
                comm.recv(buf, other, tag)
                received.append(float(buf[0]))
            for send in sends:
                send.wait()
            work.wait()
            sums.fill_(1.0)
        return received

    expected = [float(10 * i + k) for i in range(num) for k in (1, 0)]
    assert run_shm(2, body) == [expected, expected]


def test_closing_ends_what_is_under_way() -> None:
    def body(comm: ShmCommunicator) -> list[bool]:
        copy = comm.duplicate()
        num = board_module.NUM_SLOTS + 1
        works = [copy.start_recv(torch.zeros(5), tag=9), *(copy.start_send(torch.zeros(2000), 0) for _ in range(num))]
        copy.close()
        for work in works:
            with pytest.raises(CommError, match=r"(recv|send)\(.*when its communicator .* was closed"):
                work.wait()
        comm.barrier()
        return [work.done() for work in works]

    assert all(all(done) for done in run_shm(2, body))


def test_a_receipt_is_used_again_only_when_it_was_signed() -> None:
    arena = Arena()
    arena.hold()
    receipts = Receipts(arena)
    first, second = receipts.get_blank(), receipts.get_blank()
    sign(arena, os.getpid(), first.place)
    assert first.is_signed
    assert not second.is_signed
    receipts.give_back(first)
    taken = [receipts.get_blank() for _ in range(2 * PAGE_BYTES)]
    assert first in taken
    assert second not in taken
    assert not any(receipt.is_signed for receipt in taken)
    places = {receipt.place for receipt in (*taken, second)}
    assert len(places) == len(taken) + 1
    arena.release()


def test_messages_from_any_source_come_by_age() -> None:
    def body(comm: ShmCommunicator) -> list[int]:
        for turn in (2, 1, 3):
            if comm.rank == turn:
                comm.send(torch.zeros(1), 0)
            comm.barrier()
        return [comm.recv(torch.zeros(1), ANY).source for _ in range(3)] if comm.rank == 0 else []

    assert run_shm(4, body)[0] == [2, 1, 3]


def test_uneven_parts_of_an_alltoall_that_do_not_fit_are_refused() -> None:
    def body(comm: ShmCommunicator) -> None:
        out_counts = [1, 2] if comm.rank == 0 else [2, 1]
        comm.alltoall(torch.zeros(3), torch.zeros(4), out_counts, [2, 2])

    with pytest.raises((MismatchedCall, PeerLost), match=r"alltoall"):
        run_shm(2, body)


def test_a_machine_that_cannot_do_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "abacus")
    with pytest.raises(UsageError, match=r"abacus.*gloo"):
        run_threads(1, lambda comm: open_shm(Group("shm", 0, (0,), (0,)), comm.control, 5.0, 1), time_limit_s=5.0)


def test_infinities_raise_no_warning() -> None:
    def body(comm: ShmCommunicator) -> torch.Tensor:
        buf = torch.full((20_000,), float("inf") if comm.rank else -float("inf"))
        comm.allreduce(buf)
        return buf

    assert all(bool(buf.isnan().all()) for buf in run_shm(2, body))


def test_a_later_receive_does_not_overtake_one_that_just_found_nothing() -> None:
    def body(comm: ShmCommunicator) -> list[float]:
        if comm.rank == 1:
            comm.recv(torch.zeros(1), 0, tag=7)
            comm.send(torch.full((1,), 1.0), 0)
            comm.send(torch.zeros(1), 0, tag=8)
            comm.send(torch.full((1,), 2.0), 0)
            return []
        mailbox, bufs = comm._mailbox, [torch.zeros(1), torch.zeros(1)]
        works = [comm.start_recv(buf, 1) for buf in bufs]
        receive = mailbox._receive
        delayed: list[RecvWork] = []

        def receive_slowly(work: RecvWork) -> bool:
            found = receive(work)
            if work is works[0] and not delayed:
                delayed.append(work)  # the first message comes just after the first receive has looked
                comm.send(torch.zeros(1), 1, tag=7)
                while mailbox._arrivals.oldest(1, 0) is None:
                    pass
            return found

        mailbox._receive = receive_slowly  # type: ignore[method-assign]
        mailbox.progress()
        mailbox._receive = receive  # type: ignore[method-assign]
        comm.recv(torch.zeros(1), 1, tag=8)
        for work in works:
            work.wait()
        return [float(buf) for buf in bufs]

    assert run_shm(2, body)[0] == [1.0, 2.0]


def test_a_file_of_another_process_with_the_same_numbers_is_refused() -> None:
    mine, other = Segment.create(4096), Segment.create(4096)
    try:
        with pytest.raises(CommError, match="belongs to another process"):
            open_peer(os.getpid(), mine.fd, identity=other.identity)
        assert open_peer(os.getpid(), mine.fd, identity=mine.identity).num_bytes == 4096
        with pytest.raises(CommError, match="cannot be opened"):
            open_peer(os.getpid(), 10_000)
    finally:
        os.close(mine.fd)
        os.close(other.fd)


def test_a_file_of_the_user_is_never_taken_for_shared_memory(tmp_path: Path) -> None:
    path = tmp_path / "results"
    path.write_bytes(bytes(4096))
    with path.open("r+b") as file, pytest.raises(CommError, match=r"cannot be opened .*: closed"):
        open_peer(os.getpid(), file.fileno())
    assert path.read_bytes() == bytes(4096)
