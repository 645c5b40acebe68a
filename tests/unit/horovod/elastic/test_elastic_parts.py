"""The parts of elastic training that need no processes: states, the loop, samplers, seats, failures of hosts, discovery."""

from __future__ import annotations

import math
import os
import queue
import random
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any, cast
from unittest.mock import Mock

import pytest
import torch

import unisono.horovod.torch as hvd
from tests.system.processes import is_running, within
from unisono.cluster.rendezvous import chosen_rendezvous
from unisono.comm.control_plane.plain import encode
from unisono.errors import UsageError
from unisono.horovod._impl.elastic import driver_connection as connection_module
from unisono.horovod._impl.elastic import host_discovery as discovery_module
from unisono.horovod._impl.elastic.blacklist import Blacklist
from unisono.horovod._impl.elastic.driver_service import Service
from unisono.horovod._impl.elastic.elastic_sampler import indices_of_rank, remaining_indices
from unisono.horovod._impl.elastic.host_discovery import Change, Discovery, hosts_in, script_arguments
from unisono.horovod._impl.elastic.rank_assignment import Candidate, assign_ranks
from unisono.horovod._impl.elastic.worker_environment import (
    ADDED,
    REMOVED,
    DriverAddress,
    address_of,
    assignment_from_plain,
    worker_environment,
)
from unisono.horovod._impl.elastic.worker_hosts import RealHosts, own_name, remote_script
from unisono.horovod._impl.engine.stall_watch import StallWatch
from unisono.horovod._impl.launching.host_slots import is_here
from unisono.horovod._impl.torch.elastic_state import (
    ModelStateHandler,
    StateHandler,
    get_handler_registry,
    set_handler_registry,
)
from unisono.horovod.common.elastic import ObjectState, State, run_fn
from unisono.horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from unisono.launch.ssh import remote_watchdog


@pytest.fixture
def alone() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def objects(**values: Any) -> ObjectState:
    return ObjectState(lambda value: value, lambda: 0, **values)


# ---- states --------------------------------------------------------------------------------------------------------------


def test_values_come_back() -> None:
    state = objects(epoch=1, losses=[1.0])
    state.epoch, state.losses = 2, [*state.losses, 0.5]
    state.restore()
    assert (state.epoch, state.losses) == (1, [1.0])


def test_what_is_saved_is_a_copy() -> None:
    state = objects(losses=[1.0])
    state.losses.append(0.5)
    state.restore()
    assert state.losses == [1.0]
    state.losses.append(0.25)
    state.save()
    state.losses.append(0.125)
    state.restore()
    assert state.losses == [1.0, 0.25]


def test_sync_takes_what_rank_0_has_now_and_saves_it() -> None:
    state = ObjectState(lambda value: {**value, "epoch": 7}, lambda: 1, epoch=1)
    state.sync()
    state.epoch = 8
    state.restore()
    assert state.epoch == 7


def test_a_commit_saves_and_reports_host_changes() -> None:
    state = objects(epoch=0)
    state.epoch = 1
    state.commit()
    state.epoch = 2
    state.on_hosts_updated(1.0, ADDED)
    with pytest.raises(HostsUpdatedInterrupt) as raised:
        state.commit()
    assert not raised.value.skip_sync
    state.epoch = 3
    state.restore()
    assert state.epoch == 2
    state.commit()  # it was told once


@pytest.mark.parametrize(("changes", "skip_sync"), [([REMOVED], True), ([REMOVED, ADDED], False), ([ADDED], False)])
def test_only_removals_need_no_sync(changes: list[int], skip_sync: bool) -> None:
    state = objects(epoch=0)
    for number, change in enumerate(changes):
        state.on_hosts_updated(1.0 + number, change)
    with pytest.raises(HostsUpdatedInterrupt) as raised:
        state.check_host_updates()
    assert raised.value.skip_sync is skip_sync


def test_rank_0_decides_whether_hosts_have_changed() -> None:
    state = ObjectState(lambda _: (0, 0, 0), lambda: 1, epoch=0)
    state.on_hosts_updated(1.0, ADDED)
    state.check_host_updates()
    later = ObjectState(lambda _: (0, 2.0, ADDED), lambda: 1, epoch=0)
    with pytest.raises(HostsUpdatedInterrupt):
        later.check_host_updates()


