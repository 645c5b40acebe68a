"""The engines without processes: one member alone, and ranks as threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch

from unisono.comm.base import ANY, DTYPES, MAX, MIN, SUM, Communicator, Envelope, Op
from unisono.comm.single_process import single_process_communicator
from unisono.errors import CollectiveTimeout, CommError, MismatchedCall, PeerLost, UsageError
from unisono.testing.thread_communicator import run_threads
from unisono.testing.thread_control import ThreadJob

SIZES = range(1, 9)
NUMPY_OPS: Mapping[Op, Callable[..., np.ndarray]] = {SUM: np.sum, MIN: np.min, MAX: np.max}
WAIT_S = 30.0
"""For what a test expects to happen at once."""


def on_ranks(size: int, body: Callable[[Communicator], None], time_limit_s: float = 60.0) -> None:
    """`size` 0 means the engine for one process."""
    if size:
        run_threads(size, body, time_limit_s)
    else:
        with single_process_communicator(time_limit_s=time_limit_s) as comm:
            body(comm)


def values(rank: int, numel: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small whole numbers, so that every order of summation is exact in every type."""
    return ((torch.arange(numel) * 7 + rank * 5) % 11).to(dtype)


def failures_of(size: int, body: Callable[[Communicator], object], time_limit_s: float = 60.0) -> list[BaseException | None]:
    """What `body` raises on each rank."""

    def caught(comm: Communicator) -> BaseException | None:
        try:
            body(comm)
        except CommError as error:
            return error
        return None

    return run_threads(size, caught, time_limit_s)


# ---- results -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, *SIZES])
def test_collectives_agree_with_numpy(size: int) -> None:
    def body(comm: Communicator) -> None:
        for numel in (0, 1, 5, 64):
            everybody = np.stack([values(r, numel).numpy() for r in range(comm.size)])
            for op in Op:
                buf = values(comm.rank, numel)
                comm.allreduce(buf, op)
                np.testing.assert_array_equal(buf.numpy(), NUMPY_OPS[op](everybody, axis=0))

                counts = [numel] + [0] * (comm.size - 1)
                part = torch.empty(counts[comm.rank])
                comm.reduce_scatter(part, values(comm.rank, numel), counts, op)
                expected = NUMPY_OPS[op](everybody, axis=0)[: counts[comm.rank]]
                np.testing.assert_array_equal(part.numpy(), expected)

            root = comm.size - 1
            buf, second = values(comm.rank, numel), values(comm.rank, numel, torch.int64)
            comm.broadcast([buf, second], root)
            assert buf.tolist() == second.tolist() == everybody[root].tolist()

            counts = [numel + r for r in range(comm.size)]
            out = torch.empty(sum(counts))
            comm.allgather(out, values(comm.rank, counts[comm.rank]), counts)
            assert out.tolist() == torch.cat([values(r, counts[r]) for r in range(comm.size)]).tolist()

            # Member s sends s + r elements, all of value 10 s + r, to member r.
            out_counts = [comm.rank + s for s in range(comm.size)]
            sent = torch.cat([torch.full((comm.rank + r,), float(10 * comm.rank + r)) for r in range(comm.size)])
            out = torch.empty(sum(out_counts))
            comm.alltoall(out, sent, out_counts, out_counts)
            assert out.tolist() == [10.0 * s + comm.rank for s in range(comm.size) for _ in range(comm.rank + s)]
            comm.barrier()
        assert comm.allgather_object({"rank": (comm.rank, None)}) == [{"rank": (r, None)} for r in range(comm.size)]
        assert comm.broadcast_object([comm.rank], comm.size - 1) == [comm.size - 1]

    on_ranks(size, body)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_type_is_reduced(size: int, dtype: torch.dtype) -> None:
    def body(comm: Communicator) -> None:
        for op in Op:
            buf = values(comm.rank, 13, dtype).view(13, 1)
            comm.allreduce(buf, op)
            everybody = np.stack([values(r, 13).numpy() for r in range(comm.size)])
            assert buf.flatten().double().tolist() == NUMPY_OPS[op](everybody, axis=0).tolist()
            assert buf.dtype == dtype

    on_ranks(size, body)


def test_sum_is_in_rank_order_and_halves_are_rounded_once() -> None:
    def body(comm: Communicator) -> tuple[float, float, float]:
        # In rank order 1e8 + 1 - 1e8 loses the 1 in float32; in another order it would not.
        ordered = torch.tensor([(1e8, 1.0, -1e8)[comm.rank]])
        comm.allreduce(ordered)
        # 256 + 1 + 1: rounded to bfloat16 after each addition both ones are lost, rounded once they are not.
        half = torch.tensor([(256.0, 1.0, 1.0)[comm.rank]], dtype=torch.bfloat16)
        comm.allreduce(half)
        part = torch.empty(1, dtype=torch.float16)
        comm.reduce_scatter(part, torch.tensor([(2048.0, 1.0, 1.0)[comm.rank]] * 3, dtype=torch.float16))
        return ordered.item(), half.item(), part.item()

    assert run_threads(3, body) == [(0.0, 258.0, 2050.0)] * 3


