"""A centre cut into slices: every number is with one server, and what is saved does not show how many there were."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unisono.algorithms.roles import LayoutOptions
from unisono.algorithms.server.server_layout import ServerLayout
from unisono.algorithms.server.slices import NOTHING, SlicedCaller, SliceLayout, vectors_in, with_vectors
from unisono.comm.exchange.base import Caller, Numbers, Reply
from unisono.errors import CommError, UsageError
from unisono.model.torch.one_vector import ELEMENTWISE_OPTIMIZERS
from unisono.model.torch.parameters import FlatParameters

NUMEL, STATISTICS = 64 * 7, 5


def vector(numel: int = NUMEL + STATISTICS, seed: int = 0) -> Tensor:
    return torch.rand(numel, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("num_servers", [1, 2, 3, 7])
def test_shares_hold_every_number_once(num_servers: int) -> None:
    slices = SliceLayout.of(torch.zeros(NUMEL), num_servers)
    whole = vector()
    shares = [torch.cat(slices.part_of(whole, server)) for server in range(num_servers)]
    assert [len(share) for share in shares] == slices.lengths(len(whole))
    assert sum(map(len, shares)) == len(whole) and all(map(len, shares))
    assert torch.equal(slices.join(shares), whole)


def test_too_few_numbers_are_refused() -> None:
    with pytest.raises(UsageError, match=r"too few for 3 servers \(--servers\); use at most 2"):
        SliceLayout.of(torch.zeros(100), 3)


def test_a_saved_state_is_that_of_one_server() -> None:
    slices = SliceLayout.of(torch.zeros(NUMEL), 3)
    worker = torch.arange(9, dtype=torch.uint8)
    member: dict[str, Any] = {"version": 4, "state": {"taken": vector(NUMEL)}, "worker": worker, "order": [1.0], "reply": vector()}
    idle = {**member, "order": None, "reply": vector(NUMEL, 1)}
    silent = {**member, "reply": None}
    state = {"version": 7, "ledger": {"next_unit": 3}, "members": {"0": member, "1": idle, "2": silent}}
    shares = [slices.share_of_state(state, server) for server in range(3)]
    assert shares[0]["members"]["0"]["worker"] is worker and shares[1]["members"]["0"]["worker"] is NOTHING
    joined = [slices.join(own) for own in zip(*(vectors_in(share) for share in shares), strict=True)]
    again = with_vectors(shares[0], joined)
    assert {name: again[name] for name in ("version", "ledger")} == {"version": 7, "ledger": {"next_unit": 3}}
    for number, expected in state["members"].items():  # type: ignore[attr-defined]
        held = again["members"][number]
        assert torch.equal(held["state"]["taken"], expected["state"]["taken"])
        assert (held["reply"] is None) == (expected["reply"] is None)
        if expected["reply"] is not None:
            assert torch.equal(held["reply"], expected["reply"])


class _Echo(Caller):
    """A server that answers with what it was sent, plus 1."""

    number = 3

    def __init__(self, log: list[_Echo], kind: int | None = None) -> None:
        self.log, self.kind = log, kind
        self.vector: Tensor | None = None

    def post(self, kind: int, vector: Tensor | None = None, tail: Any = ()) -> None:
        self.log.append(self)
        self.said: tuple[int, Any] = kind if self.kind is None else self.kind, tail
        self.vector = vector

    def wait_reply(self, timeout_s: float | None = None) -> Reply:  # noqa: ARG002
        tail: Numbers = torch.tensor(self.said[1], dtype=torch.float64).numpy()
        return Reply(self.said[0], tail, None if self.vector is None else self.vector + 1)

    def close(self) -> None:
        self.log.append(self)


def test_a_worker_talks_to_all_as_to_one() -> None:
    slices, log = SliceLayout.of(torch.zeros(NUMEL), 3), list[_Echo]()
    echoes = [_Echo(log) for _ in range(3)]
    caller = SlicedCaller(echoes, slices, vector())
    assert caller.number == 3
    for seed in range(2):
        reply = caller.call(2, vector(seed=seed), (4.0, 5.0))
        assert (reply.kind, reply.tail.tolist()) == (2, [4.0, 5.0])
        assert reply.vector is not None
        assert torch.equal(reply.vector, vector(seed=seed) + 1)
    assert log[:3] == echoes[::-1], "the first server, which orders what the others do, must be called last"
    assert caller.call(1, None, (1.0,)).vector is None, "nothing comes where nothing was sent"
    state = torch.arange(9, dtype=torch.uint8)
    reply = caller.call(3, state)
    assert reply.vector is not None
    assert torch.equal(reply.vector, state + 1)
    assert echoes[1].vector is NOTHING
    echoes[2].kind = 9
    with pytest.raises(CommError, match=r"the servers disagree .* 1, 1, 9"):
        caller.call(1)
    caller.close()


# ---- the optimiser of a slice ------------------------------------------------------------------------------------------


def held(kind: type[torch.optim.Optimizer], rows: int = 9) -> FlatParameters:
    draw = torch.Generator().manual_seed(1)
    shapes = {"a": (rows, 30), "b": (7,), "c": (40,)}
    named = [(name, nn.Parameter(torch.rand(shape, generator=draw))) for name, shape in shapes.items()]
    found = FlatParameters(named, lambda numel, dtype: torch.empty(numel, dtype=dtype))
    settings: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.01}
    if kind is torch.optim.SGD:
        settings["momentum"] = 0.9
    if kind is torch.optim.Adagrad:
        settings["initial_accumulator_value"] = 0.3
    found.set_optimizer(kind(found.tensors, **settings))
    return found


def move(part: FlatParameters, steps: range) -> None:
    for step in steps:
        for number, parameter in enumerate(part.tensors):
            assert parameter.grad is not None
            parameter.grad.copy_(vector(parameter.numel(), 10 * step + number).view(parameter.shape) - 0.5)
        part.update([{"lr": 0.1 / (1 + step)}], torch.ones(3).double().numpy())


@pytest.fixture(params=[(9, 1), (7001, 3)], ids=["small", "three threads"])
def rows(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    num_rows, num_threads = request.param
    torch.set_num_threads(num_threads)
    yield num_rows
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", ELEMENTWISE_OPTIMIZERS)
def test_slices_move_as_the_whole(kind: type[torch.optim.Optimizer], rows: int) -> None:
    """Bit for bit; also those that go on with what was saved of the whole, and what they save."""
    one = held(kind, rows)
    move(one, range(3))
    (values,) = one.values.values()
    slices = SliceLayout.of(values, 3)
    parts = [held(kind, rows) for _ in range(3)]
    for server, part in enumerate(parts):
        (moved,) = part.values.values()
        moved.copy_(values)
        part.load_optimizer_state(one.optimizer_state())
        part.restrict_to_slice(slices.slice_of(server))
        move(part, range(3, 6))
    move(one, range(3, 6))
    for server, part in enumerate(parts):
        (moved,) = part.values.values()
        assert torch.equal(moved[slices.slice_of(server)], values[slices.slice_of(server)])
    own = [part.slice_state() for part in parts]
    parts[0].set_full_state({name: slices.join([one[name] for one in own]) for name in own[0]})
    saved, expected = parts[0].optimizer_state(), one.optimizer_state()
    assert saved.keys() == expected.keys() and saved["groups"] == expected["groups"]
    for name, of_one in expected["each"].items():
        assert saved["each"][name].keys() == of_one.keys()
        for key, value in of_one.items():
            assert torch.equal(saved["each"][name][key], value), (name, key)
    assert saved["of_all"] == expected["of_all"]


def test_adagrad_begins_with_the_value_that_was_asked_for() -> None:
    part, again = held(torch.optim.Adagrad), held(torch.optim.Adagrad)
    assert again.optimizer is not None
    again.set_optimizer(again.optimizer, as_one=False)
    for one in (part, again):
        move(one, range(2))
    assert torch.equal(next(iter(part.values.values())), next(iter(again.values.values())))


def test_what_a_slice_cannot_do_is_refused() -> None:
    part = held(torch.optim.SGD)
    assert part.optimizer is not None
    part.set_optimizer(part.optimizer, as_one=False)
    with pytest.raises(UsageError, match=r"SGD cannot train weights .* several servers \(--servers\)"):
        part.restrict_to_slice(slice(0, 64))
    part = held(torch.optim.SGD)
    part.restrict_to_slice(slice(0, 64))
    before = next(iter(part.values.values())).clone()
    part.update([{"lr": 0.1}], torch.zeros(3).double().numpy())  # of a batch that was not finite
    assert torch.equal(next(iter(part.values.values())), before)
    with pytest.raises(UsageError, match=r"did not use b, and several servers \(--servers\) .*; use --servers 1"):
        part.update([{"lr": 0.1}], torch.tensor([1.0, 0.0, 1.0]).double().numpy())


def test_ranks_of_servers_and_workers() -> None:
    layout = ServerLayout(8, group=3, servers=2)
    assert layout.num_workers == 2
    assert [layout.is_server(rank) for rank in range(8)] == [True] * 2 + [False] * 6
    assert [layout.worker(rank) for rank in range(2, 8)] == [0, 0, 0, 1, 1, 1]
    assert [layout.shard(rank) for rank in range(8)] == [0, 0, 0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"size": 7, "group": 3}, r"2 servers and 5 for workers, which cannot be divided into groups of 3.*start 5 or 8"),
        ({"size": 2}, r"--servers 2 needs at least 3 processes; you started 2"),
        ({"size": 1, "simulate": 4}, r"leave out --simulate"),
        ({"size": 1, "elastic": 4}, r"leave out --elastic"),
    ],
)
def test_layouts_of_servers_that_are_refused(asked: dict[str, int], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        ServerLayout.of(asked["size"], LayoutOptions(asked.get("group"), 2, asked.get("simulate"), asked.get("elastic")))