def test_a_reset_forgets_old_messages_and_calls_back() -> None:
    state, called = objects(epoch=0), []
    state.register_reset_callbacks([lambda: called.append(1), lambda: called.append(2)])
    state.on_hosts_updated(1.0, ADDED)
    state.on_reset()
    assert called == [1, 2]
    assert isinstance(state._host_messages, queue.Queue) and state._host_messages.empty()
    state.check_host_updates()


@pytest.mark.parametrize("method", ["save", "restore", "sync"])
def test_a_state_must_say_how(method: str) -> None:
    with pytest.raises(NotImplementedError, match=f"define {method}"):
        getattr(State(lambda value: value, lambda: 0), method)()


# ---- the loop ------------------------------------------------------------------------------------------------------------


def test_the_loop_restores_after_a_loss_and_keeps_after_a_change() -> None:
    state, resets, seen = objects(step=0), [], []

    def train(state: Any, word: str) -> str:
        seen.append(state.step)
        state.step += 10
        if len(seen) == 1:
            raise HorovodInternalError("a worker is gone")
        if len(seen) == 2:
            raise HostsUpdatedInterrupt(True)
        return word

    assert run_fn(train, lambda: resets.append(True))(state, word="done") == "done"
    assert seen == [0, 0, 10]
    assert len(resets) == 2


def test_other_errors_end_the_loop() -> None:
    def train(state: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_fn(train, lambda: None)(objects())


def test_a_loss_during_sync_is_a_loss() -> None:
    answers = iter([HorovodInternalError("gone"), None])

    class Syncs(ObjectState):
        def sync(self) -> None:
            answer = next(answers)
            if answer is not None:
                raise answer

    assert run_fn(lambda state: state.a, lambda: None)(Syncs(lambda value: value, lambda: 0, a=1)) == 1


def test_a_loss_in_a_reset_callback_is_a_loss() -> None:
    """It may talk, e.g. to find the new learning rate."""
    state, seen, answers = objects(step=0), [], iter([HorovodInternalError("gone"), None])

    def call_back() -> None:
        answer = next(answers)
        if answer is not None:
            raise answer

    def train(state: Any) -> int:
        seen.append(state.step)
        state.step += 10
        if len(seen) == 1:
            raise HorovodInternalError("a worker is gone")
        return len(resets)

    resets: list[bool] = []
    state.register_reset_callbacks([call_back])
    assert run_fn(train, lambda: resets.append(True))(state) == 2
    assert seen == [0, 0]


# ---- torch ---------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("alone")
def test_a_model_and_its_optimizer_come_back() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.1), named_parameters=model.named_parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(3, 2)).sum().backward()
        optimizer.step()

    state = hvd.elastic.TorchState(model, optimizer, batch=0)
    step()
    state.batch = 1
    state.commit()
    weight, moments = model.weight.clone(), optimizer.state[model.weight]["exp_avg"].clone()
    for _ in range(2):  # restored twice from one commit: what is saved must not change by training
        step()
        state.batch += 1
        optimizer.param_groups[0]["lr"] = 9.0
        state.restore()
        assert torch.equal(model.weight, weight) and torch.equal(optimizer.state[model.weight]["exp_avg"], moments)
        assert (state.batch, optimizer.param_groups[0]["lr"]) == (1, 0.1)
    state.sync()
    assert torch.equal(model.weight, weight)


@pytest.mark.usefixtures("alone")
def test_a_loss_that_still_hangs_on_its_graph_may_be_committed() -> None:
    model = torch.nn.Linear(2, 1)
    state = hvd.elastic.TorchState(model, None, loss=None, losses=[])
    state.loss = model(torch.ones(1, 2)).sum()
    state.losses.append(state.loss)
    value = state.loss.item()
    state.commit()
    state.sync()
    state.loss, state.losses = None, []
    state.restore()
    assert state.loss.item() == state.losses[0].item() == value


def test_what_cannot_be_copied_is_named() -> None:
    with pytest.raises(UsageError, match=r"state.it \(generator\) cannot be copied, .*; keep it outside the state"):
        objects(epoch=0, it=(number for number in range(3)))