def test_started_calls_run_in_order_beside_the_caller() -> None:
    def body(comm: Communicator) -> None:
        bufs = [torch.full((3,), float(comm.rank + i)) for i in range(50)]
        works = [comm.start_allreduce(buf) for buf in bufs]
        last = torch.ones(1)
        comm.allreduce(last)  # queues behind those that were started
        assert all(work.done() for work in works)
        for work in reversed(works):
            work.wait(WAIT_S)
        ranks = sum(range(comm.size))
        assert [buf[0].item() for buf in bufs] == [ranks + comm.size * i for i in range(50)]
        assert last.item() == comm.size

    for size in (0, 1, 4):
        on_ranks(size, body)


def test_split_gives_groups_with_their_own_ranks_messages_and_order() -> None:
    def body(comm: Communicator) -> None:
        odd = comm.split(comm.rank % 2, key=-comm.rank)
        assert odd is not None
        members = [r for r in reversed(range(comm.size)) if r % 2 == comm.rank % 2]
        assert odd.ranks == tuple(members)
        assert odd.size == len(members)
        assert members[odd.rank] == comm.rank
        total = torch.tensor([float(comm.rank)])
        odd.allreduce(total)
        assert total.item() == sum(members)
        copy = odd.duplicate()
        copy.start_send(torch.tensor([1.0]), 0, tag=3)
        odd.start_send(torch.tensor([2.0]), 0, tag=3)
        if odd.rank == 0:
            got = torch.empty(1)
            for _ in range(odd.size):
                odd.recv(got, tag=3)
                assert got.item() == 2.0
                copy.recv(got, tag=3)
                assert got.item() == 1.0
        alone_now = comm.split(None if comm.rank else 7)
        assert (alone_now is None) == (comm.rank > 0)
        with odd, copy:
            odd.barrier()
        with pytest.raises(CommError, match="closed"):
            odd.barrier()

    for size in (1, 2, 5):
        run_threads(size, body)


# ---- messages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1])
def test_messages_to_oneself(size: int) -> None:
    def body(comm: Communicator) -> None:
        buf = torch.tensor([1.0, 2.0])
        comm.send(buf, 0, tag=1)
        buf.fill_(3.0)  # the message was copied
        comm.send(buf, 0, tag=1)
        early = comm.start_recv(got := torch.empty(2), 0, tag=2)
        assert not early.done()
        out = torch.empty(2)
        assert comm.recv(out, ANY, tag=1) == Envelope(0, 1)
        assert out.tolist() == [1.0, 2.0]
        comm.recv(out, 0, tag=1)
        assert out.tolist() == [3.0, 3.0]
        comm.send(buf, 0, tag=2)
        assert early.done()
        assert early.wait() == early.wait() == Envelope(0, 2)
        assert got.tolist() == [3.0, 3.0]

    on_ranks(size, body)


def test_a_receive_without_a_sender_does_not_hang() -> None:
    with single_process_communicator(time_limit_s=1e-9) as comm:
        waiting = comm.start_recv(torch.empty(1), tag=5)
        assert waiting.done()  # a loop over done() ends, too
        with pytest.raises(CommError, match=r"only rank of world can never finish.*tag 5.*send before receiving"):
            waiting.wait()
        comm.send(torch.ones(2), 0, tag=6)
        with pytest.raises(MismatchedCall, match=r"recv\(float32\[3\].*send\(float32\[2\]"):
            comm.recv(torch.empty(3), tag=6)


def test_any_source_is_served_first_come_first_served() -> None:
    def body(comm: Communicator) -> list[int]:
        arrivals = [3, 1, 2, 1]
        if comm.rank == 0:
            comm.barrier()
            for _ in arrivals:
                comm.barrier()  # every message has been sent, in this order
            sources = []
            for _ in arrivals:
                number = torch.empty(1, dtype=torch.int64)
                sources.append((comm.recv(number, ANY, tag=4).source, int(number)))
            assert [number for _, number in sources] == [0, 1, 2, 3]
            other = torch.empty(1, dtype=torch.int64)
            assert comm.recv(other, 2, tag=9) == Envelope(2, 9)
            return [source for source, _ in sources]
        comm.barrier()
        if comm.rank == 2:
            comm.send(torch.tensor([99]), 0, tag=9)
        for turn, sender in enumerate(arrivals):
            if comm.rank == sender:
                comm.send(torch.tensor([turn]), 0, tag=4)
            comm.barrier()
        return []

    assert run_threads(4, body)[0] == [3, 1, 2, 1]


