"""Checks of server and workers over a communicator: values, order, withheld answers, limits of waiting, the end.

One rank serves and all others call; with four ranks also two and two. A group of one has nobody to call, and one on
GPUs is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial

import numpy as np
import torch

from unisono.comm.base import DTYPES, Communicator
from unisono.comm.exchange.base import Caller, Reply, Request, Server
from unisono.comm.exchange.over_comm import MessageServer, open_exchange
from unisono.errors import CommError, UsageError
from unisono.testing.checks.expected import contribution, expect, expect_equal

ECHO, FOLD, ZERO, LEAVE, DONE = range(5)
"""Kinds of calls and answers."""
MAPPED_BYTES = 4 << 20
LARGE = 750_000
"""Elements of float32: 3 MB."""
ENOUGH_S = 20.0
MOST_NUMBERS = 8


def check_exchange_carries_every_size_and_type(comm: Communicator) -> None:
    """Vectors of many sizes and all dtypes come back unchanged, plain and mapped, and a call without a vector."""
    for mapped_bytes in (0, MAPPED_BYTES):

        def work(caller: Caller) -> None:
            for numel in (0, 1, 2_500, LARGE):
                _expect_echo(caller, numel, torch.float32)
            for dtype in DTYPES:
                _expect_echo(caller, 1001, dtype)
            reply = caller.call(ECHO)
            expect(reply.vector is None and not reply.tail.size, f"a call without a vector and numbers gave {reply}")

        _serve_or_work(comm, work, mapped_bytes)


def check_exchange_in_mapped_memory(comm: Communicator) -> None:
    """Several vectors from `empty`, more of them than were reserved, and other memory in between. What the server changes in a
    request its worker sees where memory is shared, and there alone."""
    is_shared = comm.share([]) is not None
    mapped_bytes = 1 << 20

    def work(caller: Caller) -> None:
        numel = mapped_bytes // 4 // 2 - 100
        vectors = [caller.empty(numel) for _ in range(3)] + [torch.empty(numel), caller.empty(7, torch.float64)]
        for salt, vector in enumerate(vectors):
            vector.copy_(torch.from_numpy(contribution(caller.number, vector.numel(), salt)))
        for salt, vector in [*enumerate(vectors), *reversed(list(enumerate(vectors)))]:
            reply = caller.call(ECHO, vector)
            expect(reply.vector is not None, f"vector {salt} came back as nothing")
            if reply.vector is not None:
                expect_equal(reply.vector, contribution(caller.number, vector.numel(), salt), f"vector {salt} of several")
        caller.call(ZERO, vectors[1])
        expect(bool((vectors[1] == 0).all()) == is_shared, f"shared memory: {is_shared}, but the vector is {vectors[1]}")

    _serve_or_work(comm, work, mapped_bytes)


def check_exchange_keeps_every_call(comm: Communicator) -> None:
    """All call at once, each with a running number: the server gets every vector once, each worker's calls in their order."""
    num_calls, numel = 25, 300

    def serve(server: Server, num_workers: int) -> None:
        centre, num_seen = torch.zeros(numel), [0] * num_workers
        for _ in range(num_calls * num_workers):
            request = _receive(server)
            expect(request.tail.tolist() == [num_seen[request.caller]], f"call {num_seen[request.caller]} came as {request.tail}")
            num_seen[request.caller] += 1
            assert request.vector is not None
            centre += request.vector
            server.reply(request.caller, DONE, torch.add(centre, 0, out=server.buffer(request.caller, numel, torch.float32)))
        expect(num_seen == [num_calls] * num_workers, f"calls by worker: {num_seen}")
        total = num_calls * np.sum([contribution(number, numel) for number in range(num_workers)], axis=0)
        expect_equal(centre, total, "the centre after all calls")

    def work(caller: Caller) -> None:
        vector, before = caller.empty(numel), np.zeros(numel)
        for call in range(num_calls):
            vector.copy_(torch.from_numpy(contribution(caller.number, numel)))  # the last answer may lie there
            reply = caller.call(FOLD, vector, [call])
            assert reply.vector is not None
            now = reply.vector.double().numpy()
            expect(bool((now >= before + contribution(caller.number, numel)).all()), f"the answer to call {call} lacks that call")
            before = now.copy()

    for num_servers in _numbers_of_servers(comm):
        with _open_exchange(comm, num_servers, numel * 4) as (server, callers):
            if server is not None:
                serve(server, comm.size - num_servers)
            for caller in callers:
                work(caller)


