"""horovod.torch where ranks differ: disagreements, duplicates, joins, process sets, gradients."""
# mypy: disable-error-code="no-untyped-call,arg-type,union-attr,index,assignment,no-any-return,misc"
# Gradients may be None to the type checker, and some arguments are wrong on purpose.

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

import unisono.horovod.torch as hvd
from unisono.horovod._impl.job.process_state import GLOBAL_ID, PROCESS

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.ranks.programs.horovod_checks import checks_of, raises, run

warnings.simplefilter("error")


def still_works() -> None:
    assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [hvd.size()] * 3


def refused(call: object, *words: str) -> None:
    """On every rank with the same words, after which all goes on."""
    texts = []
    for _ in range(2):  # the second time from where the first left the cache
        try:
            call()  # type: ignore[operator]
        except hvd.HorovodInternalError as error:
            texts.append(str(error))
    assert len(texts) == 2, "it was not refused"
    assert all(word in text for word in words for text in texts), texts
    assert len(set(hvd.allgather_object(texts[0]))) == 1
    still_works()


def check_disagreements() -> None:
    rank, size = hvd.rank(), hvd.size()
    if size == 1:
        return
    refused(
        lambda: hvd.allreduce(torch.ones(3 + rank), name="shape"), "allreduce.shape", "shape", "rank 0 has [3]", "rank 1 has [4]"
    )
    kinds = (torch.float32, torch.int32)
    refused(lambda: hvd.allreduce(torch.ones(3, dtype=kinds[rank % 2]), name="type"), "type", "float32", "int32")
    refused(lambda: hvd.allreduce(torch.ones(3), name="op", op=hvd.Sum if rank else hvd.Max), "reduction", "max", "sum")
    refused(lambda: hvd.allreduce(torch.ones(3), name="factor", prescale_factor=1.0 + rank), "prescale")
    refused(lambda: hvd.allreduce(torch.ones(3), name="after", postscale_factor=1.0 + rank), "postscale")
    refused(lambda: hvd.broadcast(torch.ones(3), rank, name="root"), "root rank")
    refused(lambda: hvd.broadcast(torch.ones(3 + rank), 0, name="bshape"), "shape")
    refused(lambda: hvd.broadcast(torch.ones(3, dtype=kinds[rank % 2]), 0, name="btype"), "type")
    refused(lambda: hvd.allgather(torch.ones(2, 3 + rank), name="gshape"), "shape after the first dimension")
    refused(lambda: hvd.allgather(torch.ones(2, *[3] * rank), name="gdims"), "number of dimensions")
    refused(lambda: hvd.allgather(torch.ones(2, dtype=kinds[rank % 2]), name="gtype"), "type")
    refused(lambda: hvd.alltoall(torch.ones(size, 3 + rank), name="ashape"), "shape after the first dimension")
    refused(lambda: hvd.alltoall(torch.ones(size, dtype=kinds[rank % 2]), name="atype"), "type")
    refused(lambda: hvd.reducescatter(torch.ones(3 + rank), name="rshape"), "shape")
    refused(lambda: hvd.reducescatter(torch.ones(size, dtype=kinds[rank % 2]), name="rtype"), "type")
    refused(lambda: hvd.reducescatter(torch.ones(3), name="rop", op=hvd.Sum if rank else hvd.Average), "reduction")
    refused(lambda: hvd.grouped_allreduce([torch.ones(3)] * (1 + rank), name="group"), "number of tensors")


def check_a_disagreement_after_an_agreement() -> None:
    if hvd.size() == 1:
        return
    hvd.allreduce(torch.ones(3), name="known")
    refused(lambda: hvd.allreduce(torch.ones(3 + (hvd.rank() == 1)), name="known"), "shape", "rank 1 has [4]")
    assert hvd.allreduce(torch.ones(3), name="known", op=hvd.Sum).tolist() == [hvd.size()] * 3


def check_a_name_in_flight() -> None:
    if hvd.size() == 1:
        return
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(torch.ones(3), name="twice")
        with raises(ValueError, "allreduce.twice is already in flight"):
            hvd.allreduce_async(torch.ones(3), name="twice")
        other = hvd.allgather_async(torch.ones(3), name="twice")  # another operation, another name
        hvd.barrier()
    else:
        hvd.barrier()
        handle = hvd.allreduce_async(torch.ones(3), name="twice")
        other = hvd.allgather_async(torch.ones(3), name="twice")
    assert hvd.synchronize(handle).tolist() == [1.0] * 3
    assert hvd.synchronize(other).tolist() == [1.0] * 3 * hvd.size()


