"""Checks of every collective against numpy: operations, types, sizes, uneven and empty parts, kinds of buffer, order."""

from __future__ import annotations

import hashlib
import math
import random

import numpy as np
import torch
from torch import Tensor

from unisono.comm.base import DTYPES, MAX, SUM, Communicator, Op
from unisono.testing.checks.expected import (
    array_of,
    contribution,
    expect,
    expect_equal,
    numpy_reduce,
    parts_of,
    tensor_of,
    uneven_counts,
)

SIZES = (1, 7, 64, 1000, 4097)
LARGE_SIZES = (16_384, 65_537, 131_071, 300_001)
"""Across the sizes at which engines change their method (some kilobytes up to a megabyte)."""
FLOATS = tuple(dtype for dtype in DTYPES if dtype.is_floating_point)
WHOLE = tuple(dtype for dtype in DTYPES if not dtype.is_floating_point)


def check_allreduce_of_every_type_and_operation(comm: Communicator) -> None:
    """Compares the all-reduce of every dtype, operation and a range of sizes with numpy."""
    for dtype in DTYPES:
        for op in Op:
            for numel in SIZES:
                _allreduce_once(comm, numel, dtype, op, f"allreduce {op.value} of {dtype}[{numel}]")


def check_allreduce_of_large_buffers(comm: Communicator) -> None:
    """Large sums in plain and mapped memory, and one maximum, are those of numpy."""
    for numel in LARGE_SIZES:
        mine, wanted = contribution(comm.rank, numel), _numpy_allreduce(comm, numel, SUM)
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.uint8, torch.int64):
            for mapped in (False, True):
                buf = tensor_of(comm, mine, dtype, mapped)
                comm.allreduce(buf)
                expect_equal(buf, wanted, f"allreduce of {dtype}[{numel}], mapped={mapped}")
    _allreduce_once(comm, LARGE_SIZES[-1], torch.float32, MAX, "allreduce max of a large buffer")


def check_allreduce_gives_all_members_the_same_bits(comm: Communicator) -> None:
    """Sums of random floats have the same bits on all ranks, and are right up to rounding."""
    for dtype in FLOATS:
        for numel in (1, 1000, 100_003):
            values = [_random_floats(r, numel) for r in range(comm.size)]
            buf = tensor_of(comm, values[comm.rank], dtype)
            comm.allreduce(buf)
            digests = comm.allgather_object(_digest(buf))
            expect(len(set(digests)) == 1, f"members hold different bits after an allreduce of {dtype}[{numel}]")
            rounded = [array_of(torch.from_numpy(value).to(dtype)) for value in values]
            bound = comm.size * torch.finfo(dtype).eps * sum(np.abs(value) for value in rounded)
            error = np.abs(array_of(buf) - sum(rounded))
            expect(bool((error <= bound).all()), f"allreduce of random {dtype}[{numel}] is off by {error.max():g}")


def check_allreduce_of_nothing(comm: Communicator) -> None:
    """Empty buffers, an empty list, and empty buffers in a list beside a full one."""
    for dtype in DTYPES:
        comm.allreduce(torch.empty(0, dtype=dtype, device=comm.device))
    comm.allreduce(comm.empty(0))
    comm.allreduce([])
    nothing, something = comm.empty((0, 5)), tensor_of(comm, contribution(comm.rank, 9), torch.float32)
    comm.allreduce([nothing, something, nothing])
    expect_equal(something, _numpy_allreduce(comm, 9, SUM), "allreduce of a list with empty buffers")


def check_allreduce_of_a_list_of_mixed_types(comm: Communicator) -> None:
    """One call reduces buffers of all dtypes together, small and large ones."""
    for large in (False, True):
        for op in Op:
            sizes = [(position * 37 + 1) * (300 if large else 1) for position in range(len(DTYPES))]
            bufs = [
                tensor_of(comm, contribution(comm.rank, numel, numel), dtype, mapped=position % 2 == 0)
                for position, (numel, dtype) in enumerate(zip(sizes, DTYPES, strict=True))
            ]
            comm.allreduce(bufs, op)
            for numel, buf in zip(sizes, bufs, strict=True):
                expect_equal(buf, _numpy_allreduce(comm, numel, op, numel), f"grouped allreduce {op.value}, {buf.dtype}[{numel}]")


def check_allreduce_of_a_long_list(comm: Communicator) -> None:
    """One call sums 200 buffers."""
    for numel in (3, 400):
        bufs = [tensor_of(comm, contribution(comm.rank, numel, i), torch.float32, i % 3 == 0) for i in range(200)]
        comm.allreduce(bufs)
        for i, buf in enumerate(bufs):
            expect_equal(buf, _numpy_allreduce(comm, numel, SUM, i), f"buffer {i} of a list of 200")