@pytest.mark.usefixtures("alone")
def test_another_model_may_take_the_place() -> None:
    state = hvd.elastic.TorchState(model=torch.nn.Linear(1, 1))
    other = torch.nn.Linear(1, 1)
    state.model = other
    before = other.weight.clone()
    with torch.no_grad():
        other.weight += 1
    state.restore()
    assert torch.equal(other.weight, before)


@pytest.mark.usefixtures("alone")
def test_handlers_of_users() -> None:
    class Counter:
        count = 0

    class CounterHandler(StateHandler):
        def __init__(self, value: Counter) -> None:
            super().__init__(value)
            self.saved = value.count

        def save(self) -> None:
            self.saved = self.value.count

        def restore(self) -> None:
            self.value.count = self.saved

        def sync(self) -> None:
            self.value.count += 100

    before = list(get_handler_registry())
    try:
        set_handler_registry([*before, (Counter, CounterHandler)])
        state = hvd.elastic.TorchState(counter=Counter(), plain=torch.nn.Linear(1, 1))
        assert isinstance(state._handlers["plain"], ModelStateHandler)
        state.sync()
        state.counter.count = 5
        state.restore()
        assert state.counter.count == 100
    finally:
        set_handler_registry(before)


@pytest.mark.usefixtures("alone")
def test_the_sampler_leaves_out_what_was_processed() -> None:
    data = list(range(10))
    sampler = hvd.elastic.ElasticSampler(data, shuffle=True, seed=3)
    state = hvd.elastic.TorchState(sampler=sampler)
    everything = list(sampler)
    assert sorted(everything) == data and len(sampler) == 10
    sampler.record_batch(0, 4)
    assert list(sampler) == everything  # an epoch that goes on is not disturbed
    state.commit()
    sampler.record_batch(1, 4)
    state.restore()
    assert sampler.processed_num == 4 and list(sampler) == everything[4:] and len(sampler) == 6
    assert sampler.indices == everything[4:] and sampler.processed_indices == set(everything[:4])
    sampler.set_epoch(1)
    assert sorted(sampler) == data and list(sampler) != everything
    assert sampler.state_dict() == {"epoch": 1, "processed_num": 0}


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("processed", [0, 4, 19, 20, 25])
def test_shares_cover_the_rest_evenly(size: int, processed: int) -> None:
    left = remaining_indices(20, processed, True, 5)
    shares = [indices_of_rank(left, rank, size) for rank in range(size)]
    assert len({len(one) for one in shares}) == 1
    assert {index for one in shares for index in one} == set(left)
    assert sum(map(len, shares)) - len(left) < size
    assert set(left).isdisjoint(remaining_indices(20, 0, True, 5)[:processed])


# ---- seats ---------------------------------------------------------------------------------------------------------------


def test_the_oldest_worker_with_the_state_has_rank_0_and_hosts_stay_together() -> None:
    crew = [
        Candidate(0, "a", 0),  # has lost everything by being new
        Candidate(3, "b", 1, has_state=True, since=0),
        Candidate(4, "a", 1, has_state=True, since=2),
        Candidate(7, "b", 0),
        Candidate(8, "c", 0),
    ]
    seats = assign_ranks(crew, 5, "here", "secret")
    assert {worker: seat.rank for worker, seat in seats.items()} == {3: 0, 7: 1, 4: 2, 0: 3, 8: 4}
    assert {worker: (seat.local_rank, seat.local_size) for worker, seat in seats.items()} == {
        3: (1, 2),
        7: (0, 2),
        4: (1, 2),
        0: (0, 2),
        8: (0, 1),
    }
    assert {worker: (seat.cross_rank, seat.cross_size) for worker, seat in seats.items()} == {
        3: (0, 2),
        7: (0, 3),
        4: (1, 2),
        0: (1, 3),
        8: (2, 3),
    }
    assert assignment_from_plain(seats[3].plain()) == seats[3]


