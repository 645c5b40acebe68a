"""The exchange over ZeroMQ: what it carries, who may come in, and what deaths, stops and cut wires cost: nothing but themselves."""

from __future__ import annotations

import os
import random
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any, TypeVar

import pytest
import torch

from tests.system.cut_wire import CutWire
from tests.system.fork_server import ForkServer
from unisono.comm.calls import DTYPES
from unisono.comm.exchange.base import Request, UnknownWorker
from unisono.comm.exchange.zmq_caller import ZmqCaller, connect_socket
from unisono.comm.exchange.zmq_frames import MessageType, pack
from unisono.comm.exchange.zmq_gate import Refusals
from unisono.comm.exchange.zmq_keys import ConnectionInfo, read_connection_file, write_connection_file
from unisono.comm.exchange.zmq_listen import new_pair
from unisono.comm.exchange.zmq_server import ZmqServer
from unisono.errors import CommError, UsageError

zmq = pytest.importorskip("zmq", reason="pyzmq is not installed; pip install pyzmq")

T = TypeVar("T")
PROGRAMS = Path(__file__).parent / "programs"
WORKER, SERVER = str(PROGRAMS / "exchange_worker.py"), str(PROGRAMS / "exchange_server.py")
WORK, STOP, NEVER = 1, 2, 9
ENOUGH_S = 60.0
MAX_BYTES = 20_000_000


@pytest.fixture
def connection_file(tmp_path: Path) -> Path:
    return tmp_path / "exchange.json"


@contextmanager
def serving(
    connection_file: Path, said: list[str] | None = None, silence_s: float = 30.0, first_number: int = 0
) -> Iterator[ZmqServer]:
    say = print if said is None else said.append
    server = ZmqServer(connection_file, max_vector_bytes=MAX_BYTES, silence_s=silence_s, first_number=first_number, say=say)
    with closing(server):
        server.open()
        yield server


@contextmanager
def joined(server: ZmqServer, connection_file: Path, say: Callable[[str], object] = print) -> Iterator[ZmqCaller]:
    with closing(ZmqCaller(connection_file, say=say)) as caller:
        while_serving(server, lambda: caller.join(ENOUGH_S))
        yield caller


