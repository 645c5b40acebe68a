"""Which all-reduce a communicator gets, and every group split from it: by counting what the members send."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from unisono.cluster.topology import ALLREDUCES
from unisono.comm.allreduce import OVER_MESSAGES, auto
from unisono.comm.allreduce.install import AllreduceInstaller
from unisono.comm.base import MIN, SUM, Communicator, Group, Op, Watch
from unisono.errors import CommError
from unisono.testing.counting import Counting
from unisono.testing.thread_communicator import run_threads

K = 1024
F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16
SHORT, MIDDLE, LONG = K, 64 * K, 64 * K + 1
"""Elements of float32 vectors for each row of the table of `auto`, and beyond it."""
AUTO = f"auto ({auto.description()})"


# ---- by length ---------------------------------------------------------------------------------------------------------


def test_auto_chooses_by_the_table() -> None:
    lengths = (0, 128 << 10, (128 << 10) + 1, 256 << 10, (256 << 10) + 1, 100 << 20)
    names = ("recursive_doubling", "recursive_doubling", "rabenseifner", "rabenseifner", "engine", "engine")
    assert tuple(map(auto.choose, lengths)) == names
    assert auto.description() == "recursive_doubling up to 128 KiB, rabenseifner up to 256 KiB, the engine itself for longer ones"
    assert set(OVER_MESSAGES) < set(ALLREDUCES)


Shape = tuple[int, torch.dtype]


def sends_of_auto(shapes: list[Shape], op: Op = SUM) -> list[list[int]]:
    """Bytes of each message that each of four ranks sends for a list of buffers of ones."""

    def body(comm: Communicator) -> list[int]:
        counting = Counting(comm)
        bufs = [torch.ones(numel, dtype=dtype) for numel, dtype in shapes]
        auto.prepare(counting, [0] * comm.size)(bufs, op)
        for buf in bufs:
            assert buf.eq(4 if op is SUM else 1).all()
        return [num_bytes for _, num_bytes in counting.sends]

    return run_threads(4, body)


@pytest.mark.parametrize(
    ("shapes", "op", "sent"),
    [
        pytest.param([(1, F32)], SUM, [4, 4], id="one element"),
        pytest.param([(32 * K, F32)], SUM, [128 * K] * 2, id="short"),
        pytest.param([(32 * K + 4, F32)], SUM, [64 * K + 8, 32 * K + 4, 32 * K + 4, 64 * K + 8], id="no longer short"),
        pytest.param([(64 * K, F32)], SUM, [128 * K, 64 * K, 64 * K, 128 * K], id="middle"),
        pytest.param([(64 * K + 1, F32)], SUM, [], id="long"),
        # Halves are summed as float32 and so travel; their minimum travels as they are.
        pytest.param([(32 * K, BF16)], SUM, [128 * K] * 2, id="short halves"),
        pytest.param([(64 * K, BF16)], SUM, [128 * K, 64 * K, 64 * K, 128 * K], id="middle halves"),
        pytest.param([(64 * K + 1, BF16)], SUM, [], id="long halves"),
        pytest.param([(64 * K, BF16)], MIN, [128 * K] * 2, id="minimum of halves"),
        # Short ones of one type travel together, halves with float32; another type alone; empty ones not at all.
        pytest.param([(10, F32), (0, F32), (3, F64), (5, BF16), (9, F32)], SUM, [96, 96, 24, 24], id="list"),
        # A tail beside a vector is still short; a list that is long all together goes to the engine, tail and all.
        pytest.param([(60 * K, F32), (4, F64)], SUM, [120 * K, 60 * K, 60 * K, 120 * K, 32, 32], id="vector and tail"),
        pytest.param([(64 * K, F32), (1, F64)], SUM, [], id="long vector and tail"),
        pytest.param([(K, F32)] * 65, SUM, [], id="long list"),
    ],
)
def test_auto_takes_lists_and_types_by_what_travels(shapes: list[Shape], op: Op, sent: list[int]) -> None:
    assert sends_of_auto(shapes, op) == [sent] * 4


# ---- in groups ---------------------------------------------------------------------------------------------------------


class Counted(Counting):
    """Counts what the engine itself reduces too, goes by the name of another engine, and so do the groups split from it."""

    def __init__(self, inner: Communicator, engine: str) -> None:
        super().__init__(inner)
        self.engine = engine
        self.reduced: list[int] = []

    def _allreduce(self, bufs: list[torch.Tensor], op: Op, watch: Watch) -> None:
        self.reduced += [buf.numel() for buf in bufs]
        super()._allreduce(bufs, op, watch)

    def _subgroup(self, group: Group) -> Communicator:
        return Counted(self.inner._subgroup(group), self.engine)


def installed(comm: Communicator, asked: str, nodes: Sequence[int], engine: str = "gloo") -> Communicator:
    """Collective: `comm` as a communicator of that engine, with the all-reduce that was asked for."""

    def open_node(group: Communicator) -> Communicator:
        return joined(group.split(nodes[group.members[group.rank]], group.rank))

    counted = Counted(comm, engine)
    AllreduceInstaller(asked, nodes, open_node).install(counted)
    return counted


def joined(group: Communicator | None) -> Communicator:
    assert group is not None
    return group


def work(group: Communicator, numel: int) -> tuple[list[int], list[int]]:
    """Collective: an all-reduce of float32; elements of each message that this rank sent, and of each call of the engine."""
    parts = [part for part in (group, *group._dependents) if isinstance(part, Counted)]
    for part in parts:
        part.sends.clear()
        part.reduced.clear()
    buf = torch.full((numel,), float(group.members[group.rank]))
    group.allreduce(buf)
    assert buf.eq(float(sum(group.members))).all()
    return [num_bytes // 4 for part in parts for _, num_bytes in part.sends], [count for part in parts for count in part.reduced]


def messages(name: str, size: int, numel: int) -> list[int]:
    """What each of 2 or 4 members sends, by the formulas of the algorithms."""
    if name == "ring":
        return [numel // size] * (2 * (size - 1))
    if name == "recursive_doubling":
        return [numel] * (size // 2)
    return [numel // 2] * 2 if size == 2 else [numel // 2, numel // 4, numel // 4, numel // 2]


@pytest.mark.parametrize("engine", ["gloo", "mpi", "shm"])
@pytest.mark.parametrize("name", ["ring", "recursive_doubling", "rabenseifner"])
def test_groups_reduce_by_the_algorithm_that_was_asked_for(name: str, engine: str) -> None:
    def body(comm: Communicator) -> None:
        world = installed(comm, name, [0, 0, 0, 0], engine)
        copy = world.duplicate()
        half = joined(world.split(comm.rank // 2))
        pair = joined(copy.split(comm.rank % 2, key=-comm.rank))
        for group in (world, copy, half, pair, half.duplicate()):
            assert work(group, SHORT) == (messages(name, group.size, SHORT), [])
            assert group.origin.endswith(f", all-reduce by {name} over messages")
        alone = joined(world.split(comm.rank))
        assert alone.origin == f"1 process, engine threads, all-reduce by the engine itself ({name} needs several processes)"

    run_threads(4, body)


def test_auto_on_gloo_between_nodes_follows_the_table_in_every_group() -> None:
    def body(comm: Communicator) -> None:
        world = installed(comm, "auto", [0, 1, 2, 3])
        for group in (world, world.duplicate(), joined(world.split(comm.rank % 2)), joined(world.split(0, key=-comm.rank))):
            assert work(group, SHORT) == (messages("recursive_doubling", group.size, SHORT), [])
            assert work(group, MIDDLE) == (messages("rabenseifner", group.size, MIDDLE), [])
            assert work(group, LONG) == ([], [LONG])
            assert group.origin.endswith(f", all-reduce {AUTO}")

    run_threads(4, body)


@pytest.mark.parametrize(("engine", "nodes"), [("gloo", [0, 0, 0, 0]), ("mpi", [0, 0, 0, 0]), ("mpi", [0, 1, 2, 3])])
def test_auto_on_one_node_and_on_mpi_is_the_engines_own(engine: str, nodes: list[int]) -> None:
    def body(comm: Communicator) -> None:
        world = installed(comm, "auto", nodes, engine)
        for group in (world, joined(world.split(comm.rank % 2))):
            assert work(group, SHORT) == ([], [SHORT])
            assert group.origin.endswith(", all-reduce by the engine itself")

    run_threads(4, body)


@pytest.mark.parametrize("asked", ["auto", "node_aware"])
def test_neighbours_reduce_among_themselves_first_in_every_group(asked: str) -> None:
    def body(comm: Communicator) -> None:
        world = installed(comm, asked, [0, 0, 1, 1])
        for group in (world, world.duplicate()):
            is_first = comm.rank % 2 == 0
            assert work(group, SHORT) == ([SHORT] if is_first else [], [SHORT])  # the latter inside the node
            assert work(group, MIDDLE) == ([MIDDLE // 2], [])  # half a vector for each: recursive doubling
            assert work(group, 4 * MIDDLE) == ([], [2 * MIDDLE])
            assert f"node_aware (gloo inside a node, gloo between nodes: {AUTO})" in group.origin
        node = joined(world.split(comm.rank // 2))
        assert work(node, SHORT) == ([], [SHORT])
        assert "node_aware (gloo, as all are on one node)" in node.origin
        across = joined(world.split(comm.rank % 2))
        sent, _ = work(across, SHORT)
        assert sent == [SHORT]
        assert AUTO in across.origin

    run_threads(4, body)


def test_mpi_between_nodes_chooses_by_itself() -> None:
    def body(comm: Communicator) -> None:
        nodes = [0, 0, 1, 1]
        counted = Counted(comm, "mpi")
        shown = AllreduceInstaller("auto", nodes, lambda group: joined(group.split(nodes[group.rank])), "TUNED=4").install(counted)
        assert shown == "node_aware (mpi inside a node, mpi between nodes: by the engine itself (TUNED=4))"
        assert work(counted, SHORT) == ([], [SHORT, SHORT] if comm.rank % 2 == 0 else [SHORT])

    run_threads(4, body)


def test_what_a_composition_is_made_of_is_left_as_the_engine_makes_it() -> None:
    def body(comm: Communicator) -> None:
        world = installed(comm, "auto", [0, 0, 1, 1])
        for group in (world, joined(world.split(comm.rank % 2)), joined(world.split(comm.rank // 2))):
            assert group._dependents
            for part in group._dependents:
                assert part._dependents == []
                assert "all-reduce" not in part.origin
                assert joined(part.split(0)).origin == part.origin

    run_threads(4, body)


def test_a_group_that_cannot_be_equipped_is_closed() -> None:
    def body(comm: Communicator) -> None:
        found = []

        def equip(group: Communicator) -> None:
            found.append(group)
            raise CommError("no memory for it")

        comm.equip_groups(equip)
        with pytest.raises(CommError, match="no memory for it"):
            comm.duplicate()
        with pytest.raises(CommError, match="closed"):
            found[0].barrier()
        comm.barrier()

    run_threads(2, body)