def check_broadcast_of_a_long_list(comm: Communicator) -> None:
    """One call broadcasts 200 buffers from the last rank."""
    for numel in (1, 400):
        bufs = [tensor_of(comm, contribution(comm.rank, numel, i), torch.float32, i % 3 == 0) for i in range(200)]
        comm.broadcast(bufs, comm.size - 1)
        for i, buf in enumerate(bufs):
            expect_equal(buf, contribution(comm.size - 1, numel, i), f"buffer {i} of a broadcast list of 200")


def check_buffers_may_be_of_any_shape_and_place(comm: Communicator) -> None:
    """Matrix, scalar, parameter and slice are summed in place; what lies beside a slice stays."""
    matrix = tensor_of(comm, contribution(comm.rank, 24).reshape(2, 3, 4), torch.float32)
    comm.allreduce(matrix)
    expect_equal(matrix, _numpy_allreduce(comm, 24, SUM), "allreduce of a matrix")
    scalar = torch.tensor(float(comm.rank + 1), device=comm.device)
    comm.allreduce(scalar)
    expect(scalar.item() == comm.size * (comm.size + 1) / 2, f"allreduce of a scalar gave {scalar.item()}")
    parameter = torch.nn.Parameter(torch.ones(5, device=comm.device))
    comm.allreduce(parameter)
    expect_equal(parameter, np.full(5, comm.size), "allreduce of a parameter")
    for mapped in (False, True):
        for numel in (5, 50_001):
            whole = tensor_of(comm, np.full(numel + 8, 99), torch.float32, mapped)
            part = whole[3 : 3 + numel]
            part.copy_(tensor_of(comm, contribution(comm.rank, numel), torch.float32))
            comm.allreduce(part)
            expect_equal(part, _numpy_allreduce(comm, numel, SUM), f"allreduce of a slice, mapped={mapped}")
            expect_equal(torch.cat((whole[:3], whole[3 + numel :])), np.full(8, 99), "what lies beside the slice")


def check_buffers_may_be_mapped_on_some_ranks_only(comm: Communicator) -> None:
    """Calls work where only some ranks use memory from `comm.empty`."""
    for numel in (10, 2000, 70_000):
        for odd in (0, 1):
            mapped = comm.rank % 2 == odd
            _allreduce_once(comm, numel, torch.float32, SUM, f"allreduce mapped on some ranks [{numel}]", mapped)
            buf = tensor_of(comm, contribution(comm.rank, numel), torch.float32, mapped)
            comm.broadcast(buf, root=comm.size - 1)
            expect_equal(buf, contribution(comm.size - 1, numel), f"broadcast mapped on some ranks [{numel}]")
            out = tensor_of(comm, np.zeros(numel * comm.size), torch.float32, not mapped)
            comm.allgather(out, tensor_of(comm, contribution(comm.rank, numel), torch.float32, mapped))
            wanted = np.concatenate([contribution(r, numel) for r in range(comm.size)])
            expect_equal(out, wanted, f"allgather mapped on some ranks [{numel}]")