def test_rank_assignments_are_complete() -> None:
    draw = random.Random(1)
    for _ in range(200):
        places = draw.sample([(host, slot) for host in "abcd" for slot in range(4)], draw.randint(1, 16))
        crew = [
            Candidate(number, host, slot, draw.random() < 0.5, draw.randint(0, 5)) for number, (host, slot) in enumerate(places)
        ]
        seats = assign_ranks(crew, 0, "", "t")
        assert sorted(seat.rank for seat in seats.values()) == list(range(len(crew)))
        first = next(one for one in crew if seats[one.worker].rank == 0)
        assert first.has_state or not any(one.has_state for one in crew)
        for host in {one.host for one in crew}:
            mine = [seats[one.worker] for one in crew if one.host == host]
            ranks = sorted(seat.rank for seat in mine)
            assert ranks == list(range(ranks[0], ranks[0] + len(mine)))
            assert sorted(seat.local_rank for seat in mine) == list(range(len(mine)))
            assert len({seat.node_rank for seat in mine}) == 1
        for local in range(4):
            across = sorted(seat.cross_rank for seat in seats.values() if seat.local_rank == local)
            assert across == list(range(len(across)))


# ---- hosts ---------------------------------------------------------------------------------------------------------------


def test_a_host_on_which_programs_fail_gets_no_more() -> None:
    hosts = Blacklist(None, lambda: 0.0)
    assert hosts.on_failure("a", 3, False, 0.0) is None
    assert hosts.on_failure("a", 4, False, 1.0) is None
    assert hosts.allows("a", 1.0)
    text = hosts.on_failure("a", 5, False, 2.0)
    assert text is not None and "host a gets no more workers" in text
    assert not hosts.allows("a", 1e9) and hosts.is_hopeless(["a"]) and not hosts.is_hopeless(["a", "b"])


def test_a_commit_by_a_later_worker_forgives() -> None:
    hosts = Blacklist(None, lambda: 0.0)
    for number in range(20):
        hosts.on_failure("a", 2 * number, False, 0.0)
        hosts.on_commit("a", 2 * number)  # was there before the failure
        hosts.on_commit("a", 2 * number + 1)
    assert hosts.allows("a", 0.0)


def test_a_killed_worker_counts_less() -> None:
    hosts = Blacklist((10.0, 35.0), lambda: 0.0)
    assert all(hosts.on_failure("a", number, True, 0.0) is None for number in range(11))
    assert hosts.on_failure("a", 11, True, 0.0) is not None
    assert not hosts.allows("a", 9.0) and hosts.allows("a", 10.0)


def test_kills_alone_never_cost_a_host_for_good() -> None:
    hosts = Blacklist(None, lambda: 1.0)
    now = 0.0
    for number in range(12 * 1100):  # doubled so often, a rest would be longer than any number
        hosts.on_failure("a", number, True, now)
        assert not hosts.is_hopeless(["a"])
        rest = next(seconds for seconds in range(31) if hosts.allows("a", now + seconds))
        assert bool(rest) == (number % 12 == 11), "twelve in a row bring a rest, of half a minute at most"
        now += rest
    for number in range(3):
        said = hosts.on_failure("a", 2000 + number, False, now)
    assert said is not None and hosts.is_hopeless(["a"]), "what the program itself does still counts"


def test_failures_while_a_host_rests_count() -> None:
    hosts = Blacklist(None, lambda: 0.0)
    assert sum(hosts.on_failure("a", number, True, 0.0) is not None for number in range(12)) == 1
    said = [hosts.on_failure("a", 20 + number, False, 0.5) for number in range(4)]  # they were running before
    assert [one is None for one in said] == [True, True, False, True] and hosts.is_hopeless(["a"])


def test_a_host_rests_longer_each_time_within_the_range() -> None:
    hosts = Blacklist((10.0, 35.0), lambda: 0.5)
    now, rests = 0.0, []
    for _ in range(3):
        for number in range(3):
            hosts.on_failure("a", number, False, now)
        rest = next(seconds for seconds in range(1000) if hosts.allows("a", now + seconds))
        rests.append(rest)
        now += rest
        assert not hosts.is_hopeless(["a"])
    assert rests == [15, 30, 35]
    assert math.isfinite(now)


