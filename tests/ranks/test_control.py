"""The control plane between real processes: who is there, who is lost and why, small objects, strangers at the door."""

from __future__ import annotations

import os
import random
import secrets
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.ranks.remote_rank import Raised, RemoteRank, until
from tests.system.hosts import INTERFACE, Host
from unisono.comm.control_plane import channel, guests, handshake
from unisono.comm.control_plane.channel import UNAUTHENTICATED_LIMIT_BYTES
from unisono.comm.control_plane.control import LEFT
from unisono.comm.control_plane.guests import SPARE_GUESTS
from unisono.comm.control_plane.handshake import MAGIC, NONCE_BYTES, PROOF_BYTES
from unisono.comm.control_plane.hub_connection import DIED
from unisono.comm.control_plane.tcp_control import TcpControl
from unisono.errors import CollectiveTimeout, UsageError

HERE = "127.0.0.1"
LIMIT_S = 20.0


def some_ports(count: int = 8) -> list[int]:
    """Neighbouring ports below those that the kernel gives to clients, all free at this moment."""
    while True:
        first = random.randrange(15000, 32000)
        ports = list(range(first, first + count))
        with suppress(OSError), ExitStack() as stack:
            for port in ports:
                stack.enter_context(socket.create_server(("", port)))
            return ports


class Job:
    """Processes with the values they would connect with."""

    def __init__(self, ranks: Sequence[RemoteRank], ports: Sequence[int], token: str, address: str = HERE) -> None:
        self.ranks = ranks
        self.ports = ports
        self.token = token
        self.address = address

    def values(self, rank: int, **other: Any) -> dict[str, Any]:
        standard = {
            "rank": rank,
            "size": len(self.ranks),
            "address": self.address,
            "ports": self.ports,
            "token": self.token,
            "timeout_s": LIMIT_S,
            "info": {"i am": rank},
        }
        return {**standard, **other}

    def connect(self) -> list[Any]:
        for rank, process in enumerate(self.ranks):
            process.start("connect", **self.values(rank))
        return [process.result() for process in self.ranks]

    def all_call(self, command: str, *args: Any, **named: Any) -> list[Any]:
        return self.all_call_of(range(len(self.ranks)), command, *args, **named)

    def all_call_of(self, some: Iterable[int], command: str, *args: Any, **named: Any) -> list[Any]:
        chosen = [self.ranks[rank] for rank in some]
        for process in chosen:
            process.start(command, *args, **named)
        return [process.result() for process in chosen]


@contextmanager
def started(size: int, prefixes: Sequence[Sequence[str]] = (), address: str = HERE) -> Iterator[Job]:
    with ExitStack() as stack:
        ranks = [stack.enter_context(RemoteRank(prefixes[rank] if prefixes else ())) for rank in range(size)]
        until(lambda: all(process.is_ready() for process in ranks))  # time limits are not for interpreters that start
        yield Job(ranks, some_ports(), secrets.token_hex(8), address)


@contextmanager
def connected(size: int) -> Iterator[Job]:
    with started(size) as job:
        for answer in job.connect():
            assert not isinstance(answer, Raised), answer
        yield job


def in_threads(*bodies: Callable[[], Any]) -> list[Any]:
    """Ranks as threads of this process, for what needs no process of its own. Results or exceptions, in order."""
    results: list[Any] = [None] * len(bodies)

    def one(position: int) -> None:
        try:
            results[position] = bodies[position]()
        except Exception as error:  # noqa: BLE001 -- looked at by the test
            results[position] = error

    threads = [threading.Thread(target=one, args=(position,)) for position in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S + 10)
        assert not thread.is_alive()
    return results


def num_open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def is_lost(process: RemoteRank, rank: int, reason: str, causes: tuple[int, ...] = ()) -> bool:
    return bool(process.call("lost").get(rank) == (reason, causes))


def ends(found: Any, kind: str, ranks: Sequence[int], text: str) -> None:
    assert isinstance(found, Raised), found
    assert (found.kind, found.ranks) == (kind, tuple(ranks)), found
    assert text in found.text


