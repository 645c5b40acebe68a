"""The all-reduce algorithms over messages: results, equal bits, and cost against the formulas in their docstrings."""

from __future__ import annotations

import importlib
import math
import threading
from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch

from unisono.comm.allreduce import OVER_MESSAGES, auto, node_aware
from unisono.comm.base import DTYPES, MAX, MIN, SUM, Communicator, Op, Reducer
from unisono.errors import CollectiveTimeout, MismatchedCall, PeerLost
from unisono.testing.counting import Counting
from unisono.testing.thread_communicator import run_threads

SIZES = range(1, 9)
NUMPY_OPS: Mapping[Op, Callable[..., np.ndarray]] = {Op.SUM: np.sum, Op.MIN: np.min, Op.MAX: np.max}
PLACEMENTS: Mapping[str, Callable[[int], list[int]]] = {
    "one node": lambda size: [0] * size,
    "blocks of 2": lambda size: [r // 2 for r in range(size)],
    "round robin": lambda size: [r % 2 for r in range(size)],
    "uneven": lambda size: [0 if r < 3 else 1 for r in range(size)],
    "one each": lambda size: list(range(size)),
}


def prepare(name: str, comm: Communicator, nodes: list[int]) -> Reducer:
    reducer: Reducer = importlib.import_module(f"unisono.comm.allreduce.{name}").prepare(comm, nodes)
    return reducer


def use(name: str, comm: Communicator, nodes: list[int], between: str = "engine") -> None:
    """Let `comm` reduce by the algorithm."""
    if name == "node_aware":
        local = comm.split(nodes[comm.rank])
        across = comm.split(node_aware.between_nodes_color(nodes, comm.rank))
        assert local is not None
        reducer = None
        if across is not None:
            reducer = across.allreduce if between == "engine" else prepare(between, across, [nodes[r] for r in across.ranks])
        comm.reduce_with(node_aware.prepare(nodes, local, reducer), *(c for c in (local, across) if c is not None))
    else:
        copy = comm.duplicate()
        comm.reduce_with(prepare(name, copy, nodes), copy)


def noise(rank: int, numel: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values whose sums depend on the order of summation."""
    return torch.randn(numel, generator=torch.Generator().manual_seed(1000 * numel + rank), dtype=torch.float64).to(dtype)


ALL = [(name, "engine") for name in (*OVER_MESSAGES, "node_aware")] + [("node_aware", "ring"), ("node_aware", "auto")]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("name", "between"), ALL)
def test_results_agree_with_numpy_and_bits_with_each_other(
    name: str, between: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Thresholds of the choices are lowered so that short vectors take every way.
    monkeypatch.setattr(node_aware, "SHARED_FROM_BYTES", 64)
    monkeypatch.setattr(auto, "BY_LENGTH", ((50, "recursive_doubling"), (100, "rabenseifner")))

    given = {numel: [noise(r, numel) for r in range(size)] for numel in (0, 1, size - 1, 24, 101)}
    placements = dict.fromkeys(tuple(place(size)) for place in PLACEMENTS.values())  # few ranks can be placed in few ways

    def body(comm: Communicator) -> list[bytes]:
        results = []
        for nodes in placements:
            group = comm.duplicate()
            use(name, group, list(nodes), between)
            for numel, values in given.items():
                everybody = np.stack([value.double().numpy() for value in values])
                for op in (SUM, MAX if numel % 2 else MIN):
                    buf = values[comm.rank].clone()
                    group.allreduce(buf, op)
                    bound = comm.size * 2.0**-23 * np.abs(everybody).sum(axis=0) if op is SUM else np.zeros(numel)
                    assert (np.abs(buf.numpy() - NUMPY_OPS[op](everybody, axis=0)) <= bound).all()
                    results.append(buf.numpy().tobytes())
            group.close()
        return results

    results = run_threads(size, body)
    assert results == [results[0]] * size


@pytest.mark.parametrize("name", [*OVER_MESSAGES, "node_aware"])
def test_every_type(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_aware, "SHARED_FROM_BYTES", 16)

    def body(comm: Communicator) -> None:
        use(name, comm, PLACEMENTS["blocks of 2"](comm.size))
        for dtype in DTYPES:
            for op in Op:
                buf = ((torch.arange(20) + comm.rank) % 7).to(dtype)
                comm.allreduce(buf, op)
                everybody = np.stack([(np.arange(20) + r) % 7 for r in range(comm.size)])
                assert buf.dtype == dtype
                assert buf.double().tolist() == NUMPY_OPS[op](everybody, axis=0).tolist()

    for size in (3, 4):
        run_threads(size, body)


@pytest.mark.parametrize("name", [*OVER_MESSAGES, "node_aware"])
def test_halves_are_rounded_once(name: str) -> None:
    def body(comm: Communicator) -> None:
        use(name, comm, PLACEMENTS["blocks of 2"](comm.size))
        # 256 + 1 + ... + 1 in bfloat16: every one is lost if each addition is rounded, whatever the order of ranks.
        buf = torch.tensor([256.0 if comm.rank == r else 1.0 for r in range(comm.size)], dtype=torch.bfloat16)
        comm.allreduce(buf)
        exact = torch.full((comm.size,), 256.0 + comm.size - 1)
        assert buf.tolist() == exact.bfloat16().tolist()

    for size in (3, 4, 8):
        run_threads(size, body)


def test_equal_bits_where_the_order_of_operands_shows() -> None:
    def body(comm: Communicator) -> tuple[bytes, ...]:
        results = []
        for name in OVER_MESSAGES:
            group = comm.duplicate()
            use(name, group, [0] * comm.size)
            for op in Op:
                # Zeros of both signs, and NaNs with different payloads.
                buf = torch.zeros(16) * (-1 if comm.rank % 2 else 1)
                buf[8:] = torch.full((8,), 0x7FC00000 + comm.rank, dtype=torch.int32).view(torch.float32)
                group.allreduce(buf, op)
                results.append(buf.numpy().tobytes())
            group.close()
        return tuple(results)

    for size in (2, 3, 4, 7):
        results = run_threads(size, body)
        assert results == [results[0]] * size


# ---- cost --------------------------------------------------------------------------------------------------------------


def sends_of(name: str, size: int, numel: int) -> list[list[tuple[int, int]]]:
    """What every rank sends, as (destination, elements), in one all-reduce of `numel` float64."""

    def body(comm: Communicator) -> list[tuple[int, int]]:
        counting = Counting(comm)
        prepare(name, counting, [0] * size)([torch.ones(numel, dtype=torch.float64)], SUM)
        comm.barrier()
        return [(dest, num_bytes // 8) for dest, num_bytes in counting.sends]

    return run_threads(size, body)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("numel", [0, 3, 840, 841, 1000])
def test_cost_of_the_ring(size: int, numel: int) -> None:
    slices = -(-numel // size)
    for rank, sends in enumerate(sends_of("ring", size, numel)):
        assert all(dest == (rank + 1) % size for dest, _ in sends)
        elements = sum(count for _, count in sends)
        if numel % size == 0:
            assert elements * size == 2 * (size - 1) * numel
        else:  # two slices of the vector are not sent, and a slice has at most `slices` elements
            assert 2 * (numel - slices) <= elements <= 2 * numel
        if numel >= size * size:  # no slice is empty
            assert len(sends) == 2 * (size - 1)
        assert len(sends) <= 2 * (size - 1)
        assert all(0 < count <= slices for _, count in sends)


def core_of(size: int) -> tuple[int, int]:
    power = 2 ** int(math.log2(size))
    return power, size - power


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("numel", [0, 3, 840, 841])
def test_cost_of_recursive_doubling(size: int, numel: int) -> None:
    power, extra = core_of(size)
    for rank, sends in enumerate(sends_of("recursive_doubling", size, numel)):
        paired = rank < 2 * extra
        messages = 1 if paired and rank % 2 == 0 else int(math.log2(power)) + paired
        assert [count for _, count in sends] == ([numel] * messages if numel else [])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("numel", [0, 3, 840, 841])
def test_cost_of_rabenseifner(size: int, numel: int) -> None:
    power, extra = core_of(size)
    rounds = int(math.log2(power))
    for rank, sends in enumerate(sends_of("rabenseifner", size, numel)):
        elements = sum(count for _, count in sends)
        if rank < 2 * extra and rank % 2 == 0:
            assert [count for _, count in sends] == ([numel] if numel else [])
            continue
        folded = numel if rank < 2 * extra else 0
        if numel % power == 0:
            assert (elements - folded) * power == 2 * (power - 1) * numel
        else:  # every halving is off by at most one element, there and back
            assert abs(elements - folded - 2 * (power - 1) / power * numel) <= 2 * rounds
        if numel >= power:
            assert len(sends) == 2 * rounds + (rank < 2 * extra)
        assert len(sends) <= 2 * rounds + (rank < 2 * extra)


def test_the_ring_passes_every_node_once_and_rabenseifner_sends_little_between_nodes() -> None:
    def between_nodes(name: str, nodes: list[int]) -> int:
        def body(comm: Communicator) -> int:
            counting = Counting(comm)
            prepare(name, counting, nodes)([torch.ones(800, dtype=torch.int8)], SUM)
            return sum(count for dest, count in counting.sends if nodes[dest] != nodes[comm.rank])

        return sum(run_threads(len(nodes), body))

    round_robin = [0, 1, 0, 1, 0, 1, 0, 1]
    assert between_nodes("ring", round_robin) == 2 * 2 * 7 * 100  # two of eight links, 14 slices on each
    assert between_nodes("rabenseifner", round_robin) == 8 * 2 * 100  # only the last, smallest swap, there and back


def test_node_aware_shares_the_network_among_the_members_of_a_node() -> None:
    nodes = [0, 0, 0, 1, 1, 1]
    numel = 30_000

    def body(comm: Communicator) -> int:
        local = comm.split(nodes[comm.rank])
        across = comm.split(node_aware.between_nodes_color(nodes, comm.rank))
        assert local is not None
        assert across is not None
        counting = Counting(across)
        buf = torch.full((numel,), float(comm.rank))
        node_aware.prepare(nodes, local, prepare("ring", counting, [0, 1]))([buf], SUM)
        assert buf.eq(15.0).all()
        return counting.bytes_sent

    assert run_threads(6, body) == [numel * 4 // 3] * 6


def test_ranks_that_communicate_between_nodes() -> None:
    def colors(nodes: list[int]) -> list[int | None]:
        return [node_aware.between_nodes_color(nodes, rank) for rank in range(len(nodes))]

    assert colors([0, 0, 1, 1]) == [0, 1, 0, 1]
    assert colors([0, 1, 0, 1]) == [0, 0, 1, 1]
    assert colors([5, 5, 2]) == [0, None, 0]
    assert colors([0, 0, 0]) == [0, 1, 2]


# ---- what goes wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*OVER_MESSAGES, "node_aware"])
def test_failures_name_the_call(name: str) -> None:
    over = threading.Event()

    def late(comm: Communicator) -> tuple[type, tuple[int, ...], str]:
        use(name, comm, PLACEMENTS["blocks of 2"](comm.size))
        if comm.rank == 2:
            assert over.wait(30.0)
            return type(None), (), ""
        try:
            comm.allreduce(torch.ones(40))
        except (CollectiveTimeout, PeerLost) as error:
            over.set()
            return type(error), error.ranks, str(error)
        raise AssertionError("finished without rank 2")

    results = run_threads(5, late, time_limit_s=0.3)
    assert CollectiveTimeout in [kind for kind, _, _ in results]
    for rank, (_, ranks, text) in enumerate(results):
        if rank != 2:
            assert f"allreduce(float32[40], sum) on rank {rank} of world" in text
            assert ranks == (2,)

    def dead(comm: Communicator) -> None:
        use(name, comm, PLACEMENTS["blocks of 2"](comm.size))
        if comm.rank == 2:
            raise ZeroDivisionError("rank 2 fails")
        try:
            comm.allreduce(torch.ones(40))
        except PeerLost as error:
            lost.append(error.ranks)
            raise

    lost: list[tuple[int, ...]] = []
    with pytest.raises(ZeroDivisionError):
        run_threads(5, dead)
    assert lost == [(2,)] * 4


@pytest.mark.parametrize("name", OVER_MESSAGES)
def test_different_lengths_are_refused(name: str) -> None:
    def body(comm: Communicator) -> None:
        use(name, comm, [0] * comm.size)
        comm.allreduce(torch.ones(6 + 6 * (comm.rank == 1)))

    with pytest.raises(MismatchedCall, match=r"allreduce\(float32\[(6|12)\], sum\).*allreduce\(float32\[(6|12)\], sum\)"):
        run_threads(3, body)