def test_what_a_script_prints() -> None:
    assert hosts_in("a:2\n\nb\n c:1 \nd:0\na:1\n", 4) == {"a": 3, "b": 4, "c": 1}
    assert hosts_in("b\n", None) == {"b": 1}
    for wrong in ("a:x", "a b:1", ":3", "a:1,b:1", "a=1", "-oProxyCommand", "-a:1", "fe80::1", "::1"):
        with pytest.raises(UsageError, match="must be host or host:slots"):
            hosts_in(wrong, None)


def test_a_script_that_fails_leaves_the_hosts_as_they_were(tmp_path: Path) -> None:
    said: list[Any] = []
    failing = tmp_path / "failing.py"
    failing.write_text("import sys; sys.exit('no answer today')")
    assert Discovery(f"{sys.executable} {failing}", None, {}, said.append).ask_script().problem == (
        "it exited with code 1: no answer today"
    )
    assert "No such file" in Discovery(str(tmp_path / "none"), None, {}, said.append).ask_script().problem
    fine = tmp_path / "fine.py"
    fine.write_text("print('a:2')")
    assert Discovery(f"{sys.executable} {fine}", None, {}, said.append).ask_script().hosts == {"a": 2}
    nameless = tmp_path / "nameless"
    nameless.write_text("echo $1:3")
    nameless.chmod(0o755)
    assert Discovery(f"{nameless} b", None, {}, said.append).ask_script().hosts == {"b": 3}


@pytest.mark.parametrize("stream", ["", " >&2"])
def test_a_script_that_prints_without_end_is_ended(stream: str) -> None:
    script = f"sh -c 'while :; do echo localhost:1; done{stream}'"
    assert Discovery(script, None, {"PATH": os.environ["PATH"]}, print).ask_script() == Change(None, "it printed more than 1 MiB")


def test_a_script_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery_module, "SCRIPT_LIMIT_S", 0.2)
    for script in ("sleep 100", "sh -c 'exec >&- 2>&-; exec sleep 100'"):
        assert Discovery(script, None, {"PATH": os.environ["PATH"]}, print).ask_script() == Change(
            None, "it took longer than 0.2 s"
        )


def test_a_script_that_fails_with_changing_messages_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery_module, "LOOK_S", 0.0)
    answers = [Change({"a": 1}), Change(None, "at 1"), Change(None, "at 2"), Change(None, "at 3"), Change({"a": 1})]
    left, told, over = iter(answers), queue.SimpleQueue[Change](), threading.Event()

    class Fails(Discovery):
        def ask_script(self) -> Change:
            answer = next(left, None)
            if answer is None:
                over.set()
            return answer or answers[-1]

    discovery = Fails("true", None, {}, told.put)
    discovery.start()
    assert over.wait(30.0)
    discovery.close()
    assert [told.get() for _ in range(told.qsize())] == [answers[0], answers[1], answers[4]]


def test_a_script_that_cannot_be_started_is_reported_at_once(tmp_path: Path) -> None:
    plain = tmp_path / "plain file"
    plain.write_text("")
    assert script_arguments(f"{sys.executable} 'a b'", {}) == [sys.executable, "a b"]
    for script, message in (
        ("./no-such-script", "./no-such-script was not found; check the path"),
        ("'./half", "cannot be split into words: No closing quotation; check its quotes"),
        (" ", "is empty"),
        (f"'{plain}'", f"plain file is not executable; chmod [+]x '{plain}'"),
    ):
        with pytest.raises(UsageError, match=message):
            script_arguments(script, {})


def test_a_script_that_runs_ends_with_the_driver(tmp_path: Path) -> None:
    """Also with one that is killed."""
    fifo = tmp_path / "begun"
    os.mkfifo(fifo)
    driver = f"""
from unisono.horovod._impl.elastic.host_discovery import Discovery
Discovery("sh -c 'echo $$ > {fifo}; exec sleep 100'", None, {{"PATH": {os.environ["PATH"]!r}}}, print).start()
input()
"""
    with subprocess.Popen([sys.executable, "-c", driver], stdin=subprocess.PIPE) as process:
        script = int(fifo.read_text())
        assert is_running(script)
        process.kill()
    assert within(10.0, lambda: not is_running(script))


