"""Operations that are started here and synchronised later. Each returns a handle; local, not blocking, unless a line says more.

Ranks may start named operations in any order. Those without a name are numbered, so all ranks start them in one order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from unisono.horovod._impl.engine.operation_entry import Entry
from unisono.horovod._impl.engine.operation_request import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BARRIER,
    BROADCAST,
    JOIN,
    REDUCESCATTER,
    Request,
)
from unisono.horovod._impl.engine.reduction_arithmetic import divide
from unisono.horovod._impl.exceptions import HorovodInternalError
from unisono.horovod._impl.job.process_sets import ProcessSet, global_process_set
from unisono.horovod._impl.job.process_state import GLOBAL_ID, PROCESS
from unisono.horovod._impl.torch.submission import Average, Sum, choose_op, start

__all__ = ["allgather_async", "allreduce_async", "allreduce_async_", "alltoall_async", "barrier", "broadcast_async"]
__all__ += ["broadcast_async_", "grouped_allgather_async", "grouped_allreduce_async", "grouped_allreduce_async_"]
__all__ += ["grouped_reducescatter_async", "join", "poll", "reducescatter_async", "sparse_allreduce_async", "synchronize"]


def poll(handle: int) -> bool:
    """Whether `synchronize` would return at once. Local, not blocking."""
    return PROCESS.handles.poll(handle)


def synchronize(handle: int) -> Any:
    """Waits for an operation and returns its result; raises `HorovodInternalError` if it failed. The handle is used up.
    Blocking."""
    return PROCESS.handles.synchronize(handle)


def synchronize_all(handles: Iterable[int]) -> list[Any]:
    """Waits for several operations and returns their results; if some failed, raises the first error after all of them are over.
    Blocking."""
    results, errors = [], []
    for handle in handles:
        try:
            results.append(synchronize(handle))
        except HorovodInternalError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return results


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts a reduction in a new tensor."""
    op = choose_op(op, average)
    outputs = [_empty_like(tensor)]
    return _start_allreduce([tensor], outputs, name, op, prescale_factor, postscale_factor, process_set)


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts a reduction in place."""
    op = choose_op(op, average)
    held = [tensor]
    return _start_allreduce(held, held, name, op, prescale_factor, postscale_factor, process_set)


def grouped_allreduce_async(
    tensors: Iterable[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts the reductions of a list, all at once, in new tensors."""
    op = choose_op(op, average)
    held = list(tensors)
    outputs = [_empty_like(tensor) for tensor in held]
    return _start_allreduce(held, outputs, name, op, prescale_factor, postscale_factor, process_set, grouped=True)