def test_receives_take_messages_in_the_order_of_their_start() -> None:
    def body(comm: Communicator) -> None:
        if comm.rank == 0:
            bufs = [torch.empty(1) for _ in range(20)]
            works = [comm.start_recv(buf, source=ANY if i % 2 else 1, tag=2) for i, buf in enumerate(bufs)]
            comm.barrier()
            assert [works[i].wait(WAIT_S) for i in reversed(range(20))] == [Envelope(1, 2)] * 20
            assert [buf.item() for buf in bufs] == list(range(20))
        else:
            comm.barrier()
            for value in range(20):
                comm.send(torch.tensor([float(value)]), 0, tag=2)

    run_threads(2, body)


def test_messages_of_a_rank_that_left_are_still_received() -> None:
    left = threading.Event()

    def body(comm: Communicator) -> None:
        if comm.rank == 1:
            comm.send(torch.tensor([5.0]), 0)
            left.set()
        else:
            assert left.wait(WAIT_S)
            got = torch.empty(1)
            comm.recv(got, 1)
            assert got.item() == 5.0
            with pytest.raises(PeerLost, match="rank 1 has left"):
                comm.recv(got, 1)

    run_threads(2, body)


def test_waiting_no_longer_than_asked_leaves_the_receive_started() -> None:
    def body(comm: Communicator) -> None:
        if comm.rank == 0:
            work = comm.start_recv(got := torch.empty(1), 1)
            with pytest.raises(CommError, match=r"not done after 0\.01 s"):
                work.wait(0.01)
            comm.barrier()
            assert work.wait(WAIT_S) == Envelope(1, 0)
            assert got.item() == 8.0
        else:
            comm.barrier()
            comm.send(torch.tensor([8.0]), 0)

    run_threads(2, body)


# ---- what goes wrong ---------------------------------------------------------------------------------------------------


def test_mismatched_calls_are_refused_at_once_on_both_sides() -> None:
    cases: list[tuple[Callable[[Communicator], object], Callable[[Communicator], object], str, str]] = [
        (lambda c: c.allreduce(torch.ones(3)), lambda c: c.allreduce(torch.ones(4)), "float32[3], sum", "float32[4], sum"),
        (lambda c: c.allreduce(torch.ones(3)), lambda c: c.allreduce(torch.ones(3), MAX), "sum", "max"),
        (lambda c: c.allreduce(torch.ones(3)), lambda c: c.barrier(), "allreduce(", "barrier()"),
        (lambda c: c.broadcast(torch.ones(3)), lambda c: c.broadcast(torch.ones(3), 1), "root=0", "root=1"),
        (lambda c: c.barrier(), lambda c: c.allgather_object(1), "barrier()", "allgather_object()"),
        (
            lambda c: c.allreduce(torch.ones(3)),
            lambda c: c.allreduce(torch.ones(3, dtype=torch.float64)),
            "float32[3]",
            "float64[3]",
        ),
    ]
    for most, last, mine, other in cases:
        errors = failures_of(3, lambda c, most=most, last=last: (last if c.rank == 2 else most)(c), time_limit_s=600.0)  # type: ignore[misc]
        for error in errors:
            assert isinstance(error, MismatchedCall)
            assert mine in str(error)
            assert other in str(error)


def test_mismatched_sizes_of_messages_and_of_alltoall_are_refused() -> None:
    def message(comm: Communicator) -> None:
        if comm.rank == 0:
            comm.send(torch.ones(2), 1, tag=1)
        else:
            comm.recv(torch.empty(2, dtype=torch.float64), 0, tag=1)

    _, error = failures_of(2, message)
    assert isinstance(error, MismatchedCall)
    assert "recv(float64[2], source=0, tag=1)" in str(error)
    assert "rank 0 called send(float32[2], dest=1, tag=1)" in str(error)

    def alltoall(comm: Communicator) -> None:
        comm.alltoall(torch.empty(4), torch.empty(4), [2, 2], [2, 2] if comm.rank else [1, 3])

    errors = failures_of(2, alltoall)
    assert all("rank 0 has in_counts[0] = 1, but rank 0 has out_counts[0] = 2" in str(error) for error in errors)