def check_a_name_that_only_others_have_waits() -> None:
    """Rank 0 submits b first and waits for it; the others submit a first."""
    if hvd.rank() == 0:
        b = hvd.allreduce(torch.ones(1), name="order.b", op=hvd.Sum)
        a = hvd.allreduce(torch.ones(1), name="order.a", op=hvd.Sum)
    else:
        handle = hvd.allreduce_async(torch.ones(1), name="order.a", op=hvd.Sum)
        b = hvd.allreduce(torch.ones(1), name="order.b", op=hvd.Sum)
        a = hvd.synchronize(handle)
    assert a.item() == b.item() == hvd.size()


def check_ranks_that_wait_for_different_names() -> None:
    """All have something in flight and nothing in common for a while: nobody may miss the moment when they have."""
    mine = hvd.allreduce_async(torch.ones(1), name=f"lonely.{hvd.rank()}", op=hvd.Sum)
    time.sleep(0.05 * hvd.rank())
    others = {
        rank: hvd.allreduce_async(torch.ones(1), name=f"lonely.{rank}", op=hvd.Sum)
        for rank in reversed(range(hvd.size()))
        if rank != hvd.rank()
    }
    for handle in (mine, *others.values()):
        assert hvd.synchronize(handle).item() == hvd.size()


def check_random_orders() -> None:
    """Every rank starts the same operations in an order and at a pace of its own."""
    size, rank = hvd.size(), hvd.rank()
    same, own = random.Random(7), random.Random(rank)
    for _ in range(6):
        names = [f"random.{number}" for number in range(40)]
        kinds = {name: same.choice(["allreduce", "allgather", "broadcast", "alltoall", "group"]) for name in names}
        numels = {name: same.choice([1, 5, 3000]) for name in names}
        handles: dict[str, int] = {}
        for name in own.sample(names, len(names)):
            tensor = torch.full((numels[name] * size,), float(rank))
            if kinds[name] == "allreduce":
                handles[name] = hvd.allreduce_async(tensor, name=name, op=hvd.Sum)
            elif kinds[name] == "allgather":
                handles[name] = hvd.allgather_async(tensor, name=name)
            elif kinds[name] == "broadcast":
                handles[name] = hvd.broadcast_async(tensor, size - 1, name=name)
            elif kinds[name] == "alltoall":
                handles[name] = hvd.alltoall_async(tensor, name=name)
            else:
                handles[name] = hvd.grouped_allreduce_async([tensor, tensor.int()], name=name, op=hvd.Sum)
            if own.random() < 0.1:
                time.sleep(own.random() * 0.01)
        for name in own.sample(names, len(names)):
            found, total = hvd.synchronize(handles[name]), float(sum(range(size)))
            if kinds[name] == "allreduce":
                assert bool((found == total).all())
            elif kinds[name] == "group":
                assert bool((found[0] == total).all() and (found[1] == int(total)).all())
            elif kinds[name] == "broadcast":
                assert bool((found == size - 1).all())
            else:
                each = numels[name] * (size if kinds[name] == "allgather" else 1)
                assert torch.equal(found, torch.arange(size).repeat_interleave(each).float())


def check_ranks_that_are_refused_count_as_the_others() -> None:
    """Every rank makes another mistake, found at another place; afterwards operations without a name still meet."""
    size, first = hvd.size(), hvd.rank() == 0
    crossed, splits = torch.ones(3, 4).t(), torch.tensor([-1] * size, dtype=torch.int32)
    with raises(ValueError):
        hvd.broadcast(torch.ones(1) if first else crossed, size if first else 0)
    with raises(ValueError):
        hvd.allreduce(3.0 if first else crossed)
    with raises(ValueError):
        hvd.allgather(torch.tensor(1.0) if first else crossed)
    with raises(ValueError):
        hvd.alltoall(torch.ones(size) if first else crossed, splits if first else None)
    with raises((ValueError, hvd.HorovodInternalError)):
        hvd.reducescatter(torch.ones(size) if first else crossed, op=hvd.Max if first else hvd.Sum)
    assert hvd.broadcast(torch.ones(1), 0).item() == 1.0
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == size
    assert hvd.allgather(torch.ones(1)).shape == (size,)
    assert hvd.alltoall(torch.ones(size)).shape == (size,)
    assert hvd.reducescatter(torch.ones(size), op=hvd.Sum).tolist() == [size]


class Unpicklable:
    def __reduce__(self) -> str:
        raise RuntimeError("this one cannot")