def check_exchange_with_several_servers(comm: Communicator) -> None:
    """A worker calls all servers before it takes the first answer; each answer is that of its server."""
    for num_servers in _numbers_of_servers(comm):
        with _open_exchange(comm, num_servers, 0) as (server, callers):
            for turn in range(3):
                for number, caller in enumerate(callers):
                    caller.post(ECHO, torch.full((5_000,), 10.0 * caller.number + number), [turn])
                for number, caller in enumerate(callers):
                    reply = caller.wait_reply(ENOUGH_S)
                    assert reply.vector is not None
                    expect_equal(reply.vector, np.full(5_000, 10 * caller.number + number), f"answer of server {number}")
                for _ in range(comm.size - num_servers if server is not None else 0):
                    assert server is not None
                    _echo(server, _receive(server))


def check_exchange_serves_who_comes_first(comm: Communicator) -> None:
    """Each worker calls when it is told to. All answers are withheld until the last has called, and given in another order."""
    order = [*range(2, comm.size), *range(1, min(2, comm.size))]
    with _open_exchange(comm, 1, 4_000) as (server, callers):
        for caller in callers:
            comm.recv(torch.zeros(1), 0)
            reply = caller.call(FOLD, torch.full((1000,), float(caller.number)))
            assert reply.vector is not None
            expect_equal(reply.vector, np.full(1000, 100 + caller.number), "a withheld answer")
        if server is not None:
            held = []
            for rank in order:
                expect(server.receive(0.0) is None, "a call came before any rank was told to call")
                comm.send(torch.zeros(1), rank)
                held.append(_receive(server))
                expect(held[-1].caller == rank - 1, f"rank {rank} was told to call, but caller {held[-1].caller} came")
            for request in reversed(held):
                assert request.vector is not None
                server.reply(request.caller, DONE, request.vector + 100)


def check_exchange_waits_as_long_as_it_is_told(comm: Communicator) -> None:
    """A server and a worker that wait in vain, and get it later."""
    with _open_exchange(comm, 1, 0) as (server, callers):
        for caller in callers:
            caller.post(ECHO, torch.ones(LARGE), [1.0])
            for timeout_s in (0.0, 0.02):
                _expect_late(caller, timeout_s)
        if server is not None:
            held = [_receive(server) for _ in range(comm.size - 1)]
            for timeout_s in (0.0, 0.02):
                expect(server.receive(timeout_s) is None, "the server received a call that nobody made")
        comm.barrier()  # nobody has an answer yet
        if server is not None:
            for request in held:
                _echo(server, request)
        for caller in callers:
            _expect_vector(caller.wait_reply(ENOUGH_S), np.ones(LARGE), "an answer that was late")


def check_exchange_opened_again_and_again(comm: Communicator) -> None:
    """An exchange can be opened again and again, also after one without a call."""
    for opening in range(4):
        with _open_exchange(comm, 1, 1000 * opening) as (server, callers):
            for caller in callers[: opening % 2]:
                _expect_echo(caller, 10, torch.float32)
            for _ in range((comm.size - 1) * (opening % 2) if server is not None else 0):
                assert server is not None
                _echo(server, _receive(server))


def check_exchange_refusals(comm: Communicator) -> None:
    """Impossible sets of servers, and calls or replies out of turn, raise an error that says so."""
    for servers in ((), (0, 0), (comm.size,), tuple(range(comm.size))):
        _expect_refused(partial(open_exchange, comm, servers), "server")
    if not _is_able(comm):
        return
    _expect_refused(lambda: open_exchange(comm, (0,), comm.rank), "different exchanges")
    with _open_exchange(comm, 1, 0) as (server, callers):
        if server is not None:
            _expect_refused(lambda: server.reply(0, DONE), "not waiting for")
            _expect_refused(lambda: server.buffer(comm.size, 1, torch.float32), "not waiting for")
            for _ in range(comm.size - 1):
                _echo(server, _receive(server))
        for caller in callers:
            _expect_refused(caller.wait_reply, "post a call first")
            _expect_refused(partial(caller.post, ECHO, None, [0.0] * (MOST_NUMBERS + 1)), "most_numbers")
            caller.post(ECHO)
            _expect_refused(partial(caller.post, ECHO), "one call at a time")
            caller.wait_reply()


