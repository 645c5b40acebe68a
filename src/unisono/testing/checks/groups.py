"""Checks of groups from `split` and `duplicate`: members, their order, and the separation of groups."""

from __future__ import annotations

import numpy as np
import torch

from unisono.comm.base import SUM, Communicator
from unisono.errors import CommError
from unisono.testing.checks.expected import contribution, expect, expect_equal, numpy_reduce, tensor_of


def check_split_by_color(comm: Communicator) -> None:
    """Even and odd ranks get groups of their own; the whole group still works afterwards."""
    color = comm.rank % 2
    group = _require_group(comm.split(color))
    wanted = tuple(r for r in range(comm.size) if r % 2 == color)
    _expect_group(comm, group, wanted)
    _use(group, wanted)
    group.close()
    _use(comm, tuple(range(comm.size)))


def check_split_orders_by_key(comm: Communicator) -> None:
    """A negative key reverses the order of ranks; equal keys keep it."""
    group = _require_group(comm.split(0, key=-comm.rank))
    wanted = tuple(reversed(range(comm.size)))
    _expect_group(comm, group, wanted)
    _use(group, wanted)
    buf = tensor_of(group, np.full(3, group.rank), torch.int64)
    group.broadcast(buf, root=0)
    gathered = torch.empty(group.size, dtype=torch.int64, device=group.device)
    group.allgather(gathered, tensor_of(group, np.array([comm.rank]), torch.int64))
    expect(gathered.tolist() == list(wanted), f"allgather of a reversed group is in the order {gathered.tolist()}")
    group.close()
    same_key = _require_group(comm.split(0, key=7))
    _expect_group(comm, same_key, tuple(range(comm.size)))
    same_key.close()


def check_split_leaves_out_those_without_color(comm: Communicator) -> None:
    """A rank that splits with None gets None, and the others a group without it."""
    group = comm.split(None if comm.rank == 0 else 1)
    if comm.rank == 0:
        expect(group is None, "split(None) gave a communicator")
    else:
        wanted = tuple(range(1, comm.size))
        _expect_group(comm, _require_group(group), wanted)
        _use(_require_group(group), wanted)
        _require_group(group).close()
    expect(comm.split(None) is None, "split(None) on all ranks gave a communicator")
    _use(comm, tuple(range(comm.size)))