def check_objects_that_cannot_be_sent() -> None:
    """The rank that has them raises its own error, and nobody waits."""
    root = hvd.size() - 1
    at_root = hvd.rank() == root
    given = Unpicklable() if at_root else 7
    for call in (lambda: hvd.broadcast_object(given, root), lambda: hvd.allgather_object(given)):
        if at_root:
            with raises(RuntimeError, "this one cannot"):
                call()
        else:
            with raises(hvd.HorovodInternalError, "could not pickle"):
                call()
    still_works()


def check_no_rank_is_too_late() -> None:
    """Communicators of channels have no time limit, nor has what they are made of, nor what sets are split from."""
    job = PROCESS.job
    pair = hvd.add_process_set([0]) if hvd.size() > 1 else None
    held = [job.world, *(channel._comm for channel in job.channels.values())]
    made_of = [dependent for comm in held[1:] for dependent in comm._dependents]
    assert all(comm.time_limit_s > 1e6 for comm in (*held, *made_of))
    if pair is not None:
        hvd.remove_process_set(pair)


def check_barrier() -> None:
    began = time.monotonic()
    if hvd.rank() == hvd.size() - 1:
        time.sleep(0.3)
    hvd.barrier()
    assert time.monotonic() - began > 0.29


def check_join() -> None:
    size, rank = hvd.size(), hvd.rank()
    for step in range(2 * (rank + 1)):
        left = sum(2 * (other + 1) > step for other in range(size))
        found = hvd.allreduce(torch.ones(3), name=f"joined.{step % 2}", op=hvd.Sum)
        assert found.tolist() == [left] * 3, (step, found)
    assert hvd.join() == size - 1
    still_works()
    if size > 1:
        if rank == 0:
            last = hvd.join()
        else:
            rows, name = torch.ones(size), "refused"
            for call in (
                lambda: hvd.allgather(rows, name=name),
                lambda: hvd.broadcast(rows, 1, name=name),
                lambda: hvd.alltoall(rows, name=name),
                lambda: hvd.reducescatter(rows, name=name),
                lambda: hvd.allreduce(rows, name=f"{name}.max", op=hvd.Max),
                lambda: hvd.allreduce(rows, name=f"{name}.min", op=hvd.Min),
                lambda: hvd.allreduce(rows, name=f"{name}.product", op=hvd.Product),
            ):
                with raises(hvd.HorovodInternalError, "called join()"):
                    call()
            hvd.allreduce(torch.ones(2))  # without a name, so that the numbers of the ranks differ until all have joined
            mean = hvd.allreduce(torch.ones(2), name="mean")
            assert torch.allclose(mean, torch.full((2,), (size - 1) / size))
            while hvd.allreduce(torch.ones(1), name="left", op=hvd.Sum).item() > size - rank:
                pass  # until the ranks before this one have joined
            last = hvd.join()
        assert last == size - 1
    still_works()


def check_a_joined_rank_submits_nothing() -> None:
    if hvd.size() == 1:
        return
    folder = Path(hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None))
    seen = folder / "seen"  # who has joined cannot say it in another way
    if hvd.rank() == 0:
        with ThreadPoolExecutor(1) as pool:
            last = pool.submit(hvd.join)
            while not any(entry.request.kind == "join" for entry in PROCESS.channel(GLOBAL_ID).waiting()):
                time.sleep(0.001)
            with raises(ValueError, "called join()"):
                hvd.allreduce(torch.ones(1), name="after joining")
            seen.touch()
            assert last.result() > 0
        shutil.rmtree(folder)
    else:
        while not seen.exists():
            hvd.allreduce(torch.ones(1), name="meanwhile", op=hvd.Sum)
        hvd.join()
    still_works()