def _numbers_of_servers(comm: Communicator) -> list[int]:
    """Returns the numbers of servers to try, 1 and 2 if there are workers left; none where an exchange cannot be opened."""
    return [number for number in (1, 2) if number < comm.size] if _is_able(comm) else []


def _is_able(comm: Communicator) -> bool:
    """Whether an exchange can be opened: with at least two ranks, on the CPU."""
    return comm.size > 1 and comm.device.type == "cpu"


@contextmanager
def _open_exchange(comm: Communicator, num_servers: int, mapped_bytes: int) -> Iterator[tuple[Server | None, list[Caller]]]:
    """Collective: opens an exchange and returns the ends of this rank; None where the engine cannot have one."""
    if not _is_able(comm):
        yield None, []
        return
    # The last ranks serve if there are several, so that numbers of workers and ranks are not the same everywhere.
    servers = (0,) if num_servers == 1 else tuple(range(comm.size - num_servers, comm.size))
    end = open_exchange(comm, servers, MOST_NUMBERS, mapped_bytes)
    if isinstance(end, MessageServer):
        with closing(end):
            yield end, []
        return
    yield None, list(end)
    for caller in end:
        caller.close()
        caller.close()


def _serve_or_work(comm: Communicator, work: Callable[[Caller], None], mapped_bytes: int) -> None:
    """Collective: servers that answer what they get, until every worker has done its work with each of them."""
    for num_servers in _numbers_of_servers(comm):
        with _open_exchange(comm, num_servers, mapped_bytes) as (server, callers):
            for caller in callers:
                work(caller)
                caller.call(LEAVE)
            num_left = comm.size - num_servers if server is not None else 0
            while num_left:
                assert server is not None
                request = _receive(server)
                num_left -= request.kind == LEAVE
                _echo(server, request)


def _echo(server: Server, request: Request) -> None:
    """Answers a request with its own vector and numbers; with zeros for a request of kind `ZERO`."""
    if request.kind == ZERO and request.vector is not None:
        request.vector.zero_()
    server.reply(request.caller, DONE, request.vector, request.tail)


def _receive(server: Server) -> Request:
    """Returns the next request of a server; raises if none comes in time."""
    request = server.receive(ENOUGH_S)
    if request is None:
        raise AssertionError(f"no call came within {ENOUGH_S:g} s")
    return request


def _expect_echo(caller: Caller, numel: int, dtype: torch.dtype) -> None:
    """Sends a vector and numbers to an echoing server and asserts that both come back."""
    values = contribution(caller.number, numel)
    vector = caller.empty(numel, dtype).copy_(torch.from_numpy(values))
    tail = [0.1, -1e300, float(caller.number)]
    reply = caller.call(ECHO, vector, tail)
    expect(reply.kind == DONE and reply.tail.tolist() == tail, f"kind and numbers came back as {reply.kind}, {reply.tail}")
    expect(reply.vector is not None and reply.vector.dtype == dtype, f"a vector of {dtype} came back otherwise")
    _expect_vector(reply, values, f"{dtype}[{numel}] there and back")


def _expect_vector(reply: Reply, values: np.ndarray, what: str) -> None:
    """Asserts that a reply has a vector with these values."""
    assert reply.vector is not None
    expect_equal(reply.vector, values, what)


def _expect_late(caller: Caller, timeout_s: float) -> None:
    """Asserts that no answer comes within the time, and that the `TimeoutError` says so."""
    try:
        caller.wait_reply(timeout_s)
    except TimeoutError as error:
        expect("did not answer" in str(error), f"a late answer says {error}")
        return
    raise AssertionError("an answer came that was not given")


def _expect_refused(call: Callable[[], object], word: str) -> None:
    """Asserts that a call raises an error that contains the word."""
    try:
        call()
    except (CommError, UsageError) as error:
        expect(word in str(error), f"expected {word!r} in the message: {error}")
        return
    raise AssertionError(f"not refused: {word}")
