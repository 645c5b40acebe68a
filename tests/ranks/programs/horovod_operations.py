"""horovod.torch: the operations, on every type, with their errors."""
# mypy: disable-error-code="no-untyped-call,arg-type,union-attr,index,assignment,no-any-return,misc,valid-type"
# Gradients may be None to the type checker, and some arguments are wrong on purpose.

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path

import torch

import unisono.horovod.torch as hvd

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.ranks.programs.horovod_checks import checks_of, raises, run

warnings.simplefilter("error")

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
NUMBERS = (*FLOATS, *WHOLE)


def mine(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Small numbers, different on each rank, whose sums and products fit every type."""
    return of(hvd.rank(), dtype, *shape)


def of(rank: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    count = int(torch.tensor(shape).prod()) if shape else 1
    return ((torch.arange(count) + rank) % 3 + 1).to(dtype).reshape(shape)


def everybodys(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.stack([of(rank, dtype, *shape) for rank in range(hvd.size())])


def check_rank_queries() -> None:
    assert 0 <= hvd.rank() < hvd.size()
    assert hvd.local_rank() == hvd.rank()
    assert hvd.local_size() == hvd.size()
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    assert hvd.is_homogeneous()
    assert hvd.is_initialized()
    assert hvd.mpi_enabled() != hvd.gloo_enabled()
    assert hvd.nccl_built() == 0
    assert not hvd.ddl_built()
    assert not hvd.ccl_built()
    assert not hvd.rocm_built()
    assert hvd.cuda_built() == torch.backends.cuda.is_built()
    assert hvd.mpi_built() in (True, False)
    assert hvd.gloo_built()
    # Programs keep them in files, and other packages compare them with these numbers.
    assert (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product) == (0, 1, 2, 3, 4, 5)
    hvd.init()  # again: nothing happens
    assert isinstance(hvd.mpi_threads_supported(), bool)


def check_allreduce_of_every_type() -> None:
    """All in flight at once: types, reductions and shapes that must not be mixed up."""
    ops = (hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product)
    cases = [(dtype, shape, op) for dtype in NUMBERS for shape in ((), (17,), (0,), (2, 3, 4)) for op in ops]
    handles = [hvd.allreduce_async(mine(dtype, *shape), op=op) for dtype, shape, op in cases]
    for (dtype, shape, op), handle in zip(cases, handles, strict=True):
        found = hvd.synchronize(handle)
        assert found.dtype == dtype
        assert found.shape == shape
        wide = everybodys(dtype, *shape).to(torch.float64)
        if op == hvd.Average and dtype in FLOATS:
            assert torch.allclose(found.to(torch.float64), wide.mean(0), rtol=1e-2 if dtype.itemsize == 2 else 1e-6)
        else:
            found_by = {hvd.Sum: wide.sum(0), hvd.Min: wide.amin(0), hvd.Max: wide.amax(0), hvd.Product: wide.prod(0)}
            expected = found_by.get(op, wide.mean(0).trunc())
            assert torch.equal(found.to(torch.float64), expected), (dtype, shape, op, found, expected)
    for op in ops:
        assert hvd.allreduce(torch.tensor([2.0]), op=op).item() == {hvd.Sum: 2 * hvd.size(), hvd.Product: 2 ** hvd.size()}.get(
            op, 2
        )


def check_large_product_in_pieces() -> None:
    vector = torch.full((3_000_000,), float(hvd.rank() + 1))
    expected = float(torch.arange(1, hvd.size() + 1).prod())
    assert bool((hvd.allreduce(vector, op=hvd.Product) == expected).all())


def check_in_place() -> None:
    tensor = mine(torch.float32, 4, 3)
    found = hvd.allreduce_(tensor, op=hvd.Sum)
    assert found is tensor
    assert torch.equal(tensor, everybodys(torch.float32, 4, 3).sum(0))
    several = [mine(torch.float32, 2), mine(torch.int32, 3)]
    found_all = hvd.grouped_allreduce_(several, op=hvd.Sum)
    assert all(one is other for one, other in zip(found_all, several, strict=True))
    assert torch.equal(several[1], everybodys(torch.int32, 3).sum(0).to(torch.int32))
    alone, group = mine(torch.float64, 5), [mine(torch.int64, 2), mine(torch.bfloat16, 0), mine(torch.float32, 3)]
    handles = [hvd.allreduce_async_(alone, op=hvd.Max), hvd.grouped_allreduce_async_(group, name="in place", op=hvd.Sum)]
    assert hvd.synchronize(handles[0]) is alone
    assert torch.equal(alone, everybodys(torch.float64, 5).amax(0))
    assert all(one is other for one, other in zip(hvd.synchronize(handles[1]), group, strict=True))
    assert torch.equal(group[0], everybodys(torch.int64, 2).sum(0))
    assert torch.equal(group[2], everybodys(torch.float32, 3).sum(0))


def check_average_as_it_was_said_once() -> None:
    for average, factor in ((True, 1), (False, hvd.size())):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            assert hvd.allreduce(torch.ones(2), average=average).tolist() == [factor] * 2
        assert any(one.category is DeprecationWarning and "average" in str(one.message) for one in seen)
    with raises(ValueError, "average"):
        hvd.allreduce(torch.ones(2), average=True, op=hvd.Sum)


def check_factors() -> None:
    whole = torch.tensor([3, -3, 2**40 + 1], dtype=torch.int64)
    found = hvd.allreduce(whole, op=hvd.Sum, prescale_factor=0.5)
    assert found.tolist() == [hvd.size(), -hvd.size(), hvd.size() * 2**39]
    found = hvd.allreduce(whole, op=hvd.Sum, postscale_factor=0.5)
    assert found.tolist() == [int(value * hvd.size() / 2) for value in whole.tolist()]
    half = torch.tensor([1.0009765625, 3.0], dtype=torch.float16)
    found = hvd.allreduce(half, op=hvd.Sum, prescale_factor=0.3)
    once = (half.float() * 0.3).to(torch.float16)
    expected = (once.float() * hvd.size()).to(torch.float16)
    assert torch.equal(found, expected)
    found = hvd.allreduce(torch.ones(3), op=hvd.Average, prescale_factor=2.0, postscale_factor=3.0)
    assert torch.allclose(found, torch.full((3,), 6.0))
    # The first factor is applied before the sum and the second after it, which whole numbers show.
    found = hvd.allreduce(torch.tensor([3]), op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    assert found.tolist() == [4 * hvd.size()]
    found = hvd.allreduce(torch.tensor([3]), op=hvd.Sum, prescale_factor=4.0, postscale_factor=0.5)
    assert found.tolist() == [6 * hvd.size()]


def check_means_that_fit_where_sums_do_not() -> None:
    size = hvd.size()
    for dtype, value in ((torch.int8, -120), (torch.uint8, 250), (torch.int16, 32000), (torch.int32, 2**31 - 9)):
        given = torch.full((2 * size,), value, dtype=dtype)
        assert hvd.allreduce(given).tolist() == [value] * 2 * size
        assert hvd.reducescatter(given).tolist() == [value] * 2
        both = hvd.grouped_allreduce([given, given[:1].clone()])
        assert [one.dtype for one in both] == [dtype, dtype]
        assert both[1].tolist() == [value]
        assert hvd.grouped_reducescatter([given, given])[1].tolist() == [value] * 2
        assert hvd.allreduce_(given) is given
    half = torch.full((size,), 40000.0, dtype=torch.float16)
    for found in (
        hvd.allreduce(half, prescale_factor=1.0 / size, postscale_factor=size),
        hvd.reducescatter(half, prescale_factor=1.0 / size, postscale_factor=size),
    ):
        assert torch.allclose(found.float(), torch.full(found.shape, 40000.0), rtol=1e-2)


def check_many_in_flight_in_different_orders() -> None:
    for _ in range(5):
        order = list(range(100)) if hvd.rank() % 2 else list(reversed(range(100)))
        handles = {
            number: hvd.allreduce_async(torch.full((number + 1,), float(number + hvd.rank())), name=f"t{number}", op=hvd.Sum)
            for number in order
        }
        for number in reversed(order):
            total = hvd.size() * number + sum(range(hvd.size()))
            assert torch.equal(hvd.synchronize(handles[number]), torch.full((number + 1,), float(total)))


def check_many_of_each_kind_in_flight() -> None:
    """They travel together, in different orders on the ranks, and twice, so that the second time they are known."""
    size, rank = hvd.size(), hvd.rank()
    kinds = (torch.float32, torch.uint8, torch.float64)
    for _ in range(2):
        order = list(range(30))[:: 1 if rank % 2 else -1]
        handles: dict[int, list[int]] = {}
        for number in order:
            dtype, name = kinds[number % 3], f"many.{number}"
            rows = torch.full((rank + number % 3, 2), rank).to(dtype)
            handles[number] = [
                hvd.allgather_async(rows, name=name),
                hvd.broadcast_async(torch.full((number,), rank).to(dtype), number % size, name=name),
                hvd.reducescatter_async(torch.full((number + 1, 3), rank + 1).to(dtype), name=name, op=hvd.Sum),
                hvd.alltoall_async(torch.full((size, 2), rank).to(dtype), name=name),
            ]
        for number in order:
            dtype = kinds[number % 3]
            gathered, copied, scattered, exchanged = (hvd.synchronize(handle) for handle in handles[number])
            counts = torch.tensor([other + number % 3 for other in range(size)])
            expected = torch.arange(size).repeat_interleave(counts).to(dtype)
            assert torch.equal(gathered, expected.unsqueeze(1).expand(-1, 2))
            assert torch.equal(copied, torch.full((number,), number % size).to(dtype))
            mine = (number + 1) // size + (rank < (number + 1) % size)
            assert torch.equal(scattered, torch.full((mine, 3), sum(range(1, size + 1))).to(dtype))
            assert torch.equal(exchanged, torch.arange(size).to(dtype).unsqueeze(1).expand(-1, 2))


def check_poll_is_false_at_first() -> None:
    if hvd.size() == 1:
        return
    if hvd.rank():
        time.sleep(0.5)
    handle = hvd.allreduce_async(torch.ones(3), name="polled")
    if not hvd.rank():
        assert not hvd.poll(handle)
    while not hvd.poll(handle):
        time.sleep(0.001)
    hvd.synchronize(handle)
    assert hvd.synchronize(handle) is None
    with raises(ValueError, "not in flight"):
        hvd.poll(handle)


def check_groups() -> None:
    tensors = [mine(torch.float32, 4), mine(torch.int64, 2, 3), mine(torch.float32, 1)]
    for _ in range(2):
        found = hvd.grouped_allreduce(tensors, name="group", op=hvd.Sum)
        for tensor, one in zip(tensors, found, strict=True):
            assert torch.equal(one, everybodys(tensor.dtype, *tensor.shape).sum(0).to(tensor.dtype))
    hvd.grouped_allreduce_((tensor for tensor in tensors), op=hvd.Sum)  # as model.parameters() are given
    handles = [begin(iter(found)) for begin in (hvd.grouped_allreduce_async, hvd.grouped_allgather_async)]
    assert all(torch.equal(tensor, one) for tensor, one in zip(tensors, found, strict=True))
    assert all(torch.equal(tensor, one) for tensor, one in zip(hvd.synchronize(handles[0]), found, strict=True))
    assert [len(rows) for rows in hvd.synchronize(handles[1])] == [len(one) * hvd.size() for one in found]
    gathered = hvd.grouped_allgather([mine(torch.float32, 2, 3), mine(torch.uint8, hvd.rank() + 1)])
    assert torch.equal(gathered[0], everybodys(torch.float32, 2, 3).flatten(0, 1))
    assert gathered[1].shape[0] == sum(range(1, hvd.size() + 1))
    given = [torch.full((2 * hvd.size(), 2), float(hvd.rank())), torch.ones(hvd.size() + 1, dtype=torch.int64)]
    handle = hvd.grouped_reducescatter_async(given, name="scattered", op=hvd.Sum)
    rows, counts = hvd.synchronize(handle)
    assert rows.tolist() == [[float(sum(range(hvd.size())))] * 2] * 2
    assert counts.tolist() == [hvd.size()] * (1 + (hvd.rank() == 0))
    factors = {"op": hvd.Sum, "prescale_factor": 2.0, "postscale_factor": 3.0}
    scaled = hvd.grouped_allreduce([torch.ones(2), torch.ones(1, dtype=torch.float64)], **factors)
    assert [one.tolist() for one in scaled] == [[6.0 * hvd.size()] * 2, [6.0 * hvd.size()]]


def check_truth_values() -> None:
    mine_alone = torch.arange(hvd.size() + 1) == hvd.rank()
    every = [torch.arange(hvd.size() + 1) == rank for rank in range(hvd.size())]
    for op, expected in ((hvd.Max, sum(every)), (hvd.Min, torch.stack(every).all(0)), (hvd.Product, torch.stack(every).all(0))):
        found = hvd.allreduce(mine_alone, op=op)
        assert found.dtype == torch.bool
        assert torch.equal(found, expected.bool())


def check_allgather() -> None:
    for dtype in (*NUMBERS, torch.bool):
        for uneven in (False, True):
            rows = [(rank + 1 if uneven else 2) for rank in range(hvd.size())]
            found = hvd.allgather(mine(dtype, rows[hvd.rank()], 3))
            assert found.dtype == dtype
            assert torch.equal(found, torch.cat([of(rank, dtype, rows[rank], 3) for rank in range(hvd.size())]))
    nothing_here = torch.ones(0 if hvd.rank() == 0 else 2, 3)
    assert hvd.allgather(nothing_here).shape == (2 * (hvd.size() - 1), 3)
    assert hvd.allgather(torch.ones(0, 3)).shape == (0, 3)
    with raises(ValueError, "scalar"):
        hvd.allgather(torch.tensor(1.0))


def check_rows_that_change_under_one_name() -> None:
    for rows in (1, 1, 4, 4, 2):
        found = hvd.allgather(torch.full((rows + hvd.rank(), 2), float(hvd.rank())), name="changing")
        assert found.shape[0] == sum(rows + rank for rank in range(hvd.size()))
        assert hvd.allreduce(torch.ones(rows), name="changing", op=hvd.Sum).tolist() == [hvd.size()] * rows


def check_broadcast() -> None:
    cases = [(dtype, root) for dtype in (*NUMBERS, torch.bool) for root in range(hvd.size())]
    given = [mine(dtype, 3, 4) for dtype, _ in cases]
    copies = [hvd.broadcast_async(tensor, root) for tensor, (_, root) in zip(given, cases, strict=True)]
    for tensor, (dtype, root), handle in zip(given, cases, copies, strict=True):
        assert torch.equal(hvd.synchronize(handle), of(root, dtype, 3, 4))
        assert torch.equal(tensor, mine(dtype, 3, 4))
    in_place = [hvd.broadcast_async_(tensor, root) for tensor, (_, root) in zip(given, cases, strict=True)]
    for tensor, (dtype, root), handle in zip(given, cases, in_place, strict=True):
        assert hvd.synchronize(handle) is tensor
        assert torch.equal(tensor, of(root, dtype, 3, 4))
    for root in range(hvd.size()):
        tensor = mine(torch.float32, 2)
        assert torch.equal(hvd.broadcast(tensor, root), of(root, torch.float32, 2))
        assert hvd.broadcast_(tensor, root) is tensor
        assert torch.equal(tensor, of(root, torch.float32, 2))
    with raises(ValueError, "root_rank"):
        hvd.broadcast(torch.ones(1), hvd.size())


def check_alltoall() -> None:
    size, rank = hvd.size(), hvd.rank()
    for dtype in (*NUMBERS, torch.bool):
        even = torch.full((2 * size, 3), rank).to(dtype)
        found = hvd.alltoall(even)
        assert torch.equal(found, torch.arange(size).repeat_interleave(2).to(dtype).unsqueeze(1).expand(-1, 3))
    splits = torch.tensor([other + 1 for other in range(size)], dtype=torch.int32)
    for dtype in (*NUMBERS, torch.bool):
        rows = torch.full((int(splits.sum()), 2), rank).to(dtype)
        found, received = hvd.alltoall(rows, splits)
        assert received.tolist() == [rank + 1] * size
        assert received.dtype == torch.int32
        assert torch.equal(found, torch.arange(size).repeat_interleave(rank + 1).to(dtype).unsqueeze(1).expand(-1, 2))
    only_to_root = torch.tensor([3] + [0] * (size - 1), dtype=torch.int32)
    found, received = hvd.alltoall(torch.ones(5), only_to_root)  # the last two rows stay at home
    assert found.shape[0] == (3 * size if rank == 0 else 0)
    with raises(ValueError, "splits"):
        hvd.alltoall(torch.ones(3), torch.tensor([4] + [0] * (size - 1), dtype=torch.int32))
    with raises(ValueError, "int32"):
        hvd.alltoall(torch.ones(size), torch.ones(size))
    with raises(ValueError, "splits"):
        hvd.alltoall(torch.ones(size + 1), torch.ones(size + 1, dtype=torch.int32))
    with raises(ValueError, "scalar"):
        hvd.alltoall(torch.tensor(1.0))
    if size > 1:
        with raises(ValueError, "give splits"):
            hvd.alltoall(torch.ones(size + 1))


def check_reducescatter() -> None:
    size, rank = hvd.size(), hvd.rank()
    for dtype in NUMBERS:
        for num_rows in (2 * size, 2 * size + 1, 1):
            rows = [num_rows // size + (other < num_rows % size) for other in range(size)]
            begin = sum(rows[:rank])
            total = everybodys(dtype, num_rows, 3).to(torch.float64).sum(0)[begin : begin + rows[rank]]
            found = hvd.reducescatter(mine(dtype, num_rows, 3), op=hvd.Sum)
            assert found.dtype == dtype
            assert torch.equal(found.to(torch.float64), total)
    mean = hvd.reducescatter(torch.full((size, 2), float(rank)), prescale_factor=2.0, postscale_factor=3.0)
    assert torch.allclose(mean, torch.full((1, 2), 6.0 * sum(range(size)) / size))
    both = hvd.grouped_reducescatter([torch.ones(size), torch.ones(size, 2, dtype=torch.int32)], op=hvd.Sum)
    assert both[0].tolist() == [size]
    assert both[1].tolist() == [[size, size]]
    with raises(hvd.HorovodInternalError, "Average and hvd.Sum"):
        hvd.reducescatter(torch.ones(size), op=hvd.Max)
    small = hvd.reducescatter(torch.full((size, 2), 0.5), op=hvd.Sum, compression=hvd.Compression.fp16)
    assert small.dtype == torch.float32 and small.tolist() == [[size / 2] * 2]
    with raises(ValueError, "scalar"):
        hvd.reducescatter(torch.tensor(1.0))


def check_inference_mode() -> None:
    """What is made in that mode may be changed only there; the engine's thread is not in it."""
    size, rank = hvd.size(), hvd.rank()
    with torch.inference_mode():
        mean = hvd.allreduce(torch.tensor([float(rank), 2.0]))
        assert mean.tolist() == [(size - 1) / 2, 2.0]
        given = torch.full((2,), float(rank))
        assert hvd.allreduce_(given, op=hvd.Sum) is given and given.tolist() == [size * (size - 1) / 2] * 2
        flags = hvd.broadcast(torch.tensor([rank == 0, True]), 0)
        assert flags.tolist() == [True, True]
        assert hvd.allgather(torch.tensor([rank])).tolist() == list(range(size))
    assert hvd.allreduce(torch.ones(1)).item() == 1.0, "communication goes on"


def check_sparse() -> None:
    size, rank = hvd.size(), hvd.rank()
    tensor = torch.sparse_coo_tensor(
        torch.tensor([[0, rank + 1]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), (size + 2, 2), check_invariants=True
    )
    expected = torch.zeros(size + 2, 2)
    expected[0] = torch.tensor([1.0, 2.0]) * size
    expected[1 : size + 1] = torch.tensor([3.0, 4.0])
    finish = hvd.sparse_allreduce_async(tensor, name="sparse", op=hvd.Sum)
    assert torch.equal(finish().to_dense(), expected)
    whole = torch.sparse_coo_tensor(torch.tensor([[rank]]), torch.tensor([8 * size - 1]), (size,), check_invariants=True)
    assert hvd.sparse_allreduce_async(whole, name="whole", op=hvd.Average)().to_dense().tolist() == [7] * size
    finish = hvd.sparse_allreduce_async(tensor, name="sparse", op=hvd.Average)
    assert torch.allclose(finish().to_dense(), expected / size)
    with raises(ValueError, "sparse allreduce", "hvd.Average and hvd.Sum"):
        hvd.sparse_allreduce_async(tensor, name="largest", op=hvd.Max)


def check_objects() -> None:
    root = hvd.size() - 1
    given = {"rank": hvd.rank(), "data": [1, "two"]}
    assert hvd.broadcast_object(given, root) == {"rank": root, "data": [1, "two"]}
    assert hvd.broadcast_object(given if hvd.rank() == root else None, root, name="named")["rank"] == root
    assert hvd.allgather_object("x" * hvd.rank()) == ["x" * rank for rank in range(hvd.size())]


def check_adasum() -> None:
    for numels in ((5,), (3, 1000)):
        gradients = [
            [torch.randn(numel, generator=torch.Generator().manual_seed(rank)) for numel in numels] for rank in range(hvd.size())
        ]
        handles = [
            hvd.allreduce_async(one, name=f"adasum.{number}", op=hvd.Adasum) for number, one in enumerate(gradients[hvd.rank()])
        ]
        for number, handle in enumerate(handles):
            level = [rank[number].double() for rank in gradients]
            while len(level) > 1:
                pairs = []
                for a, b in zip(level[::2], level[1::2], strict=False):
                    pairs.append((1 - a @ b / (2 * (a @ a))) * a + (1 - a @ b / (2 * (b @ b))) * b)
                level = pairs + ([level[-1]] if len(level) % 2 else [])
            assert torch.allclose(hvd.synchronize(handle), level[0].float(), rtol=1e-5, atol=1e-6)
    for dtype in FLOATS:  # of vectors that are alike it is their mean, of those at right angles their sum
        alike, apart = torch.full((4,), 2.0, dtype=dtype), torch.eye(hvd.size(), dtype=dtype)[hvd.rank()]
        found = hvd.grouped_allreduce([alike, apart], op=hvd.Adasum)
        assert [one.dtype for one in found] == [dtype, dtype]
        assert found[0].tolist() == [2.0] * 4 and found[1].tolist() == [1.0] * hvd.size()
    with raises(ValueError, "floating-point"):
        hvd.allreduce(torch.ones(2, dtype=torch.int32), op=hvd.Adasum)


def check_compression() -> None:
    found = hvd.allreduce(torch.full((3,), 0.1), compression=hvd.Compression.fp16)
    assert found.dtype == torch.float32
    assert torch.allclose(found, torch.full((3,), 0.1), rtol=1e-3)
    whole = torch.ones(2, dtype=torch.int32)
    assert hvd.Compression.fp16.compress(whole)[0].dtype == torch.int32
    eighths = hvd.allreduce(torch.tensor([0.3, 1.0]), op=hvd.Sum, compression=Eighths)
    assert eighths.tolist() == [0.25 * hvd.size(), 1.0 * hvd.size()]


class Eighths(hvd.Compression.none):
    """As users write their own."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        return (tensor * 8).to(torch.int64), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: torch.dtype) -> torch.Tensor:
        return tensor.to(ctx) / 8


def check_what_may_not_be_submitted() -> None:
    with raises(ValueError, "not contiguous"):
        hvd.allreduce(torch.ones(3, 4).t())
    with raises(ValueError, "complex64"):
        hvd.allreduce(torch.ones(2, dtype=torch.complex64))
    with raises(ValueError, "bool", "hvd.Max (any)"):
        hvd.allreduce(torch.ones(2, dtype=torch.bool), op=hvd.Sum)
    with raises(ValueError, "boolean tensors cannot be scaled"):
        hvd.allreduce(torch.ones(2, dtype=torch.bool), op=hvd.Max, prescale_factor=2.0)
    with raises(ValueError, "sparse", "to_dense()"):
        hvd.allreduce(torch.ones(2, 2).to_sparse())
    with raises(ValueError, "resolve_neg()"):
        hvd.allgather(torch.complex(torch.ones(1), torch.ones(1)).conj().imag)
    with raises(ValueError, "process_set must be"):
        hvd.allreduce(torch.ones(2), process_set=None)
    with raises(ValueError, "op must be"):
        hvd.allreduce(torch.ones(2), op=9)
    with raises(ValueError, "not registered"):
        hvd.allreduce(torch.ones(2), process_set=hvd.ProcessSet([0]))
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [hvd.size()] * 2


if __name__ == "__main__":
    run(checks_of(globals()))