def check_process_sets() -> None:
    size, rank = hvd.size(), hvd.rank()
    with raises(ValueError, "list of ranks"):
        hvd.ProcessSet(3)
    if size == 1:
        with raises(ValueError, "already"):
            hvd.add_process_set([0])
        return
    even = hvd.add_process_set(range(0, size, 2))
    odd = hvd.add_process_set(hvd.ProcessSet(range(1, size, 2)))
    assert (even.process_set_id, odd.process_set_id) == (1, 2)
    ours, theirs = (odd, even) if rank % 2 else (even, odd)
    assert ours.included()
    assert not theirs.included()
    assert ours.ranks == list(range(rank % 2, size, 2))
    assert ours.rank() == rank // 2
    assert (hvd.global_process_set.size(), hvd.global_process_set.rank()) == (size, rank)
    with raises(ValueError, f"rank {rank} is not in"):
        theirs.rank()
    with raises(ValueError, f"rank {rank} is not in process set"):
        hvd.allreduce(torch.ones(2), process_set=theirs)
    with raises(ValueError, "root_rank"):
        hvd.broadcast(torch.ones(1), 1 - rank % 2, process_set=ours)
    members = len(ours.ranks)
    for _ in range(3):
        assert hvd.allreduce(torch.ones(2), name="same name", op=hvd.Sum, process_set=ours).tolist() == [members] * 2
    assert hvd.allgather(torch.tensor([rank]), process_set=ours).tolist() == ours.ranks
    assert hvd.broadcast(torch.tensor([rank]), ours.ranks[-1], process_set=ours).item() == ours.ranks[-1]
    assert hvd.allgather_object(rank, process_set=ours) == ours.ranks
    found, _ = hvd.alltoall(torch.full((members,), rank), torch.ones(members, dtype=torch.int32), process_set=ours)
    assert found.tolist() == ours.ranks
    if not rank % 2:  # the others are not waited for
        hvd.barrier(process_set=even)
        handle = hvd.allreduce_async(torch.ones(1), process_set=even)
        hvd.synchronize(handle)
    with raises(ValueError, "already"):
        hvd.add_process_set(range(0, size, 2))
    with raises(ValueError, f"0..{size - 1}"):
        hvd.add_process_set([size])
    with raises(ValueError, "differently"):
        hvd.add_process_set([rank])
    assert hvd.remove_process_set(even)
    assert not hvd.remove_process_set(even)
    assert not hvd.remove_process_set(hvd.global_process_set)
    with raises(ValueError, "not registered"):
        even.included()
    again = hvd.add_process_set([0])
    assert again.process_set_id == 1  # free numbers are used again
    if again.included():
        assert hvd.allreduce(torch.ones(1), process_set=again).item() == 1.0
    assert hvd.remove_process_set(odd)
    assert hvd.remove_process_set(again)
    still_works()


def check_gradients() -> None:
    size, rank = hvd.size(), hvd.rank()

    def leaf(*shape: int) -> torch.Tensor:
        return torch.full(shape, float(rank + 1), requires_grad=True)

    mean_of_ranks = sum(range(1, size + 1)) / size
    for op, factor in ((hvd.Sum, float(size)), (hvd.Average, 1.0)):
        x = leaf(3)
        hvd.allreduce(x, op=op, prescale_factor=2.0).sum().backward()
        assert torch.allclose(x.grad, torch.full((3,), 2.0 * factor))
        y = [leaf(2), leaf(3)]
        sum(one.sum() for one in hvd.grouped_allreduce(y, op=op)).backward()
        assert torch.allclose(y[1].grad, torch.full((3,), factor))
    x = leaf(rank + 1, 2)
    out = hvd.allgather(x)
    out.backward(torch.full_like(out, float(rank + 1)))
    assert torch.allclose(x.grad, torch.full((rank + 1, 2), mean_of_ranks))
    y = [leaf(rank + 1), leaf(2)]
    sum(one.sum() for one in hvd.grouped_allgather(y)).backward()
    assert torch.allclose(y[0].grad, torch.ones(rank + 1))
    for root in range(size):
        x = leaf(4)
        hvd.broadcast(x, root).sum().backward()
        assert torch.equal(x.grad, torch.full((4,), 1.0 if rank == root else 0.0))
    x = leaf(size * 2)
    out = hvd.alltoall(x)
    out.backward(torch.full_like(out, float(rank)))
    assert torch.equal(x.grad, torch.arange(size).repeat_interleave(2).float())
    x = leaf(size + 1)
    splits = torch.ones(size, dtype=torch.int32)
    out, _ = hvd.alltoall(x, splits)
    out.sum().backward()
    assert torch.equal(x.grad, torch.tensor([1.0] * size + [0.0]))
    for op, factor in ((hvd.Sum, float(size)), (hvd.Average, 1.0)):
        x = leaf(size + 1, 2)
        hvd.reducescatter(x, op=op).sum().backward()
        assert torch.allclose(x.grad, torch.full((size + 1, 2), factor))
        y = [leaf(size), leaf(size)]
        sum(one.sum() for one in hvd.grouped_reducescatter(y, op=op)).backward()
        assert torch.allclose(y[0].grad, torch.full((size,), factor))


if __name__ == "__main__":
    run(checks_of(globals()))