# ---- meeting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_all_meet_and_exchange_in_the_order_of_members(size: int) -> None:
    with started(size) as job:
        infos = [{"i am": rank} for rank in range(size)]
        assert job.connect() == [{"address": HERE, "infos": infos}] * size
        everybody = list(range(size))
        for rank, process in enumerate(job.ranks):
            process.start("exchange", "first", everybody[::-1], {"of": rank, "nan": float("inf")}, LIMIT_S)
        backwards = [{"of": rank, "nan": float("inf")} for rank in everybody[::-1]]
        assert [process.result() for process in job.ranks] == [backwards] * size
        assert "torch" not in job.ranks[0].call("modules")
        job.all_call("close")
        assert [process.exit_code() for process in job.ranks] == [0] * size


def test_the_last_to_come_is_waited_for() -> None:
    with started(3) as job:
        for rank in (0, 1):
            job.ranks[rank].start("connect", **job.values(rank))
        until(lambda: job.ranks[1].is_in("await_welcome"))
        answer = job.ranks[2].call("connect", **job.values(2))
        assert [job.ranks[rank].result() for rank in (0, 1)] == [answer] * 2


def test_missing_ranks_are_named_to_all() -> None:
    with started(4) as job:
        for rank in (0, 2):
            job.ranks[rank].start("connect", **job.values(rank, timeout_s=1.5, job="study 7"))
        for rank in (0, 2):
            said = f"ranks 1, 3 of 4 did not connect to {HERE}, port {job.ports[0]}, in time for job 'study 7'; see"
            ends(job.ranks[rank].result(), "CollectiveTimeout", [1, 3], said)


def test_a_rank_that_dies_while_others_are_awaited_ends_the_wait() -> None:
    with started(3) as job:
        for rank in (0, 1):
            job.ranks[rank].start("connect", **job.values(rank))
        until(lambda: job.ranks[1].is_in("await_welcome"))
        job.ranks[1].kill()
        ends(job.ranks[0].result(), "PeerLost", [1], DIED)


def test_rank_0_dies_before_all_are_there() -> None:
    with started(3) as job:
        for rank in (0, 1):
            job.ranks[rank].start("connect", **job.values(rank))
        until(lambda: job.ranks[1].is_in("await_welcome"))
        job.ranks[0].kill()
        ends(job.ranks[1].result(), "PeerLost", [0], DIED)


def test_no_rank_0_to_connect_to() -> None:
    ports = some_ports(3)
    with pytest.raises(CollectiveTimeout, match=f"no rank 0 of this job at {HERE}, ports {ports[0]}-{ports[2]}.*refused") as caught:
        TcpControl.connect(1, 2, HERE, ports, "token", 0.5)
    assert caught.value.ranks == (0,)
    with pytest.raises(CollectiveTimeout, match="rank 1 found no rank 0 of job 'study 7' at "):
        TcpControl.connect(1, 2, HERE, ports, "token", 0.2, job="study 7")


def test_host_name_that_does_not_resolve() -> None:
    with pytest.raises(UsageError, match=r"host name 'no\.such\.host\.invalid' of rank 0 does not resolve"):
        TcpControl.connect(1, 2, "no.such.host.invalid", [20000], "token", 0.5)


def test_world_sizes_that_disagree_are_reported_to_all_at_once() -> None:
    """Node 0 believes in three processes, node 1 in six. Nobody waits for a time limit, not even who comes a little later."""
    with started(5) as job:
        zero, one, wrong, late, later = job.ranks
        zero.start("connect", **job.values(0, size=3, job="study"))
        one.start("connect", **job.values(1, size=3, job="study"))
        until(lambda: one.is_in("await_welcome"))
        found = [wrong.call("connect", **job.values(3, size=6)), one.result()]
        found += [late.call("connect", **job.values(4, size=6)), later.call("connect", **job.values(2, size=3))]
        found.append(zero.result())
        said = f"world size disagrees in job 'study': rank 3 (process {wrong.pid} on {socket.gethostname()}) says 6, rank 0 on "
        for answer in found:
            ends(answer, "UsageError", [], said)
        assert len({answer.text for answer in found}) == 1


def test_a_world_size_that_disagrees_does_not_disturb_a_job_that_is_complete() -> None:
    with started(3) as job:
        for rank in (0, 1):
            job.ranks[rank].start("connect", **job.values(rank, size=2))
        assert not any(isinstance(job.ranks[rank].result(), Raised) for rank in (0, 1))
        ends(job.ranks[2].call("connect", **job.values(2, size=3)), "UsageError", [], "world size disagrees in this job: rank 2")
        assert job.all_call_of((0, 1), "exchange", "after", [0, 1], "fine", LIMIT_S) == [["fine"] * 2] * 2