def check_split_of_a_split(comm: Communicator) -> None:
    """Groups can be split again; `ranks` are then numbers within the group above."""
    first = _require_group(comm.split(comm.rank // 2))
    second = _require_group(first.split(first.rank))
    expect((second.size, second.rank, second.ranks) == (1, 0, (first.rank,)), f"a group of one is {second.ranks}")
    _use(second, (comm.rank,))
    again = _require_group(first.split(0, key=-first.rank))
    wanted = tuple(first.ranks[r] for r in reversed(range(first.size)))
    expect(again.ranks == tuple(reversed(range(first.size))), f"ranks of a nested split are {again.ranks}")
    _use(again, wanted)
    for group in (again, second, first):
        group.close()


def check_rows_and_columns(comm: Communicator) -> None:
    """Every rank belongs to two groups and uses them in turn; groups make different numbers of calls."""
    columns = 2 if comm.size % 2 == 0 else 1
    row = _require_group(comm.split(comm.rank // columns))
    column = _require_group(comm.split(comm.rank % columns))
    in_row = tuple(r for r in range(comm.size) if r // columns == comm.rank // columns)
    in_column = tuple(r for r in range(comm.size) if r % columns == comm.rank % columns)
    for _ in range(5):
        for _ in range(1 + comm.rank // columns):
            _use(row, in_row)
        _use(column, in_column)
        _use(comm, tuple(range(comm.size)))
    column.close()
    row.close()


def check_duplicate_has_messages_of_its_own(comm: Communicator) -> None:
    """Messages and collectives of a communicator and of its duplicate are never mixed up."""
    copy = comm.duplicate()
    _expect_group(comm, copy, tuple(range(comm.size)))
    following, preceding = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    sends = [
        group.start_send(tensor_of(group, np.full(4, value + comm.rank), torch.float32), following, tag=5)
        for group, value in ((comm, 100), (copy, 200))
    ]
    # Taken in the other order: a message to one group must not be seen by the other.
    for group, value in ((copy, 200), (comm, 100)):
        buf = torch.zeros(4, device=group.device)
        group.recv(buf, preceding, tag=5)
        expect_equal(buf, np.full(4, value + preceding), f"message on {group.name}")
    for send in sends:
        send.wait()
    # Calls on two groups may be started in one order and waited for in the other.
    bufs = [tensor_of(group, contribution(comm.rank, 1000, i), torch.float32) for i, group in enumerate((comm, copy))]
    works = [group.start_allreduce(buf) for group, buf in zip((comm, copy), bufs, strict=True)]
    for work in reversed(works):
        work.wait()
    for i, buf in enumerate(bufs):
        expect_equal(buf, _reduced_over(tuple(range(comm.size)), 1000, i), "allreduce on a duplicate")
    copy.close()


def check_closed_says_so(comm: Communicator) -> None:
    """After `close`, which may be repeated, each call raises an error that names the communicator and says closed."""
    copy = comm.duplicate()
    copy.close()
    copy.close()
    buf = torch.ones(3, device=comm.device)
    for name, call in (
        ("allreduce", lambda: copy.allreduce(buf)),
        ("start_allreduce", lambda: copy.start_allreduce(buf)),
        ("barrier", copy.barrier),
        ("send", lambda: copy.send(buf, 0)),
        ("recv", lambda: copy.recv(buf, 0)),
        ("allgather_object", lambda: copy.allgather_object(1)),
        ("duplicate", copy.duplicate),
    ):
        try:
            call()
        except CommError as error:
            expect("closed" in str(error) and copy.name in str(error), f"{name} after close says {error}")
        else:
            raise AssertionError(f"{name} works after close")
    _use(comm, tuple(range(comm.size)))


def check_buffers_outlive_their_communicator(comm: Communicator) -> None:
    """A mapped buffer keeps its values after its communicator is closed, and others can send it."""
    copy = comm.duplicate()
    buf = tensor_of(copy, contribution(comm.rank, 5000), torch.float32, mapped=True)
    copy.allreduce(buf)
    copy.close()
    everybody = tuple(range(comm.size))
    expect_equal(buf, _reduced_over(everybody, 5000), "a buffer after its communicator was closed")
    comm.broadcast(buf, comm.size - 1)
    expect_equal(buf, _reduced_over(everybody, 5000), "a buffer of a closed communicator, sent by another")


def _reduced_over(ranks: tuple[int, ...], numel: int, salt: int = 0) -> np.ndarray:
    """Returns the numpy sum of the contributions of these ranks."""
    return numpy_reduce(SUM, (contribution(r, numel, salt) for r in ranks))


def _require_group(group: Communicator | None) -> Communicator:
    """Returns the result of `split`; raises if it is None."""
    if group is None:
        raise AssertionError("split gave no communicator to a rank with a color")
    return group


def _expect_group(parent: Communicator, group: Communicator, ranks: tuple[int, ...]) -> None:
    """Asserts size, rank and members of a group, and that its name is not its parent's."""
    place = (group.size, group.rank, group.ranks)
    expect(place == (len(ranks), ranks.index(parent.rank), ranks), f"the group of {ranks} says (size, rank, ranks) = {place}")
    expect(group.name != parent.name, f"a group has its parent's name {group.name}")


def _use(group: Communicator, ranks: tuple[int, ...]) -> None:
    """Makes a few calls of different kinds; `ranks` are the numbers of the members in the order of the group."""
    mine = ranks[group.rank]
    for numel in (3, 3000):
        buf = tensor_of(group, contribution(mine, numel), torch.float32)
        group.allreduce(buf)
        expect_equal(buf, _reduced_over(ranks, numel), f"allreduce over {ranks}")
    for root in range(group.size):
        buf = tensor_of(group, contribution(mine, 10), torch.int32)
        group.broadcast(buf, root)
        expect_equal(buf, contribution(ranks[root], 10), f"broadcast over {ranks} from {root}")
    answers = group.allgather_object(mine)
    expect(answers == list(ranks), f"allgather_object over {ranks} gave {answers}")
    group.barrier()