def grouped_allreduce_async_(
    tensors: Iterable[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts the reductions of a list, all at once, in place."""
    op = choose_op(op, average)
    held = list(tensors)
    return _start_allreduce(held, held, name, op, prescale_factor, postscale_factor, process_set, grouped=True)


def _empty_like(tensor: Tensor) -> Tensor:
    """An empty tensor like this one; what is no tensor is refused later, when the operation has its name."""
    return torch.empty_like(tensor, requires_grad=False) if isinstance(tensor, Tensor) else tensor


def _start_allreduce(
    tensors: Sequence[Tensor],
    outputs: Sequence[Tensor],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    grouped: bool = False,
) -> int:
    """Starts the reduction of these tensors into `outputs` and returns its handle."""
    finish = _all_outputs if grouped else _only_output
    return start(
        ALLREDUCE,
        tensors,
        process_set,
        finish,
        name=name,
        outputs=outputs,
        grouped=grouped,
        op=op,
        prescale=prescale,
        postscale=postscale,
    )


def sparse_allreduce_async(
    tensor: Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], Tensor]:
    """Starts the sum or mean of sparse tensors, whose indices and values are gathered. Returns a function that waits for the
    result."""
    if op not in (Average, Sum):
        raise ValueError(f"a sparse allreduce supports hvd.Average and hvd.Sum only; received op={op!r}")
    held = tensor.detach().coalesce()
    title = None if name is None else f"{name}.indices", None if name is None else f"{name}.values"
    indices = allgather_async(held.indices().t().contiguous(), title[0], process_set)
    values = allgather_async(held.values().contiguous(), title[1], process_set)

    def finish() -> Tensor:
        everywhere, everything = synchronize_all([indices, values])
        if op == Average:
            divide(everything, process_set.size())
        return torch.sparse_coo_tensor(everywhere.t(), everything, held.shape, check_invariants=False)  # they were valid

    return finish


def allgather_async(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Starts gathering the rows of all ranks, one rank after another; their number may differ."""
    return start(ALLGATHER, [tensor], process_set, _only_output, name=name)


def grouped_allgather_async(
    tensors: Iterable[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts gathering the rows of all ranks for a list of tensors, all at once."""
    return start(ALLGATHER, list(tensors), process_set, _all_outputs, name=name, grouped=True)


def broadcast_async(tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Starts a broadcast of the values of `root_rank`, a rank of the whole job, into a new tensor."""
    outputs = [_empty_like(tensor)]
    return _start_broadcast([tensor], outputs, root_rank, name, process_set)


def broadcast_async_(tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Starts a broadcast of the values of `root_rank` in place."""
    held = [tensor]
    return _start_broadcast(held, held, root_rank, name, process_set)


def _start_broadcast(
    tensors: Sequence[Tensor], outputs: Sequence[Tensor], root_rank: int, name: str | None, process_set: ProcessSet
) -> int:
    """Starts a broadcast into `outputs` and returns its handle."""
    return start(BROADCAST, tensors, process_set, _only_output, name=name, outputs=outputs, root=root_rank)


def alltoall_async(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts sending `splits[r]` rows to each rank r; the result is the rows that came and, if `splits` was given, how many came
    from each."""
    if splits is None:
        return start(ALLTOALL, [tensor], process_set, _only_output, name=name)
    return counted_alltoall_async(tensor, splits, name, process_set)


def counted_alltoall_async(tensor: Tensor, splits: Tensor | Sequence[int] | None, name: str | None, process_set: ProcessSet) -> int:
    """Starts an all-to-all whose result always includes how many rows came from each rank."""
    device = splits.device if isinstance(splits, Tensor) else torch.device("cpu")

    def with_counts(entry: Entry) -> tuple[Tensor, Tensor]:
        return entry.outputs[0], torch.tensor(entry.sizes[0], dtype=torch.int32, device=device)

    return start(ALLTOALL, [tensor], process_set, with_counts, name=name, splits=splits)


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts a reduction whose result is this rank's rows; the first ranks get one more where they do not divide."""
    return _start_reducescatter([tensor], name, op, process_set, prescale_factor, postscale_factor, grouped=False)


def grouped_reducescatter_async(
    tensors: Iterable[Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts reductions of a list, all at once, whose results are this rank's rows."""
    return _start_reducescatter(list(tensors), name, op, process_set, prescale_factor, postscale_factor, grouped=True)


def _start_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None,
    op: int,
    process_set: ProcessSet,
    prescale: float,
    postscale: float,
    grouped: bool,
) -> int:
    """Starts reductions whose results are this rank's rows, in new tensors, and returns the handle."""
    finish = _all_outputs if grouped else _only_output
    return start(
        REDUCESCATTER, tensors, process_set, finish, name=name, grouped=grouped, op=op, prescale=prescale, postscale=postscale
    )


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when all ranks of the set have called it. Collective over the set, blocking."""
    synchronize(start(BARRIER, (), process_set, lambda _: None))


def join(device: int = -1) -> int:  # noqa: ARG001 -- where the zeros are made does not matter here
    """Says that this rank has no more data; until all have joined it adds zeros to the sums and means of the others. Returns the
    rank that joined last. Collective over all ranks, blocking."""
    entry = Entry(Request(JOIN, JOIN))
    channel = PROCESS.channel(GLOBAL_ID)
    channel.submit(entry)
    entry.wait()
    assert entry.last_joined is not None
    return channel.ranks[entry.last_joined]


def _only_output(entry: Entry) -> Tensor:
    """Returns the only output of a finished operation."""
    return entry.outputs[0]


def _all_outputs(entry: Entry) -> list[Tensor]:
    """Returns the outputs of a finished operation on several tensors."""
    return entry.outputs