def test_a_rank_that_is_there_twice() -> None:
    with started(3) as job:
        for rank in (0, 1):
            job.ranks[rank].start("connect", **job.values(rank))
        until(lambda: job.ranks[1].is_in("await_welcome"))
        found = job.ranks[2].call("connect", **job.values(1))
        ends(found, "UsageError", [], f"two processes are rank 1 of this job: process {job.ranks[1].pid} on ")
        assert not isinstance(job.ranks[2].call("connect", **job.values(2)), Raised)
        assert not any(isinstance(job.ranks[rank].result(), Raised) for rank in (0, 1))


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"rank": 2}, r"rank 2 does not lie in 0\.\.1"),
        ({"ports": []}, "ports must be numbers in 1..65535"),
        ({"ports": [70000]}, "ports must be numbers in 1..65535"),
        ({"token": ""}, "token is empty"),
        ({"timeout_s": 0}, "timeout_s must be positive"),
        ({"info": {"big": "x" * UNAUTHENTICATED_LIMIT_BYTES}}, "info has .* bytes"),
        ({"info": {"set": {1}}}, r"obj\['info'\]\['set'\] is a set"),
    ],
)
def test_wrong_values_are_refused_before_anything_is_sent(wrong: dict[str, Any], text: str) -> None:
    values = {"rank": 1, "size": 2, "address": HERE, "ports": [20000], "token": "t", "timeout_s": 1, **wrong}
    with pytest.raises(UsageError, match=text):
        TcpControl.connect(**values)


def own_addresses() -> list[str]:
    found = [a.address for addresses in psutil.net_if_addrs().values() for a in addresses if a.family == socket.AF_INET]
    return [address for address in found if not address.startswith("127.")][:1]


@pytest.mark.parametrize("address", ["localhost", "127.0.0.2", "::1", *own_addresses()])
def test_all_on_one_host_use_loopback_whatever_the_address(address: str) -> None:
    ports = some_ports()
    pair = in_threads(*(partial(TcpControl.connect, rank, 2, address, ports, "token", LIMIT_S) for rank in (0, 1)))
    assert all(isinstance(control, TcpControl) for control in pair), pair
    listening = {c.laddr.ip for c in psutil.Process().net_connections() if c.status == "LISTEN" and c.laddr.port in ports}
    assert {control.local_address for control in pair} <= {HERE, address}
    assert listening == {"localhost": {HERE}, "127.0.0.2": {address}, "::1": {address}}.get(address, {"::"})
    in_threads(*(control.close for control in pair))