def test_an_exception_on_one_rank_ends_all_and_is_the_one_that_is_raised() -> None:
    seen: list[tuple[int, ...]] = []

    def body(comm: Communicator) -> None:
        comm.barrier()
        if comm.rank == 2:
            raise ZeroDivisionError("a mistake of the program")
        try:
            if comm.rank == 0:
                comm.recv(torch.empty(1), 2)
            elif comm.rank == 1:
                comm.start_allreduce(torch.ones(1)).wait(WAIT_S)
            else:
                comm.allreduce(torch.ones(1))
        except PeerLost as error:
            seen.append(error.ranks)
            assert "rank 2 raised ZeroDivisionError: a mistake of the program" in str(error)
            raise

    before = threading.active_count()
    with pytest.raises(ZeroDivisionError, match="a mistake of the program"):
        run_threads(4, body)
    assert seen == [(2,)] * 3
    assert threading.active_count() == before


def test_a_rank_that_leaves_early_is_named() -> None:
    with pytest.raises(PeerLost, match=r"allreduce\(float32\[1\], sum\) on rank 0 .*rank 1 has left") as caught:
        run_threads(2, lambda comm: comm.allreduce(torch.ones(1)) if comm.rank == 0 else None)
    assert caught.value.ranks == (1,)


def test_a_late_rank_is_named_with_its_stack_and_gets_the_error_when_it_comes() -> None:
    there, over = threading.Event(), threading.Event()

    def body(comm: Communicator) -> None:
        if comm.rank == 1:
            the_place_where_rank_1_stays(there, over)
        else:
            assert there.wait(WAIT_S)
        try:
            comm.allreduce(torch.ones(2))
        finally:
            over.set()

    late, told = failures_of(2, body, time_limit_s=0.2)
    assert isinstance(late, CollectiveTimeout)
    assert late.ranks == (1,)
    assert "not all members arrived within 0.2 s; missing: rank 1" in str(late)
    assert "the_place_where_rank_1_stays" in str(late)
    assert isinstance(told, PeerLost)
    assert "rank 0 gave up" in str(told)


def the_place_where_rank_1_stays(there: threading.Event, over: threading.Event) -> None:
    there.set()
    assert over.wait(WAIT_S)


def test_a_message_that_does_not_come_is_missed_in_time() -> None:
    over = threading.Event()

    def body(comm: Communicator) -> None:
        if comm.rank == 1:
            assert over.wait(WAIT_S)
            return
        try:
            work = comm.start_recv(torch.empty(1), 1, tag=3)
            while not work.done():
                pass
            work.wait()
        finally:
            over.set()

    error, _ = failures_of(2, body, time_limit_s=0.2)
    assert isinstance(error, CollectiveTimeout)
    assert error.ranks == (1,)
    assert "recv(float32[1], source=1, tag=3) on rank 0" in str(error)


def test_exchange_of_the_control_plane() -> None:
    job = ThreadJob(3)
    answers: dict[int, list[object]] = {}

    def main(rank: int) -> None:
        answers[rank] = job.controls[rank].exchange("k", (0, 2), {"from": rank}, WAIT_S)

    threads = [threading.Thread(target=main, args=(rank,)) for rank in (0, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert answers == {rank: [{"from": 0}, {"from": 2}] for rank in (0, 2)}
    assert not job.exchanges

    with pytest.raises(CollectiveTimeout, match=r"ranks 1, 2 did not arrive within 0\.01 s") as late:
        job.controls[0].exchange("l", (0, 1, 2), None, 0.01)
    assert late.value.ranks == (1, 2)
    job.controls[1].give_up("fell over", [2])
    with pytest.raises(PeerLost, match="rank 1 fell over") as lost:
        job.controls[0].exchange("m", (0, 1), None, WAIT_S)
    assert lost.value.ranks == (1,)
    assert set(job.controls[0].reports((1, 2), 1.0)) == {2}


def test_200_groups_leave_no_thread_and_no_memory() -> None:
    def body(comm: Communicator) -> int:
        for _ in range(200):
            copy = comm.duplicate()
            copy.start_allreduce(torch.ones(1)).wait(WAIT_S)
            copy.close()
            copy.close()
        comm.barrier()
        return len(comm._groups._by_name)  # type: ignore[attr-defined]

    before = threading.active_count()
    assert run_threads(2, body) == [1, 1]
    assert threading.active_count() == before


def test_wrong_arguments_are_reported() -> None:
    def body(comm: Communicator) -> None:
        with pytest.raises(UsageError, match="not contiguous"):
            comm.allreduce(torch.ones(3, 2).t())
        with pytest.raises(UsageError, match=rf"dest must lie in 0..{comm.size - 1}"):
            comm.send(torch.ones(1), comm.size)
        comm.barrier()  # and the communicator is as good as before

    for size in (0, 2):
        on_ranks(size, body)