def while_serving(server: ZmqServer, action: Callable[[], T]) -> T:
    """What the action gives, which waits for the server to do something other than handing out calls."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(action)
        while not future.done():
            assert server.receive(0.01) is None
        return future.result()


def round_trip(server: ZmqServer, caller: ZmqCaller) -> None:
    vector = torch.arange(100.0)
    caller.post(WORK, vector)
    request = received(server)
    assert request.caller == caller.number
    assert request.vector is not None
    server.reply(caller.number, WORK, request.vector + 1)
    answer = caller.wait_reply(ENOUGH_S).vector
    assert answer is not None
    assert torch.equal(answer, vector + 1)


def received(server: ZmqServer) -> Request:
    request = server.receive(ENOUGH_S)
    assert request is not None
    return request


def until(condition: Callable[[], bool], step: Callable[[], object]) -> None:
    deadline = monotonic() + ENOUGH_S
    while not condition():
        assert monotonic() < deadline, "it does not happen"
        step()


# ---- what it carries -----------------------------------------------------------------------------------------------------


def test_values_arrive_exactly(connection_file: Path) -> None:
    with serving(connection_file) as server, joined(server, connection_file) as caller:
        sizes = [(dtype, numel) for dtype in DTYPES for numel in (0, 1, 1001)] + [(torch.float32, MAX_BYTES // 4)] * 2
        for turn, (dtype, numel) in enumerate(sizes):
            vector = torch.randint(0, 100, (numel,), generator=torch.Generator().manual_seed(turn)).to(dtype)
            caller.post(turn, vector, [turn, -0.5])
            request = received(server)
            assert (request.kind, request.tail.tolist()) == (turn, [turn, -0.5])
            assert request.vector is not None
            assert request.vector.dtype == dtype
            assert torch.equal(request.vector, vector)
            if turn % 2:
                answer = server.buffer(caller.number, numel, dtype).copy_(request.vector.flip(0))
                server.reply(caller.number, -turn, answer, [1e-300])
            else:
                answer = request.vector.flip(0)
                server.reply(caller.number, -turn, answer, [1e-300])
                answer.zero_()
            reply = caller.wait_reply(ENOUGH_S)
            assert (reply.kind, reply.tail.tolist()) == (-turn, [1e-300])
            assert reply.vector is not None
            assert torch.equal(reply.vector, vector.flip(0))
        caller.post(WORK)
        assert received(server).vector is None
        server.reply(caller.number, WORK)
        assert caller.wait_reply(ENOUGH_S).vector is None


def test_answers_may_be_withheld_and_come_in_any_order(connection_file: Path) -> None:
    with serving(connection_file, first_number=5) as server, ExitStack() as stack:
        callers = [stack.enter_context(joined(server, connection_file)) for _ in range(3)]
        assert [caller.number for caller in callers] == [5, 6, 7] == [*server.callers()]
        for turn in range(3):
            for caller in callers:
                caller.post(WORK, None, [turn, caller.number])
                assert received(server).tail.tolist() == [turn, caller.number]
            with pytest.raises(TimeoutError, match=r"has not answered within 0\.01 s"):
                callers[0].wait_reply(0.01)
            for caller in reversed(callers):
                server.reply(caller.number, WORK, None, [caller.number])
            for caller in callers:
                assert caller.wait_reply(ENOUGH_S).tail.tolist() == [caller.number]


def test_the_last_reply_arrives_though_the_server_closes_at_once(connection_file: Path) -> None:
    vector = torch.arange(MAX_BYTES // 4, dtype=torch.float32)
    with ExitStack() as stack:
        with serving(connection_file) as server:
            callers = [stack.enter_context(joined(server, connection_file)) for _ in range(2)]
            for caller in callers:
                caller.post(STOP)
            for _ in callers:
                server.reply(received(server).caller, STOP, vector)
        for caller in callers:
            answer = caller.wait_reply(ENOUGH_S).vector
            assert answer is not None
            assert torch.equal(answer, vector)


def test_calls_out_of_turn_are_refused(connection_file: Path) -> None:
    with serving(connection_file) as server, closing(ZmqCaller(connection_file, say=print)) as caller:
        with pytest.raises(CommError, match="call join first"):
            caller.post(WORK)
        while_serving(server, lambda: caller.join(ENOUGH_S))
        with pytest.raises(CommError, match="there is no call to wait for"):
            caller.wait_reply()
        with pytest.raises(UsageError, match=f"{MAX_BYTES + 4} bytes, but the server accepts at most {MAX_BYTES}"):
            caller.post(WORK, torch.empty(MAX_BYTES // 4 + 1))
        caller.post(WORK)
        with pytest.raises(CommError, match=r"one call at a time.*wait_reply"):
            caller.post(WORK)
        received(server)
        server.reply(caller.number, WORK)
        with pytest.raises(CommError, match="not waiting for a reply"):
            server.reply(caller.number, WORK)
        caller.wait_reply(ENOUGH_S)


def test_a_worker_that_says_goodbye_has_left_and_its_number_is_not_given_again(connection_file: Path) -> None:
    with serving(connection_file) as server:
        with joined(server, connection_file) as caller, joined(server, connection_file) as other:
            caller.post(WORK)
            caller.close()  # without waiting for the answer, so that the call is nobody's
            until(lambda: len(server.callers()) == 1, lambda: server.receive(0.01))
            server.reply(0, WORK)
            assert ([*server.newly_left()], [*server.newly_lost()], [*server.callers()]) == ([0], [], [1])
            round_trip(server, other)
        with joined(server, connection_file) as late:
            assert late.number == 2
            assert server.next_number == 3


def test_a_worker_may_come_before_the_server(connection_file: Path) -> None:
    with closing(ZmqCaller(connection_file, say=print)) as caller, ThreadPoolExecutor(1) as pool:
        with pytest.raises(TimeoutError, match="an address not known yet"):
            caller.join(0.01)
        future = pool.submit(caller.join, ENOUGH_S)
        with serving(connection_file) as server:
            until(future.done, lambda: server.receive(0.01))
            round_trip(server, caller)


# ---- deaths and stops ----------------------------------------------------------------------------------------------------


class Shift:
    """A server of worker processes that remembers who called."""

    def __init__(self, server: ZmqServer) -> None:
        self.server = server
        self.lost: list[int] = []
        self.number: dict[int, int] = {}
        """Of each process, as last heard."""
        self.num_joined: dict[int, int] = {}
        self.num_calls: dict[int, int] = {}
        self.withheld: set[int] = set()
        """Processes that get no answer."""
        self.says = WORK

    def step(self) -> None:
        request = self.server.receive(0.05)
        self.lost += self.server.newly_lost()
        if request is None:
            return
        assert request.caller not in self.lost
        assert request.vector is not None
        assert torch.equal(request.vector, torch.full((1000,), float(request.caller)))
        pid, num_joined = map(int, request.tail)
        self.number[pid], self.num_joined[pid] = request.caller, num_joined
        self.num_calls[pid] = self.num_calls.get(pid, 0) + 1
        if pid not in self.withheld:
            self.server.reply(request.caller, self.says, request.vector * 2)

    def expect_progress(self, *pids: int) -> None:
        """Blocking: until each of them has called ten times more."""
        goal = {pid: self.num_calls.get(pid, 0) + 10 for pid in pids}
        until(lambda: all(self.num_calls.get(pid, 0) >= goal[pid] for pid in pids), self.step)


def test_a_killed_worker_costs_only_itself(connection_file: Path, fork_server: ForkServer) -> None:
    with serving(connection_file, silence_s=2.0) as server, joined(server, connection_file) as idle:
        shift = Shift(server)
        with fork_server.start([WORKER, str(connection_file), "well"], 4, "shm") as group:
            first, waiting, *others = group.pids
            shift.expect_progress(*group.pids)
            shift.withheld.add(waiting)
            until(lambda: shift.num_calls[waiting] >= 11, shift.step)
            os.kill(first, signal.SIGKILL)
            os.kill(waiting, signal.SIGKILL)
            until(lambda: len(shift.lost) == 2, shift.step)
            assert {*shift.lost} == {shift.number[first], shift.number[waiting]}
            server.reply(shift.number[waiting], WORK)  # too late, and no harm
            shift.expect_progress(*others)
            shift.says = STOP
            until(lambda: len(server.callers()) == 1, shift.step)
            assert {*server.newly_left()} == {shift.number[pid] for pid in others}
            assert group.wait(ENOUGH_S).output.count("said goodbye") == 2
        assert {*shift.num_joined.values()} == {1}
        assert [*server.callers()] == [idle.number]  # it has not called for all the time, but it lives


def test_a_stopped_worker_counts_as_dead_and_joins_again(connection_file: Path, fork_server: ForkServer) -> None:
    with serving(connection_file, silence_s=2.0) as server:
        shift = Shift(server)
        with fork_server.start([WORKER, str(connection_file), "well"], 2, "shm") as group:
            stopped, other = group.pids
            shift.expect_progress(stopped, other)
            os.kill(stopped, signal.SIGSTOP)
            until(lambda: bool(shift.lost), shift.step)
            before = shift.number[stopped]
            assert shift.lost == [before]
            shift.expect_progress(other)
            os.kill(stopped, signal.SIGCONT)
            shift.expect_progress(stopped, other)
            assert shift.number[stopped] > max(before, shift.number[other])
            assert (shift.num_joined[stopped], shift.num_joined[other]) == (2, 1)
            shift.says = STOP
            until(group.is_over, shift.step)
            assert group.wait(ENOUGH_S).output.count("said goodbye") == 2
        assert shift.lost == [before]


def test_a_worker_that_fails_ends_at_once_and_is_lost(connection_file: Path, fork_server: ForkServer) -> None:
    with serving(connection_file, silence_s=1.0) as server:
        shift = Shift(server)
        shift.says = STOP
        with fork_server.start([WORKER, str(connection_file), "raises"], 1, "shm") as group:
            until(group.is_over, shift.step)
            ended = group.wait(ENOUGH_S)
        assert ended.exit_code == 1
        assert "without a goodbye" in ended.output
        until(lambda: bool(shift.lost), shift.step)
        assert [*server.newly_left()] == []


def test_a_busy_server_does_not_think_others_dead(connection_file: Path) -> None:
    with serving(connection_file, silence_s=0.5) as server, joined(server, connection_file) as caller:
        caller._end_heartbeats()  # nothing of it waits at the server when that looks again
        sleep(1.0)  # what a server does that folds a large vector
        assert server.receive(0) is None
        assert [*server.newly_lost()] == []
        until(lambda: not server.callers(), lambda: server.receive(0.05))
        assert [*server.newly_lost()] == [caller.number]
        caller.post(WORK)
        with pytest.raises(UnknownWorker, match="does not know worker 0"):
            while_serving(server, lambda: caller.wait_reply(ENOUGH_S))
        assert while_serving(server, lambda: caller.join(ENOUGH_S)) == 1
        round_trip(server, caller)


def test_workers_wait_for_a_killed_server_and_join_it_again(
    connection_file: Path, fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unisono.comm.exchange.zmq_caller.NO_ANSWER_WARNING_S", 1.0)
    said: list[str] = []
    with closing(ZmqCaller(connection_file, say=said.append)) as waiting, closing(ZmqCaller(connection_file, say=print)) as idle:
        with fork_server.start([SERVER, str(connection_file), "0"], 1, "shm") as group:
            assert {waiting.join(ENOUGH_S), idle.join(ENOUGH_S)} == {0, 1}
            vector = torch.arange(1000.0)
            assert torch.equal(_vector_of(idle, vector), vector * 2)
            waiting.post(NEVER, vector)
            with pytest.raises(TimeoutError):
                waiting.wait_reply(0.2)
            os.kill(group.pids[0], signal.SIGKILL)
            group.wait(ENOUGH_S)
        address = read_connection_file(connection_file)
        while not said:
            with pytest.raises(TimeoutError):
                waiting.wait_reply(0.2)
        assert "waiting for the server at" in said[0]
        with fork_server.start([SERVER, str(connection_file), "10"], 1, "shm"):
            with pytest.raises(UnknownWorker):
                waiting.wait_reply(ENOUGH_S)
            idle.post(WORK, vector)
            with pytest.raises(UnknownWorker):
                idle.wait_reply(ENOUGH_S)
            assert [waiting.join(ENOUGH_S), idle.join(ENOUGH_S)] == [10, 11]
            assert read_connection_file(connection_file) == address
            for caller in (waiting, idle):
                assert torch.equal(_vector_of(caller, vector), vector * 2)


def _vector_of(caller: ZmqCaller, vector: torch.Tensor) -> torch.Tensor:
    caller.post(WORK, vector)
    answer = caller.wait_reply(ENOUGH_S).vector
    assert answer is not None
    return answer


def test_a_server_whose_port_was_taken_is_found_at_another(connection_file: Path) -> None:
    said: list[str] = []
    with closing(ZmqCaller(connection_file, say=print)) as caller:
        with serving(connection_file, silence_s=5.0) as server:
            while_serving(server, lambda: caller.join(ENOUGH_S))
            caller.post(WORK)
            received(server)
        before = read_connection_file(connection_file)
        port = int(before.address.rpartition(":")[2])
        with socket.create_server(("127.0.0.1", port)), serving(connection_file, said, first_number=1) as server:
            assert len(said) == 1 and f"port {port} of 127.0.0.1 is now used by another program" in said[0]
            after = read_connection_file(connection_file)
            assert after == before._replace(address=after.address) != before
            with pytest.raises(UnknownWorker):
                while_serving(server, lambda: caller.wait_reply(ENOUGH_S))
            assert while_serving(server, lambda: caller.join(ENOUGH_S)) == 1
            round_trip(server, caller)


def test_a_second_server_and_a_wrong_address_are_refused(connection_file: Path, tmp_path: Path) -> None:
    with serving(connection_file) as server:
        with pytest.raises(UsageError, match="another server is using the keys"), serving(connection_file):
            pass
        port = int(read_connection_file(connection_file).address.rpartition(":")[2])
        for host, wanted, why in (
            ("127.0.0.1", port, f"port {port} of 127.0.0.1 is taken"),
            ("0.0.0.0", 0, "stands for all addresses"),
            ("192.0.2.1", 0, "cannot listen at 192.0.2.1:0"),
            ("no.such.host.invalid", 0, "is not known"),
        ):
            other = ZmqServer(tmp_path / "other.json", max_vector_bytes=8, host=host, port=wanted, say=print)
            with closing(other), pytest.raises(UsageError, match=why):
                other.open()
        with joined(server, connection_file) as caller:
            round_trip(server, caller)


def test_a_number_means_nothing_to_another_server(connection_file: Path) -> None:
    with closing(ZmqCaller(connection_file, say=print)) as old:
        with serving(connection_file) as server:
            while_serving(server, lambda: old.join(ENOUGH_S))
        with serving(connection_file) as server, joined(server, connection_file) as new:
            assert (old.number, new.number) == (0, 0)
            old.post(WORK)
            with pytest.raises(UnknownWorker):
                while_serving(server, lambda: old.wait_reply(ENOUGH_S))
            round_trip(server, new)


def test_a_call_that_comes_again_is_handed_out_once(connection_file: Path) -> None:
    with serving(connection_file) as server, joined(server, connection_file) as caller, member_socket(connection_file) as peer:
        call = pack(MessageType.CALL, caller._incarnation, caller.number, 1, WORK)
        for _ in range(2):
            peer.send(call)
        assert received(server).kind == WORK
        server.reply(caller.number, WORK)
        for part in (call, pack(MessageType.PING, caller._incarnation, caller.number, 1)):
            peer.send(part)
        while_serving(server, lambda: [peer.recv() for _ in range(2)])  # the answer, and that to the ping, which was behind


@pytest.mark.parametrize("lost", ["call", "answer"])
def test_a_cut_wire_costs_nothing(connection_file: Path, tmp_path: Path, lost: str) -> None:
    other = tmp_path / "wire.json"
    with serving(connection_file) as server, CutWire(int(read_connection_file(connection_file).address.rpartition(":")[2])) as wire:
        write_connection_file(other, read_connection_file(connection_file)._replace(address=f"127.0.0.1:{wire.port}"))
        with joined(server, other) as caller:
            caller._heartbeat_s = 0.1
            for turn in range(3):
                wire.swallows = lost == "call"
                wire.num_swallowed = 0
                caller.post(WORK, torch.full((50_000,), float(turn)))
                if lost == "call":
                    until(lambda: wire.num_swallowed >= 200_000, lambda: server.receive(0.01))
                    wire.swallows = False
                    wire.cut()
                    with ThreadPoolExecutor(1) as pool:
                        future = pool.submit(caller.wait_reply, ENOUGH_S)
                        request = received(server)
                        server.reply(request.caller, WORK, request.vector)
                        until(future.done, lambda: server.receive(0.01))
                        reply = future.result()
                else:
                    request = received(server)
                    wire.cut()
                    server.reply(request.caller, WORK, request.vector)
                    reply = while_serving(server, lambda: caller.wait_reply(ENOUGH_S))
                assert reply.vector is not None
                assert torch.equal(reply.vector, torch.full((50_000,), float(turn)))
            assert caller.number == 0


# ---- who may come in -----------------------------------------------------------------------------------------------------


@contextmanager
def stranger(connection_file: ConnectionInfo, **options: object) -> Iterator[None]:
    """A peer that says hello, as one could with the connection file alone."""
    context = zmq.Context()
    peer = connect_socket(context, connection_file) if not options else context.socket(zmq.DEALER)
    try:
        if options:
            peer.linger = 0
            peer.connect(f"tcp://{connection_file.address}")
        peer.send(pack(MessageType.HELLO, bytes(8), -1, 7))
        yield
        assert not peer.poll(0)
    finally:
        peer.close(0)
        context.term()


def test_peers_without_the_key_are_refused_and_named(connection_file: Path) -> None:
    said: list[str] = []
    with serving(connection_file, said) as server, joined(server, connection_file) as caller:
        right = read_connection_file(connection_file)
        client_public, client_secret = new_pair()
        server_public, _ = new_pair()
        other_client = right._replace(client_public=client_public, client_secret=client_secret)
        other_server = right._replace(server_public=server_public)
        for peer, texts in (
            (stranger(other_client), {"refused a peer at 127.0.0.1: its key is not that of this run"}),
            (stranger(other_server), {"refused a peer: it does not know the server's key"}),
            # Either end may be the first to see that they have nothing in common.
            (stranger(right, no_key=True), {"refused a peer: it has no key", "refused a peer: it left before it had shown a key"}),
        ):
            before = len(said)
            with peer:
                until(partial(has_reports, said, before), partial(round_trip, server, caller))
            assert {*said[before:]} <= texts
        assert [*server.callers()] == [caller.number]
        assert server.next_number == 1


def has_reports(said: list[str], before: int) -> bool:
    return len(said) > before


GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)


def test_garbage_changes_nothing(connection_file: Path) -> None:
    said: list[str] = []
    draw = random.Random(3)
    with serving(connection_file, said) as server, joined(server, connection_file) as caller, ExitStack() as stack:
        host, _, port = read_connection_file(connection_file).address.rpartition(":")
        rubbish = (
            b"",
            GREETING[:20],
            GREETING,
            GREETING + b"\x06\xff" + b"\xff" * 8,
            GREETING + b"\x06" + b"\x7f" + b"\xff" * 7 + b"\x05HELLO",
            GREETING + b"\x04\xc8" + b"\x05HELLO" + bytes(194),
            b"\xff" * 300,
            b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        )
        for number in range(200):
            sender = stack.enter_context(socket.create_connection((host, int(port)), ENOUGH_S))
            sender.sendall(rubbish[number % len(rubbish)] if number % 3 else draw.randbytes(draw.randrange(1, 3000)))
            if number % 10 == 0:
                round_trip(server, caller)
        until(lambda: any("broke the protocol" in line for line in said), lambda: round_trip(server, caller))
        stack.close()
        until(lambda: any("left before it had shown a key" in line for line in said), lambda: round_trip(server, caller))
        with joined(server, connection_file) as late:
            round_trip(server, late)
        assert len(said) < 20, said


@contextmanager
def member_socket(connection_file: Path) -> Iterator[Any]:
    """That of a peer which has the keys and may send what it likes."""
    context = zmq.Context()
    peer = connect_socket(context, read_connection_file(connection_file))
    peer.rcvtimeo = int(ENOUGH_S * 1000)
    try:
        yield peer
    finally:
        peer.close(0)
        context.term()


def goes_off(peer: Any, parts: list[bytes]) -> bool:
    """Never blocks: a queue that is full before the peer was let in waits for the server, which is in the hands of this thread."""
    try:
        peer.send_multipart(parts, zmq.NOBLOCK)
    except zmq.Again:
        return False
    return True


def test_malformed_messages_of_a_member_are_refused(connection_file: Path) -> None:
    said: list[str] = []
    with (
        serving(connection_file, said) as server,
        joined(server, connection_file) as caller,
        member_socket(connection_file) as peer,
    ):
        draw = random.Random(4)
        good = pack(MessageType.CALL, caller._incarnation, caller.number, 1, 0, [1.0], torch.zeros(3))
        for parts in (
            [b""],
            [b"", b"", b""],
            [good],
            [good, bytes(13)],
            [good, bytes(12), bytes(12)],
            [pack(MessageType.REPLY, caller._incarnation, caller.number)],
            *([draw.randbytes(draw.randrange(200)) for _ in range(draw.randrange(1, 4))] for _ in range(50)),
        ):
            until(partial(goes_off, peer, parts), partial(round_trip, server, caller))
        until(partial(goes_off, peer, [b"last"]), partial(round_trip, server, caller))
        last = "refused a message from 127.0.0.1: a header of 4 instead of"
        until(lambda: any(last in line for line in said), lambda: round_trip(server, caller))
        assert any("REPLY, which only a server sends" in line for line in said)
        assert any("bytes of vector for 3 elements" in line for line in said)


def test_refusals_are_reported_ever_more_rarely() -> None:
    said: list[str] = []
    refusals = Refusals(said.append)
    for _ in range(1234):
        refusals.note("a peer at here", "no reason")
    assert said == [
        "refused a peer at here: no reason",
        *(f"refused a peer at here: no reason ({count} times so far)" for count in (10, 100, 1000)),
    ]
    for number in range(5000):
        refusals.note(f"peer {number}", "it is one of many")
    assert sum("further peers" in line for line in said) == 4