def test_no_free_port() -> None:
    with socket.create_server((HERE, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} on .* all taken or forbidden"):
            TcpControl.connect(0, 2, HERE, [port], "token", 1)


# ---- strangers -----------------------------------------------------------------------------------------------------


def test_two_jobs_with_the_same_ports_never_meet() -> None:
    with started(4) as job:
        (a0, a1, b0, b1), ports = job.ranks, job.ports
        a0.start("connect", **job.values(0, size=2, token="a", info={"job": "a"}))
        until(lambda: psutil.Process(a0.pid).net_connections())
        # b's members reach a's hub first, as it has the first port.
        b1.start("connect", **job.values(1, size=2, token="b", info={"job": "b"}))
        b0.start("connect", **job.values(0, size=2, token="b", info={"job": "b"}))
        a1.start("connect", **job.values(1, size=2, token="a", info={"job": "a"}))
        for process, name in ((a0, "a"), (a1, "a"), (b0, "b"), (b1, "b")):
            assert process.result()["infos"] == [{"job": name}] * 2
        listening = [c.laddr.port for p in (a0, b0) for c in psutil.Process(p.pid).net_connections() if c.status == "LISTEN"]
        assert listening == [ports[0], ports[1]]


def knock(ports: Sequence[int]) -> socket.socket:
    for port in ports:
        try:
            return socket.create_connection((HERE, port), 2)
        except ConnectionRefusedError:
            continue
    raise AssertionError("nobody listens")


def frame(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


def refused(sock: socket.socket) -> bool:
    """Blocking: whether the other side closes without taking us in."""
    sock.settimeout(LIMIT_S)
    with suppress(ConnectionResetError):
        while data := sock.recv(65536):
            assert b"joined" not in data
    return True


def test_strangers_are_neither_accepted_nor_harmful() -> None:
    with started(3) as job, ExitStack() as stack:
        job.ranks[0].call("set_constants", guests.__name__, GREETING_WAIT_S=2.0)
        for rank in (0, 1):
            job.ranks[rank].start("connect", **job.values(rank))
        until(lambda: job.ranks[1].is_in("await_welcome"))

        def stranger(sent: bytes) -> socket.socket:
            sock = stack.enter_context(knock(job.ports))
            sock.sendall(sent)
            return sock

        hello = MAGIC + bytes(NONCE_BYTES)
        assert refused(stranger(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"))
        assert refused(stranger(secrets.token_bytes(4096)))
        assert refused(stranger(struct.pack("<Q", UNAUTHENTICATED_LIMIT_BYTES + 1)))
        assert refused(stranger(frame(b"")))
        assert refused(stranger(frame(hello) + frame(hello)))
        assert refused(stranger(frame(hello) + frame(bytes(PROOF_BYTES) + b"N")))
        assert refused(stranger(frame(hello) + frame(b"short")))
        stranger(b"").close()
        # Many that say nothing, or begin and do not go on: they get no answer, and take nobody's place.
        waiting = [stranger(frame(hello)[: count % 40]) for count in range(SPARE_GUESTS + 40)]
        assert not isinstance(job.ranks[2].call("connect", **job.values(2)), Raised)
        assert not any(isinstance(job.ranks[rank].result(), Raised) for rank in (0, 1))
        until(lambda: len(psutil.Process(job.ranks[0].pid).net_connections()) <= SPARE_GUESTS + 6)  # little room
        assert refused(waiting[-1])  # little time
        # Nor do they disturb the job later on.
        assert refused(stranger(b"x" * 100_000))
        assert job.all_call("exchange", "after", [0, 1, 2], "fine", LIMIT_S) == [["fine"] * 3] * 3
        assert job.all_call("lost") == [{}] * 3


def test_false_servers_are_passed_by_and_learn_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that speaks something else, one that copies our greeting with a proof that is none, one that says nothing."""
    monkeypatch.setattr(handshake, "PROOF_WAIT_S", 0.5)
    ports, token = some_ports(), "the secret of this job"
    greetings = [b"SSH-2.0-server\r\n", frame(MAGIC + bytes(NONCE_BYTES + 2 * PROOF_BYTES)), b""]
    heard: list[bytes] = []

    def serve(listener: socket.socket, greeting: bytes) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            with sock:
                sock.settimeout(LIMIT_S)
                sock.sendall(greeting)
                with suppress(ConnectionResetError):
                    while data := sock.recv(65536):
                        heard.append(data)

    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server((HERE, port))) for port in ports[:3]]
        threads = [threading.Thread(target=serve, args=pair, daemon=True) for pair in zip(listeners, greetings, strict=True)]
        for thread in threads:
            thread.start()
        pair = in_threads(*(partial(TcpControl.connect, rank, 2, HERE, ports, token, LIMIT_S) for rank in (0, 1)))
        assert all(isinstance(control, TcpControl) for control in pair), pair
        in_threads(*(control.close for control in pair))
        for listener in listeners:
            listener.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(LIMIT_S)
    greeting_length = len(frame(MAGIC + bytes(NONCE_BYTES)))
    assert heard
    assert all(len(data) == greeting_length and token.encode() not in data for data in heard)


def test_wrong_token() -> None:
    with started(2) as job:
        job.ranks[0].start("connect", **job.values(0, timeout_s=4.0))
        until(lambda: psutil.Process(job.ranks[0].pid).net_connections())
        found = job.ranks[1].call("connect", **job.values(1, token="another", timeout_s=1.5))
        ends(found, "CollectiveTimeout", [0], "belongs to another job")
        ends(job.ranks[0].result(), "CollectiveTimeout", [1], "rank 1 of 2 did not connect")


# ---- losses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", [0, 1, 2, 3])
def test_a_killed_rank_is_lost_to_all_and_ends_their_exchange(victim: int) -> None:
    with connected(4) as job:
        others = [process for rank, process in enumerate(job.ranks) if rank != victim]
        for process in others[:2]:
            process.start("exchange", "never", [0, 1, 2, 3], None, LIMIT_S)
        job.ranks[victim].kill()
        for process in others[:2]:
            ends(process.result(), "PeerLost", [victim], f"rank {victim} {DIED}")
        for process in others:
            until(partial(is_lost, process, victim, DIED))
            assert list(process.call("lost")) == [victim]
        ends(others[2].call("exchange", "later", [0, 1, 2, 3], None, LIMIT_S), "PeerLost", [victim], DIED)


def test_a_rank_that_gives_up_names_the_reason_and_the_rank() -> None:
    with connected(3) as job:
        job.ranks[1].call("give_up", "gave up: waited too long", [2])
        for rank in (0, 2):
            until(partial(is_lost, job.ranks[rank], 1, "gave up: waited too long", (2,)))
        job.ranks[1].call("give_up", "a second reason", [0])
        job.ranks[1].call("close")
        job.ranks[1].kill()
        assert job.all_call_of([0, 2], "exchange", "rest", [0, 2], "still", LIMIT_S) == [["still"] * 2] * 2
        assert job.ranks[0].call("lost") == {1: ("gave up: waited too long", (2,))}
        assert job.ranks[2].call("lost") == {1: ("gave up: waited too long", (2,))}


@pytest.mark.parametrize("rank", [0, 1])
def test_the_reason_arrives_though_the_rank_dies_right_after_sending_it(rank: int) -> None:
    with connected(3) as job:
        job.ranks[rank].start("give_up_and_die", "ValueError: 7", [])
        until(partial(is_lost, job.ranks[2], rank, "ValueError: 7"))
        assert list(job.ranks[2].call("lost")) == [rank]


def test_a_rank_that_leaves_is_missed_only_where_it_still_owes_a_message() -> None:
    with connected(3) as job:
        found = job.ranks[1].call("exchange", "given", [0, 1, 2], "from 1", 0.1)
        ends(found, "CollectiveTimeout", [0, 2], "ranks 0, 2 did not arrive within 0.1 s")
        job.ranks[1].call("close")
        until(lambda: job.ranks[2].call("lost") == {1: (LEFT, ())})
        given = job.all_call_of([0, 2], "exchange", "given", [0, 1, 2], "from us", LIMIT_S)
        assert given == [["from us", "from 1", "from us"]] * 2
        for found in job.all_call_of([0, 2], "exchange", "owed", [0, 1, 2], None, LIMIT_S):
            ends(found, "PeerLost", [1], f"rank 1 {LEFT}")


def test_rank_0_leaves_first() -> None:
    with connected(4) as job:
        job.ranks[0].call("close")
        until(lambda: job.ranks[3].call("lost") == {0: (LEFT, ())})
        assert job.ranks[1].call("close") is None
        ends(job.ranks[3].call("exchange", "late", [0, 3], None, LIMIT_S), "PeerLost", [0], f"rank 0 {LEFT}")
        ends(job.ranks[3].call("exchange", "without 0", [2, 3], None, LIMIT_S), "PeerLost", [0], f"rank 0 {LEFT}")
        job.ranks[3].call("give_up", "nobody hears it", [])
        assert job.ranks[3].call("reports", [0, 2], 5) == {}
        assert job.ranks[3].call("close") is None
        assert [process.exit_code() for process in job.ranks] == [0] * 4


def test_sent_messages_arrive_though_all_ranks_leave_at_once() -> None:
    size, num_bytes = 3, 8_000_000
    with connected(size) as job:
        assert job.all_call("exchange_and_close", "last", range(size), num_bytes, LIMIT_S) == [[num_bytes] * size] * size


def test_rank_0_leaves_only_when_a_slow_member_has_taken_what_was_sent_to_it() -> None:
    members, num_bytes = [0, 1, 2], 8_000_000
    with connected(3) as job:
        job.ranks[2].start("exchange_and_close", "k", members, num_bytes, LIMIT_S)
        # Rank 1 gives its object too, but does not wait; it stops asking once that of rank 2 is there.
        until(lambda: job.ranks[1].call("exchange", "k", members, bytes(num_bytes), 0.05).ranks == (0,))
        job.ranks[2].send_signal(signal.SIGSTOP)
        job.ranks[0].start("exchange_and_close", "k", members, num_bytes, LIMIT_S)
        until(lambda: job.ranks[0].is_in("close"))
        job.ranks[2].send_signal(signal.SIGCONT)
        assert [job.ranks[rank].result() for rank in (0, 2)] == [[num_bytes] * 3] * 2


def test_leaving_twice_and_speaking_afterwards() -> None:
    with connected(2) as job:
        assert job.all_call("close") == [None, None]
        assert job.all_call("close") == [None, None]
        ends(job.ranks[0].call("exchange", "k", [0, 1], None, 5), "CommError", [], "it was closed")
        assert job.ranks[0].call("exchange", "k", [0], "alone", 5) == ["alone"]


def test_a_new_session_with_the_same_values() -> None:
    """Who leaves early and comes again finds the old hub first, and waits until rank 0 opens the new one."""
    with connected(3) as job:
        job.ranks[1].call("close")
        found = job.ranks[1].call("connect", **job.values(1, timeout_s=1.5))
        ends(found, "CollectiveTimeout", [0], "rank 0 is still in a session that rank 1 has left")
        job.ranks[1].start("connect", **job.values(1))
        assert job.all_call_of([0, 2], "exchange", "old", [0, 2], "old", LIMIT_S) == [["old"] * 2] * 2
        for rank in (0, 2):
            job.ranks[rank].call("close")
            job.ranks[rank].start("connect", **job.values(rank))
        assert not any(isinstance(process.result(), Raised) for process in job.ranks)
        assert job.all_call("exchange", "new", [0, 1, 2], "new", LIMIT_S) == [["new"] * 3] * 3


# ---- objects and reports -------------------------------------------------------------------------------------------


def test_a_late_member_is_named() -> None:
    with connected(4) as job:
        for found in job.all_call_of([0, 2], "exchange", "k", [0, 1, 2, 3], None, 1.5):
            ends(found, "CollectiveTimeout", [1, 3], "ranks 1, 3 did not arrive within 1.5 s")


def test_members_that_disagree_about_the_group() -> None:
    with connected(3) as job:
        job.ranks[0].start("exchange", "k", [0, 1, 2], None, LIMIT_S)
        job.ranks[1].start("exchange", "k", [1, 0], None, LIMIT_S)
        for rank in (0, 1):
            ends(job.ranks[rank].result(), "MismatchedCall", [], "exchange 'k' has members")


def test_wrong_members_are_refused() -> None:
    with connected(2) as job:
        for members in ([1], [0, 0], [0, 2], [-1, 0], []):
            ends(job.ranks[0].call("exchange", "k", members, None, 5), "UsageError", [], "members must be distinct ranks of 0..1")
        ends(job.ranks[0].call("exchange", "k", [0, 1], [1, {2}], 5), "UsageError", [], "obj[1] is a set")


def test_many_exchanges_at_once_from_many_threads() -> None:
    groups = {0: [0, 1], 1: [0, 1], 2: [2, 3], 3: [2, 3]}
    keys = [f"key {number}" for number in range(20)]
    with connected(4) as job:
        for rank, process in enumerate(job.ranks):
            own = [f"{groups[rank]} {key}" for key in keys]
            process.start("exchange_many", own, groups[rank], LIMIT_S)
        assert [process.result() for process in job.ranks] == [len(keys)] * 4
        assert job.all_call("exchange_many", keys, [3, 1, 0, 2], LIMIT_S) == [len(keys)] * 4


def test_reports_show_where_a_blocked_rank_is() -> None:
    with connected(3) as job:
        job.ranks[2].start("wait_somewhere", "world")
        reports = until(
            lambda: (found := job.ranks[0].call("reports", [0, 1, 2], 5)) and "wait_somewhere" in found[2].stack and found
        )
        assert sorted(reports) == [0, 1, 2]
        assert reports[2].current_calls["world"].seq == 7
        assert reports[2].current_calls["world"].call == "allreduce(float32[3], sum)"
        job.ranks[2].kill()
        until(lambda: 2 in job.ranks[0].call("lost"))
        assert sorted(job.ranks[0].call("reports", [0, 1, 2], 5)) == [0, 1]


def test_a_rank_that_does_not_answer_is_left_out_of_the_reports() -> None:
    with connected(3) as job:
        job.ranks[1].send_signal(signal.SIGSTOP)
        assert sorted(job.ranks[0].call("reports", [1, 2], 2.0)) == [2]
        assert job.ranks[0].call("lost") == {}
        job.ranks[1].send_signal(signal.SIGCONT)
        assert sorted(job.ranks[0].call("reports", [1, 2], 10)) == [1, 2]


# ---- the process around it -----------------------------------------------------------------------------------------


def test_nothing_is_left_after_200_sessions() -> None:
    ports, token = some_ports(), "token"
    descriptors = num_open_files()

    def session(rank: int) -> Any:
        control = TcpControl.connect(rank, 2, HERE, ports, token, LIMIT_S)
        found = control.exchange("k", [0, 1], rank, LIMIT_S)
        control.close()
        return found

    for _ in range(200):
        assert in_threads(lambda: session(0), lambda: session(1)) == [[0, 1], [0, 1]]
    assert [thread for thread in threading.enumerate() if thread.name.startswith("unisono")] == []
    assert num_open_files() == descriptors


def test_nothing_is_left_after_sessions_that_fail() -> None:
    ports = some_ports()
    descriptors = num_open_files()
    for _ in range(3):
        found = in_threads(
            lambda: TcpControl.connect(0, 3, HERE, ports, "token", 0.3),
            lambda: TcpControl.connect(1, 3, HERE, ports, "token", 0.3),
            lambda: TcpControl.connect(2, 3, HERE, ports, "wrong", 0.3),
        )
        assert [type(error) for error in found] == [CollectiveTimeout] * 3, found
    assert [thread for thread in threading.enumerate() if thread.name.startswith("unisono")] == []
    assert num_open_files() == descriptors


def test_threads_are_daemons_and_sockets_do_not_pass_exec() -> None:
    with connected(2) as job:
        assert job.ranks[1].call("threads") == [("MainThread", False), ("unisono-control", True)]
        assert ("unisono-hub", True) in job.ranks[0].call("threads")
        for process in job.ranks:
            own, inherited = process.call("sockets_of_child")
            assert own > 1
            assert inherited == 0


def test_a_forked_child_neither_hides_our_death_nor_speaks_for_us() -> None:
    with connected(3) as job:
        assert job.all_call("fork_and_misbehave") == [0, 0, 0]
        assert job.all_call("exchange", "after", [0, 1, 2], "fine", LIMIT_S) == [["fine"] * 3] * 3
        assert job.all_call("lost") == [{}] * 3
        for victim in (1, 0):
            child = job.ranks[victim].call("fork_sleeper")
            job.ranks[victim].kill()
            until(partial(is_lost, job.ranks[2], victim, DIED))
            os.kill(child, signal.SIGKILL)


@pytest.mark.soak
def test_a_busy_process_is_not_dead() -> None:
    """Neither a stopped member nor a stopped hub reads for longer than a silent host may be silent, while much is sent to them."""
    with connected(3) as job:
        everybody, much = [0, 1, 2], bytes(30_000_000)
        for sleeper in (1, 0):
            key = f"while {sleeper} sleeps"
            job.ranks[sleeper].start("exchange", key, everybody, much, 60)
            others = [rank for rank in everybody if rank != sleeper]
            job.ranks[others[0]].start("exchange", key, everybody, much, 60)
            job.ranks[sleeper].send_signal(signal.SIGSTOP)
            job.ranks[others[1]].start("exchange", key, everybody, much, 60)
            time.sleep(25)  # the passing of time is what is tested
            job.ranks[sleeper].send_signal(signal.SIGCONT)
            for process in job.ranks:
                found = process.result(60)
                assert not isinstance(found, Raised), found
                assert [len(one) for one in found] == [len(much)] * 3
        assert job.all_call("lost") == [{}] * 3


@pytest.mark.hosts
def test_addresses_between_hosts_and_a_host_that_vanishes(two_hosts: list[Host]) -> None:
    first, second = two_hosts
    prefixes = [first.command(), first.command(), second.command()]
    with started(3, prefixes, first.address) as job:
        job.all_call("set_constants", channel.__name__, KEEPALIVE_IDLE_S=1, KEEPALIVE_INTERVAL_S=1, SILENCE_S=4)
        addresses = [answer["address"] for answer in job.connect()]
        assert addresses == [first.address, first.address, second.address]
        subprocess.run(second.command("ip", "link", "set", INTERFACE, "down"), check=True, timeout=10)
        # Rank 2 has something unacknowledged under way, rank 0 hears nothing from an idle connection: two different clocks.
        ends(job.ranks[2].call("exchange", "k", [0, 1, 2], None, 60), "PeerLost", [0], "rank 0 ")
        ends(job.ranks[1].call("exchange", "k", [0, 1, 2], None, 60), "PeerLost", [2], "rank 2 ")