def test_where_a_driver_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "n1")
    assert own_name(["n1"], {"UNISONO_RENDEZVOUS": "10.0.0.1:20000"}) == "127.0.0.1"
    assert own_name(["n2"], {}) == "n1"
    assert own_name(["n2"], {"UNISONO_RENDEZVOUS": "10.0.0.1:20000"}) == "10.0.0.1"
    inside_a_rank = {"UNISONO_RENDEZVOUS": "127.0.0.1:20000", "UNISONO_RANK": "0"}
    assert own_name(["n2"], inside_a_rank) == "n1" and chosen_rendezvous(inside_a_rank) is None


def test_a_script_ends_with_its_children(tmp_path: Path) -> None:
    """One of them holds its output."""
    said: list[Any] = []
    fifo = tmp_path / "begun"
    os.mkfifo(fifo)
    discovery = Discovery(f"""sh -c "sleep 100 & echo > '{fifo}'; wait" """, None, {"PATH": os.environ["PATH"]}, said.append)
    discovery.start()
    fifo.read_text()
    began = monotonic()
    discovery.close()
    assert monotonic() - began < 10


def test_an_unknown_message_of_the_driver_ends_the_worker(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its main thread may wait for a place that will never come."""
    done: list[object] = []
    ours, theirs = socket.socketpair()
    channel: Any = types.SimpleNamespace(
        sock=ours, ended=False, is_silent=lambda: False, flush=lambda: None, receive=lambda: [encode(("what?",))]
    )
    monkeypatch.setattr(connection_module, "sleep", done.append)
    monkeypatch.setattr(os, "kill", lambda _, signum: done.append(signum))
    monkeypatch.setattr(os, "_exit", done.append)
    with ours, theirs:
        theirs.send(b"!")
        connection_module.DriverConnection()._listen_to_driver(channel)
    assert done == [signal.SIGTERM, connection_module.END_S, 1]
    assert "unknown message from the driver" in capsys.readouterr().err


def test_which_names_mean_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_here("localhost") and is_here("127.0.0.1") and is_here(socket.gethostname())
    assert not is_here("192.0.2.1") and not is_here("no-such-host.invalid") and not is_here("127.0.0.7")
    monkeypatch.setattr(socket, "gethostname", lambda: "n1")
    assert is_here("n1") and is_here("n1.some.where") and not is_here("n2.some.where")
    monkeypatch.setattr(socket, "gethostname", lambda: "n1.some.where")
    assert is_here("n1") and is_here("n1.some.where") and not is_here("n1.else.where")


def test_the_command_of_a_remote_shell() -> None:
    script = remote_script(
        ["python", "a b.py"],
        {"PATH": "/bin", "HOME": "/root", "UNISONO_ELASTIC_SECRET": "x'y", "XLA_FLAGS": "1", "TORCH_a-b": "1"},
        "/some where",
    )
    assert script.splitlines() == [
        "cd '/some where' || exit 1",
        "export PATH=/bin",
        """export UNISONO_ELASTIC_SECRET='x'"'"'y'""",
        "export XLA_FLAGS=1",
        f"exec {shlex.join(remote_watchdog.argv_of(['python', 'a b.py']))}",
    ]


def test_the_end_of_the_connection_ends_what_was_started_through_it() -> None:
    """As at the far end of ssh: its standard input ends. The program does not end of SIGTERM, and its child would stay."""
    body = "trap '' TERM; sleep 100 & echo $!; wait; wait"
    patched = remote_watchdog.PROGRAM.replace("main(sys", "main.__globals__.update(GRACE_S=0.2); main(sys")
    guard = [patched if word == remote_watchdog.PROGRAM else word for word in remote_watchdog.argv_of(["sh", "-c", body])]
    with subprocess.Popen(guard, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        child = int(process.stdout.readline())
        process.stdin.close()
        assert process.wait(30.0) == 128 + signal.SIGKILL
    assert within(10.0, lambda: not is_running(child))


def test_a_process_started_through_a_connection_returns_its_exit_code() -> None:
    for program, code in ((["sh", "-c", "exit 3"], 3), (["sh", "-c", "kill -9 $$"], 137), (["/no/such"], 127)):
        with subprocess.Popen(remote_watchdog.argv_of(program), stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.wait(30.0) == code


def test_a_second_process_with_the_variables_of_a_worker_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It inherited them; the line of the worker itself must not end because of it."""
    heard: list[Any] = []
    with selectors.DefaultSelector() as selector:
        service = Service(selector, "secret", 2, lambda number, message: heard.append((number, message)))
        over = threading.Event()

        def serve() -> None:
            while not over.is_set():
                for key, _ in selector.select(0.05):
                    key.data()

        thread = threading.Thread(target=serve)
        thread.start()
        monkeypatch.setattr(connection_module, "CONNECT_S", 20.0)
        try:
            address = DriverAddress("127.0.0.1", service.port(everywhere=False), "secret", 3)
            first = connection_module._connect(address)
            with pytest.raises(UsageError, match="cannot be reached"):
                connection_module._connect(address)
            first.send(encode(("ready",)))
            assert within(20.0, lambda: heard == [(3, ("ready",))])
            first.close()
        finally:
            over.set()
            thread.join()
            service.close()


def test_after_a_loss_no_rank_is_accused_of_a_stall(capsys: pytest.CaptureFixture[str]) -> None:
    """Ranks that fail forget what they had in flight; a report made of that would name those who were there."""
    control: Any = types.SimpleNamespace(rank=0, size=1, lost={})
    watch = StallWatch({}, control, cast(Any, types.SimpleNamespace(stall_warning_s=1.0, stall_shutdown_s=0.0)))
    entry: Any = Mock(began_at=0.0, **{"done.return_value": False, "request.kind": "allreduce"})
    entry.request.name = "x"
    channel: Any = types.SimpleNamespace(ranks=(0, 1), title="set", waiting=lambda: [entry])
    assert watch._print_report(channel, [entry], {}) == [entry]
    assert "x: missing on ranks 0, 1" in capsys.readouterr().err
    control.lost = {1: "it shut down"}
    assert watch._print_report(channel, [entry], {}) == []
    watch._check_channel(channel, set(), 100.0)  # asks nobody: `control` could not answer
    assert not capsys.readouterr().err


def test_the_environment_of_a_worker_names_its_driver() -> None:
    driver = DriverAddress("127.0.0.1", 4000, "secret", 3)
    env = worker_environment(
        {"UNISONO_RANK": "0", "UNISONO_ENGINE": "shm", "A": "b"}, driver, "host", 1, 4, {"other": 1, "host": 2, "third": 2}
    )
    assert address_of(env) == driver
    assert (env["A"], env["HOROVOD_HOSTNAME"], env["HOROVOD_RANK"], env["HOROVOD_ELASTIC"]) == ("b", "host", "3", "1")
    assert (env["HOROVOD_LOCAL_SIZE"], env["HOROVOD_CROSS_RANK"], env["HOROVOD_CROSS_SIZE"]) == ("2", "0", "2")
    assert "UNISONO_RANK" not in env and env["UNISONO_ENGINE"] == "shm"
    assert address_of({}) is None
    with pytest.raises(UsageError, match="incomplete"):
        address_of({name: value for name, value in env.items() if name != "UNISONO_ELASTIC_SECRET"})
    with pytest.raises(UsageError, match="this worker has no driver"):
        address_of({"HOROVOD_ELASTIC": "1"})


def test_what_does_not_fit_into_a_pipe_is_refused_before_anything_starts() -> None:
    """Written all the same, it would make the driver wait for an ssh that hangs."""
    env = {"UNISONO_ELASTIC_WORKER": "3", "PATH": "/bin", "XLA_FLAGS": "x" * 70_000, "OTHER": "x" * 90_000}
    plan: Any = types.SimpleNamespace(command=("train",), ssh_port=None, ssh_identity_file=None)
    nothing = cast(Any, None)
    hosts = RealHosts(plan, nothing, nothing, nothing, nothing, None)
    with pytest.raises(UsageError, match=r"worker 3 cannot be started on 192.0.2.1:0: .* more than 65536; .* e.g. XLA_FLAGS"):
        hosts.start("192.0.2.1", 0, env)
