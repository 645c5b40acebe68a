"""The exchange over a communicator, where threads can script what processes cannot. The rest is in the contract suite."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch

from unisono.comm.base import Communicator, Work
from unisono.comm.exchange.base import Request
from unisono.comm.exchange.over_comm import MessageServer, open_exchange
from unisono.errors import UsageError
from unisono.testing.thread_communicator import run_threads

ENOUGH_S = 30.0


def test_calls_are_served_in_the_order_of_their_coming() -> None:
    order = [3, 1, 4, 2]

    def body(comm: Communicator) -> list[int]:
        end = open_exchange(comm)
        if isinstance(end, MessageServer):
            for rank in order:
                comm.send(torch.zeros(1), rank)
                comm.recv(torch.zeros(1), rank)  # it has called
            served = []
            for _ in order:
                request = _received(end)
                served.append(request.caller + 1)
                end.reply(request.caller, 0)
            end.close()
            return served
        comm.recv(torch.zeros(1), 0)
        end[0].post(0, torch.ones(3))
        comm.send(torch.zeros(1), 0)
        end[0].wait_reply(ENOUGH_S)
        end[0].close()
        return []

    assert run_threads(5, body)[0] == order


def test_a_vector_in_flight_blocks_no_other_caller() -> None:
    """The first worker's header is there, its vector is not: the second is served first, and the first when all has come."""

    def body(comm: Communicator) -> list[int]:
        end = open_exchange(comm)
        if isinstance(end, MessageServer):
            comm.recv(torch.zeros(1), 1)
            assert end.receive(0.01) is None
            comm.send(torch.zeros(1), 2)
            second = _received(end)
            end.reply(second.caller, 0)
            comm.send(torch.zeros(1), 1)
            first = _received(end)
            assert first.vector is not None and first.vector.tolist() == [7.0, 7.0]
            end.reply(first.caller, 0)
            end.close()
            return [second.caller, first.caller]
        (caller,) = end
        if comm.rank == 1:
            send = caller._headers.send

            def send_and_wait() -> list[Work[None]]:
                sends = send()
                comm.send(torch.zeros(1), 0)
                comm.recv(torch.zeros(1), 0)
                return sends

            with patch.object(caller._headers, "send", send_and_wait):
                caller.post(0, torch.full((2,), 7.0))
        else:
            comm.recv(torch.zeros(1), 0)
            caller.post(0, torch.ones(5))
        caller.wait_reply(ENOUGH_S)
        caller.close()
        return []

    assert run_threads(3, body)[0] == [1, 0]


def test_a_call_may_take_longer_than_the_limit_of_a_collective() -> None:
    limit_s = 0.5

    def body(comm: Communicator) -> bool:
        end = open_exchange(comm)
        if isinstance(end, MessageServer):
            nothing = end.receive(1.5 * limit_s)
            comm.send(torch.zeros(1), 1)
            request = _received(end)
            assert end.receive(1.5 * limit_s) is None  # the worker waits for its answer meanwhile
            end.reply(request.caller, 0)
            end.close()
            return nothing is None
        comm.time_limit_s = ENOUGH_S
        comm.recv(torch.zeros(1), 0)
        reply = end[0].call(5)
        end[0].close()
        return reply.kind == 0

    assert run_threads(2, body, limit_s) == [True, True]


def test_an_engine_of_gpus_is_refused() -> None:
    def body(comm: Communicator) -> None:
        comm.device = torch.device("cuda", 0)
        open_exchange(comm)

    with pytest.raises(UsageError, match="engine threads moves tensors on cuda:0; choose another --engine: shm"):
        run_threads(2, body)


def test_numbers_of_workers_leave_out_the_servers() -> None:
    def body(comm: Communicator) -> list[int]:
        end = open_exchange(comm, (3, 1))
        numbers = [] if isinstance(end, MessageServer) else [caller.number for caller in end]
        for one in [end] if isinstance(end, MessageServer) else end:
            one.close()
        return numbers

    assert run_threads(5, body) == [[0, 0], [], [1, 1], [], [2, 2]]


def _received(server: MessageServer) -> Request:
    request = server.receive(ENOUGH_S)
    assert request is not None
    return request