def check_large_whole_numbers_stay_exact(comm: Communicator) -> None:
    """int64 is summed without rounding, and overflow wraps as in numpy."""
    base = 2**60 // comm.size
    buf = torch.tensor([base + comm.rank, -base - comm.rank, 2**53 // comm.size + 1], device=comm.device)
    comm.allreduce(buf)
    size, ranks = comm.size, sum(range(comm.size))
    wanted = [base * size + ranks, -base * size - ranks, (2**53 // size + 1) * size]
    expect(buf.tolist() == wanted, f"sum of large int64 gave {buf.tolist()}, expected {wanted}")
    buf = torch.tensor([2**62 + comm.rank], device=comm.device)
    comm.allreduce(buf, MAX)
    expect(buf.tolist() == [2**62 + comm.size - 1], f"max of large int64 gave {buf.tolist()}")
    for dtype in WHOLE:  # overflow wraps, as in numpy
        largest = torch.iinfo(dtype).max
        buf = torch.full((70,), largest, dtype=dtype, device=comm.device)
        comm.allreduce(buf)
        kind = np.dtype(str(dtype).removeprefix("torch."))
        wrapped = int(np.full(comm.size, largest, kind).sum(dtype=kind))
        expect(buf.tolist() == [wrapped] * 70, f"overflow of {dtype} gave {buf.tolist()[:1]}, numpy wraps to {wrapped}")


def check_not_finite_values_travel(comm: Communicator) -> None:
    """Infinity and NaN of one rank appear in the sum at their places, and nowhere else."""
    for dtype in FLOATS:
        for numel in (3, 40_000):
            buf = torch.ones(numel, dtype=dtype, device=comm.device)
            if comm.rank == comm.size - 1:
                buf[0], buf[1] = math.inf, math.nan
            comm.allreduce(buf)
            values = array_of(buf)
            shown = f"allreduce of infinity, nan and 1 in {dtype}[{numel}] gave {values[:3]}"
            expect(bool(np.isposinf(values[0]) and np.isnan(values[1]) and values[-1] == comm.size), shown)


def check_broadcast_from_every_root(comm: Communicator) -> None:
    """Each rank in turn broadcasts every dtype, a large buffer and a list of mixed types."""
    for root in range(comm.size):
        for dtype in DTYPES:
            for numel in (0, 1, 1000, 4097):
                buf = tensor_of(comm, contribution(comm.rank, numel, root), dtype, mapped=numel == 1000)
                comm.broadcast(buf, root)
                expect_equal(buf, contribution(root, numel, root), f"broadcast of {dtype}[{numel}] from {root}")
        large = tensor_of(comm, contribution(comm.rank, 300_001), torch.float32)
        comm.broadcast(large, root)
        expect_equal(large, contribution(root, 300_001), f"large broadcast from {root}")
        bufs = [tensor_of(comm, contribution(comm.rank, 11 * i, i), dtype) for i, dtype in enumerate(DTYPES)]
        comm.broadcast(bufs, root)
        for i, buf in enumerate(bufs):
            expect_equal(buf, contribution(root, 11 * i, i), f"grouped broadcast from {root}, {buf.dtype}")


def check_allgather(comm: Communicator) -> None:
    """Every dtype, with equal and uneven counts, given or left out, in plain and mapped memory."""
    for dtype in DTYPES:
        for numel in (0, 1, 333):
            _allgather_once(comm, [numel] * comm.size, dtype, given=False)
            _allgather_once(comm, [numel] * comm.size, dtype, given=True)
        _allgather_once(comm, uneven_counts(comm.size), dtype, given=True)
        _allgather_once(comm, uneven_counts(comm.size)[::-1], dtype, given=True)
    for counts in (uneven_counts(comm.size, 40_000), [70_000] * comm.size, _one_holds_all(comm.size, 100_000)):
        for mapped in (False, True):
            _allgather_once(comm, counts, torch.float32, given=True, mapped=mapped)


def check_reduce_scatter(comm: Communicator) -> None:
    """Every dtype and operation, with equal and uneven counts, given or left out, in plain and mapped memory."""
    for dtype in DTYPES:
        for op in Op:
            for numel in (0, 1, 333):
                _reduce_scatter_once(comm, [numel] * comm.size, dtype, op, given=False)
            _reduce_scatter_once(comm, uneven_counts(comm.size), dtype, op, given=True)
            _reduce_scatter_once(comm, uneven_counts(comm.size)[::-1], dtype, op, given=True)
    for counts in (uneven_counts(comm.size, 40_000), [70_000] * comm.size, _one_holds_all(comm.size, 100_000)):
        for mapped in (False, True):
            _reduce_scatter_once(comm, counts, torch.float32, SUM, given=True, mapped=mapped)


def check_alltoall(comm: Communicator) -> None:
    """Every dtype, with equal and uneven counts, and tables where one rank sends or receives all."""
    size = comm.size
    for dtype in DTYPES:
        for numel in (0, 1, 100):
            _alltoall_once(comm, [[numel] * size for _ in range(size)], dtype, given=False)
        _alltoall_once(comm, [[(r * 3 + c * 2) % 5 for c in range(size)] for r in range(size)], dtype)
    _alltoall_once(comm, [[7 if c == 0 else 0 for c in range(size)] for r in range(size)], torch.float32)
    _alltoall_once(comm, [[7 if r == size - 1 else 0 for c in range(size)] for r in range(size)], torch.int64)
    for mapped in (False, True):
        table = [[30_000 + 1000 * r + c for c in range(size)] for r in range(size)]
        _alltoall_once(comm, table, torch.float32, mapped=mapped)


def check_calls_keep_their_order(comm: Communicator) -> None:
    """A long sequence of different calls, drawn alike on all ranks."""
    draw = random.Random(20_24)
    for turn in range(150):
        kind = draw.choice(("allreduce", "broadcast", "allgather", "reduce_scatter", "alltoall", "barrier", "object"))
        numel = draw.choice((0, 1, 2, 50, 1025, 20_000))
        dtype, op, mapped = draw.choice(DTYPES), draw.choice(tuple(Op)), draw.random() < 0.5
        counts = [draw.choice((0, 1, numel)) for _ in range(comm.size)]
        root = draw.randrange(comm.size)
        what = f"call {turn} of a mixed sequence, {kind}"
        if kind == "allreduce":
            _allreduce_once(comm, numel, dtype, op, what, mapped, salt=turn)
        elif kind == "broadcast":
            buf = tensor_of(comm, contribution(comm.rank, numel, turn), dtype, mapped)
            comm.broadcast(buf, root)
            expect_equal(buf, contribution(root, numel, turn), what)
        elif kind == "allgather":
            _allgather_once(comm, counts, dtype, given=True, mapped=mapped, salt=turn)
        elif kind == "reduce_scatter":
            _reduce_scatter_once(comm, counts, dtype, op, given=True, mapped=mapped, salt=turn)
        elif kind == "alltoall":
            _alltoall_once(comm, [counts[r:] + counts[:r] for r in range(comm.size)], dtype, mapped=mapped, salt=turn)
        elif kind == "barrier":
            comm.barrier()
        else:
            answers = comm.allgather_object((turn, comm.rank))
            expect(answers == [(turn, r) for r in range(comm.size)], f"{what} gave {answers}")


def _numpy_allreduce(comm: Communicator, numel: int, op: Op, salt: int = 0) -> np.ndarray:
    """Returns what an all-reduce of all ranks' `contribution` must give, computed with numpy."""
    return numpy_reduce(op, (contribution(r, numel, salt) for r in range(comm.size)))


def _allreduce_once(
    comm: Communicator, numel: int, dtype: torch.dtype, op: Op, what: str, mapped: bool = False, salt: int = 0
) -> None:
    """Makes one all-reduce and compares the result with numpy; `what` names it in the error."""
    shift = 0 if dtype == torch.uint8 else 9  # negative numbers too, where the type has them
    buf = tensor_of(comm, contribution(comm.rank, numel, salt) - shift, dtype, mapped)
    comm.allreduce(buf, op)
    expect_equal(buf, numpy_reduce(op, (contribution(r, numel, salt) - shift for r in range(comm.size))), what)


def _allgather_once(
    comm: Communicator, counts: list[int], dtype: torch.dtype, given: bool, mapped: bool = False, salt: int = 0
) -> None:
    """Makes one allgather with these counts (passed on if `given`) and checks output and input."""
    out = tensor_of(comm, np.full(sum(counts), 99), dtype, mapped)
    buf = tensor_of(comm, contribution(comm.rank, counts[comm.rank], salt), dtype, mapped)
    comm.allgather(out, buf, counts if given else None)
    wanted = np.concatenate([contribution(r, count, salt) for r, count in enumerate(counts)])
    expect_equal(out, wanted, f"allgather of {dtype} with counts {counts}")
    expect_equal(buf, contribution(comm.rank, counts[comm.rank], salt), "what was gathered from")


def _reduce_scatter_once(
    comm: Communicator, counts: list[int], dtype: torch.dtype, op: Op, given: bool, mapped: bool = False, salt: int = 0
) -> None:
    """Makes one reduce_scatter with these counts (passed on if `given`) and checks output and input."""
    buf = tensor_of(comm, contribution(comm.rank, sum(counts), salt), dtype, mapped)
    out = tensor_of(comm, np.full(counts[comm.rank], 99), dtype, mapped)
    comm.reduce_scatter(out, buf, counts if given else None, op)
    wanted = _numpy_allreduce(comm, sum(counts), op, salt)[parts_of(counts)[comm.rank]]
    expect_equal(out, wanted, f"reduce_scatter {op.value} of {dtype} with counts {counts}")
    expect_equal(buf, contribution(comm.rank, sum(counts), salt), "the input of a reduce_scatter afterwards")


def _alltoall_once(
    comm: Communicator,
    table: list[list[int]],
    dtype: torch.dtype,
    given: bool = True,
    mapped: bool = False,
    salt: int = 0,
) -> None:
    """Makes one alltoall in which `table[r][c]` elements go from r to c, and checks the output."""
    sent, received = table[comm.rank], [row[comm.rank] for row in table]
    buf = tensor_of(comm, contribution(comm.rank, sum(sent), salt), dtype, mapped)
    out = tensor_of(comm, np.full(sum(received), 99), dtype, mapped)
    comm.alltoall(out, buf, *((received, sent) if given else ()))
    wanted = [contribution(r, sum(row), salt)[parts_of(row)[comm.rank]] for r, row in enumerate(table)]
    expect_equal(out, np.concatenate(wanted), f"alltoall of {dtype} with counts {table}")


def _one_holds_all(size: int, numel: int) -> list[int]:
    """Returns counts of which one rank in the middle has `numel` and all others have none."""
    return [numel if r == size // 2 else 0 for r in range(size)]


def _random_floats(rank: int, numel: int) -> np.ndarray:
    """Returns normal random numbers that depend on the rank."""
    return np.random.default_rng(rank).standard_normal(numel)


def _digest(tensor: Tensor) -> str:
    """Returns the SHA-256 of a tensor's bytes."""
    return hashlib.sha256(tensor.cpu().view(torch.uint8).numpy().tobytes()).hexdigest()
