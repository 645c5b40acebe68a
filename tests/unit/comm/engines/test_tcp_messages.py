"""Messages over TCP where something is missing: a sender that went away, and file numbers. Ranks are ends in one process."""

from __future__ import annotations

import os
import resource
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from time import monotonic, sleep

import torch

from tests.ranks.remote_rank import until
from unisono.comm.calls import ANY, Call
from unisono.comm.engines.tcp_messages import EAGER_BYTES, Messages, bytes_of
from unisono.comm.single_process import single_process_communicator
from unisono.comm.watch import Watch

LONG = EAGER_BYTES + 1


def watch() -> Watch:
    return Watch(single_process_communicator(), Call("test"), 20.0)


@contextmanager
def connected(ends: Sequence[Messages]) -> Iterator[None]:
    addresses = [end.listen() for end in ends]
    for end in ends:
        end.open(addresses)
    with ExitStack() as stack:
        for end in ends:
            stack.callback(end.close)
        yield


def has_arrivals(end: Messages, number: int) -> bool:
    return len(end._arrivals) == number


class Noting(Messages):
    """Notes how often somebody was let in, or would have been."""

    num_accepts = 0

    def _accept(self, events: int) -> None:
        self.num_accepts += 1
        super()._accept(events)


@contextmanager
def no_more_files() -> Iterator[None]:
    """This process can open none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_a_lost_sender_offered_is_not_taken() -> None:
    """Two ranks offer a long message; the first goes away. Who receives from any of them gets the second's."""
    ends = [Messages(f"test-{rank}", rank, 3, "127.0.0.1") for rank in range(3)]
    with connected(ends):
        sent = {rank: torch.full((LONG,), rank, dtype=torch.uint8) for rank in (1, 2)}
        for rank in (1, 2):
            ends[rank].start_send(bytes_of(sent[rank]), 0, 9, watch())
            until(partial(has_arrivals, ends[0], rank))
        ends[1].close()
        until(lambda: 1 in ends[0].ended)
        received = torch.zeros(LONG, dtype=torch.uint8)
        assert ends[0].start_recv(bytes_of(received), ANY, 9, watch()).wait(20.0).source == 2
        assert torch.equal(received, sent[2])


def test_what_a_lost_sender_had_sent_whole_is_still_received() -> None:
    ends = [Messages(f"test-{rank}", rank, 2, "127.0.0.1") for rank in range(2)]
    with connected(ends):
        ends[1].start_send(bytes_of(torch.tensor([7], dtype=torch.uint8)), 0, 9, watch()).wait(20.0)
        ends[1].close()
        until(lambda: 1 in ends[0].ended)
        received = torch.zeros(1, dtype=torch.uint8)
        assert ends[0].start_recv(bytes_of(received), ANY, 9, watch()).wait(20.0).source == 1
        assert received[0] == 7


def test_a_receive_that_a_lost_sender_had_begun_to_serve_ends() -> None:
    ends = [Noting(f"test-{rank}", rank, 3, "127.0.0.1") for rank in range(3)]
    with connected(ends):
        ends[1].start_send(bytes_of(torch.ones(LONG, dtype=torch.uint8)), 0, 9, watch())
        until(lambda: ends[0]._arrivals)
        for _ in range(2):  # else its thread may wait for the lock that is taken below, and accept nobody
            is_idle = threading.Event()
            ends[1]._run_on_thread(is_idle.set)
            assert is_idle.wait(30.0)
        with ends[1].lock:  # it cannot answer any more
            receive = ends[0].start_recv(bytes_of(torch.zeros(LONG, dtype=torch.uint8)), ANY, 9, watch())
            until(lambda: ends[1].num_accepts == 1)
            for outgoing in ends[1]._outgoing.values():
                outgoing.sock.shutdown(socket.SHUT_RDWR)
            until(receive.done)
        assert isinstance(receive.error, EOFError)


def test_without_file_descriptors_connections_wait_without_a_busy_loop() -> None:
    end = Noting("test", 0, 2, "127.0.0.1")
    with connected([end]), socket.socket() as caller:
        assert end._listener is not None
        with no_more_files():
            caller.connect(end._listener.getsockname())
            until(lambda: end.num_accepts)
            before, start = end.num_accepts, monotonic()
            while monotonic() < start + 0.3:  # what happens in a time is what is tested
                sleep(0.01)
            assert end.num_accepts - before < 10
        until(lambda: end._incoming)
