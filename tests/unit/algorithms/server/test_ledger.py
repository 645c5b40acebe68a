"""Every batch is done exactly once, whoever is lost meanwhile; who may divide what; the virtual clock; the recorded order."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unisono.algorithms.server.call_record import STOP, CallRecorder, ReplayServer, after, check_numbers, read_call_record
from unisono.algorithms.server.ledger import Ledger
from unisono.algorithms.server.server_layout import ServerLayout
from unisono.algorithms.server.simulated import SimulatedServer
from unisono.algorithms.server.virtual_clock import VirtualClock
from unisono.algorithms.server.worker import WorkerCall
from unisono.comm.exchange.base import Reply, Request, Server
from unisono.errors import UsageError

# ---- ledger --------------------------------------------------------------------------------------------------------------------

ACTIONS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["go on", "go on", "go on", "lose", "save"]), st.integers(1, 5)), max_size=80
)


@settings(max_examples=60, deadline=None)
@given(ACTIONS, st.integers(1, 7), st.integers(1, 3), st.booleans())
def test_every_unit_is_done_exactly_once(actions: list[tuple[int, str, int]], units: int, epochs: int, by_epoch: bool) -> None:
    ledger, num_lost = Ledger(units, epochs, by_epoch), 0
    done: list[int] = []

    def act(member: int, what: str, wanted: int) -> None:
        nonlocal ledger, num_lost
        if what == "save":
            saved = ledger.state()
            ledger = Ledger(units, epochs, by_epoch)
            ledger.restore(saved)
        elif what == "lose":
            num_lost += ledger.lose(member)
        elif member in ledger.leases:
            before = len(done) // units
            found = ledger.done(member).units
            done.extend(found)
            assert not by_epoch or all(unit // units == before for unit in found)
        else:
            lease = ledger.deal(member, wanted)
            assert lease is None or 1 <= len(lease.units) <= wanted

    for action in actions:
        act(*action)
    for _ in range(4 * units * epochs):
        for member in range(4):
            act(member, "go on", 2)
    assert sorted(done) == list(range(units * epochs))
    assert ledger.is_over and not ledger.leases and not ledger.returned
    assert ledger.num_dealt_again == num_lost


# ---- layout --------------------------------------------------------------------------------------------------------------------


def test_the_layout_gives_every_rank_its_role() -> None:
    layout = ServerLayout(7, group=3)
    assert layout.num_workers == 2 and not layout.is_virtual
    assert [(layout.worker(rank), layout.shard(rank)) for rank in range(1, 7)] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
        (1, 1),
        (1, 2),
    ]
    assert ServerLayout(1).num_workers == 1 and ServerLayout(1, simulate=9).num_workers == 9
    assert layout.batch(64) == 32


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: ServerLayout(2, simulate=3), "--simulate 3 runs all workers in one process; you started 2"),
        (lambda: ServerLayout(1, group=2, simulate=3), "leave it out of a simulation"),
        (lambda: ServerLayout(1, group=2), "needs at least 3 processes, a server and 2 for each worker; you started 1"),
        (lambda: ServerLayout(6, group=2), "start 5 or 7"),
        (lambda: ServerLayout(2, group=3), "start 4"),
        (lambda: ServerLayout(4).batch(64), "use 63 or 66, or --local-batch"),
        (lambda: ServerLayout(4).batch(2), "use 3, or --local-batch"),
    ],
)
def test_what_cannot_be_divided_is_refused(make: Any, told: str) -> None:
    with pytest.raises(UsageError) as error:
        make()
    assert told in str(error.value)


# ---- virtual clock -------------------------------------------------------------------------------------------------------------


def worker(num_calls: int, heard: list[float]) -> Generator[WorkerCall, Reply, None]:
    reply = yield WorkerCall(1, None, ())
    for _ in range(num_calls - 1):
        reply = yield WorkerCall(2, None, (), 1)
        heard.extend(reply.tail)


def served(
    clock: VirtualClock, num_workers: int, seed: int = 0, num_calls: int = 6
) -> tuple[list[int], list[float], SimulatedServer]:
    order, times = [], []
    server = SimulatedServer(clock, seed, {number: worker(num_calls, []) for number in range(num_workers)})
    while (request := server.receive()) is not None:
        order.append(request.caller)
        times.append(server.now_s)
        server.reply(request.caller, 1, None, [1.0])
    server.close()
    return order, times, server


def test_calls_come_in_the_order_of_virtual_time_and_can_be_repeated() -> None:
    clock = VirtualClock(speeds=1.0)
    order, times, _ = served(clock, 5)
    assert len(order) == 5 * 6 and times == sorted(times)
    assert served(clock, 5)[:2] == (order, times)
    assert served(clock, 5, seed=1)[0] != order
    slowest = max(range(5), key=lambda one: clock.speed(0, one))
    assert order[-1] == slowest, "who is slow comes last"


def test_one_worker_takes_the_time_that_was_asked_for() -> None:
    clock = VirtualClock(compute_s=2.0, network_s=0.25, server_s=0.5, speeds=0.0, jitter=0.0)
    _, times, server = served(clock, 1, num_calls=3)
    assert times == pytest.approx([0.75, 0.75 + 0.25 + 2 + 0.75, 0.75 + 2 * (0.25 + 2 + 0.75)])
    assert server.busy_s == pytest.approx(1.5)


def test_a_busy_server_makes_workers_wait() -> None:
    clock = VirtualClock(compute_s=0.0, network_s=0.0, server_s=1.0, speeds=0.0, jitter=0.0)
    _, times, server = served(clock, 4, num_calls=3)
    assert times == pytest.approx(list(range(1, 13))), "one call after another"
    assert server.metrics()["server_load"] == pytest.approx(1.0)


@pytest.mark.parametrize("value", [-1.0, True, "fast", float("nan")])
def test_the_clock_refuses_what_is_no_time(value: Any) -> None:
    with pytest.raises(UsageError, match=r"--set simulate\.network_s"):
        VirtualClock(network_s=value)


# ---- recorded order ------------------------------------------------------------------------------------------------------------


class Queue(Server):
    """Calls that are there already."""

    def __init__(self, *calls: int) -> None:
        self.calls = list(calls)

    def receive(self, timeout_s: float | None = None) -> Request | None:  # noqa: ARG002
        return Request(self.calls.pop(0), 2, np.zeros(0), None) if self.calls else None

    def reply(self, caller: int, kind: int, vector: Any = None, tail: Any = ()) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def all_of(server: ReplayServer) -> list[int]:
    found = []
    while (request := server.receive()) is not None:
        found.append(request.caller)
    return found


def test_calls_that_come_too_early_wait() -> None:
    server = ReplayServer(Queue(2, 0, 1, 2, 0), ["1", "0", "2", "2", "0"], lambda _: True)
    assert all_of(server) == [1, 0, 2, 2, 0]
    assert not server.is_past_end


def test_a_decision_comes_at_its_place() -> None:
    server = ReplayServer(Queue(1, 0, 2), ["0", "stop target reached", "2", "lost 1"], lambda _: True)
    assert server.decision() is None
    assert all_of(server) == [0] and server.decision() == "target reached" and server.decision() is None
    assert all_of(server) == [2] and server.newly_lost() == [1] and server.newly_lost() == []


def test_after_its_end_no_worker_is_forgotten() -> None:
    server = ReplayServer(Queue(3, 2, 1, 0), ["1"], lambda _: True)
    assert all_of(server) == [1, 3, 2, 0] and server.is_past_end


def test_a_save_begins_where_the_order_lets_it_reach_all_workers() -> None:
    server = ReplayServer(Queue(0, 1, 0, 1, 2), ["0", "1", "0", "1", "2"], lambda _: True)
    assert not server.lets_save({0, 1, 2}) and server.lets_save({0, 1}) and server.lets_save({0})
    assert [server.receive().caller for _ in range(2)] == [0, 1]  # type: ignore[union-attr]
    assert server.lets_save({0, 1, 2}) and server.lets_save(set())


def record(path: Path, *lines: str, num_lines: int = 0, anew: str = "") -> CallRecorder:
    recorder = CallRecorder(path, num_lines, anew)
    for line in lines:
        recorder.write(line)
    recorder.close()
    return recorder


def test_a_record_continues_from_the_saved_state(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.txt"
    assert record(path, "0", "1", f"{STOP}interrupted", "1", "0").num_lines == 4
    assert read_call_record(tmp_path) == ["0", "1", "stop interrupted", "1", "0"]
    assert record(path, "0", num_lines=3).num_lines == 4
    assert read_call_record(path) == ["0", "1", "1", "0"], "it did not stop, and what came after the save did not happen"
    assert after(["0", "stop x", "1", "2"], 2) == ["2"] and after(["0", "stop x"], 1) == ["stop x"] and after(["0"], 5) == ()


def test_a_record_is_never_without_what_a_checkpoint_knows(tmp_path: Path) -> None:
    """Should this life end before it saves, the next one needs the same lines again."""
    path = tmp_path / "arrivals.txt"
    record(path, "0", "1", "0")
    living = CallRecorder(path, 2)
    assert path.read_text() == "0\n1\n"
    living.close()


def test_a_record_that_cannot_be_repeated_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.txt"
    record(path, "0", "1")
    record(path, "0", num_lines=2, anew="it was resumed with other workers")
    with pytest.raises(UsageError, match=r"it was resumed with other workers \(.*line 3\)"):
        read_call_record(path)
    record(path, "0")
    record(path, "1", num_lines=4)
    with pytest.raises(UsageError, match="3 lines before this one are missing"):
        read_call_record(path)
    for text, told in (
        ("0\nx\n", "damaged: .* 'x' \\(line 2\\)"),
        ("", "is empty"),
        ("lost\n", "damaged"),
        ("²\n", "damaged"),
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match=told):
            read_call_record(path)
    path.write_bytes(b"\xff\xfe0\n")
    with pytest.raises(UsageError, match="cannot be read"):
        read_call_record(path)
    with pytest.raises(UsageError, match="give the directory of an asynchronous run"):
        read_call_record(tmp_path / "nothing")
    with pytest.raises(UsageError, match="had 3 workers, this one has 2"):
        check_numbers(["0", "2", "stop x"], 2)
    check_numbers(["0", "1", "stop x"], 2)
    with pytest.raises(UsageError, match=r"joined and left .*; give the same --elastic"):
        check_numbers(["0", "1", "lost 1"], 2)
