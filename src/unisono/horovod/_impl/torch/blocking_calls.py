"""Operations that return when they are done. Collective over the process set, blocking; gradients flow through them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from unisono.horovod._impl.compressor import Compressor
from unisono.horovod._impl.job.process_sets import ProcessSet, global_process_set
from unisono.horovod._impl.torch import operation_gradients as gradients
from unisono.horovod._impl.torch.compression import Compression
from unisono.horovod._impl.torch.operations import (
    allreduce_async_,
    broadcast_async_,
    grouped_allreduce_async_,
    synchronize,
)
from unisono.horovod._impl.torch.submission import Average, choose_op

__all__ = ["allgather", "allreduce", "allreduce_", "alltoall", "broadcast", "broadcast_", "grouped_allgather"]
__all__ += ["grouped_allreduce", "grouped_allreduce_", "grouped_reducescatter", "reducescatter"]


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Returns the reduction in a new tensor."""
    small, undo = compression.compress(tensor)
    op = choose_op(op, average)
    result: Tensor = gradients.apply_function(gradients.Allreduce, small, name, op, prescale_factor, postscale_factor, process_set)
    found: Tensor = compression.decompress(result, undo)
    return found


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Reduces a tensor in place; without gradients."""
    op = choose_op(op, average)
    result: Tensor = synchronize(allreduce_async_(tensor, None, name, op, prescale_factor, postscale_factor, process_set))
    return result


def grouped_allreduce(
    tensors: Iterable[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Returns the reductions of a list in new tensors."""
    pairs = [compression.compress(tensor) for tensor in tensors]
    op = choose_op(op, average)
    results = gradients.apply_function(
        gradients.GroupedAllreduce, name, op, prescale_factor, postscale_factor, process_set, *(small for small, _ in pairs)
    )
    return [compression.decompress(result, undo) for result, (_, undo) in zip(results, pairs, strict=True)]


def grouped_allreduce_(
    tensors: Iterable[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Reduces a list in place; without gradients."""
    op = choose_op(op, average)
    handle = grouped_allreduce_async_(tensors, None, name, op, prescale_factor, postscale_factor, process_set)
    results: list[Tensor] = synchronize(handle)
    return results


def allgather(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Tensor:
    """Returns the rows of all ranks, one rank after another; their number may differ."""
    result: Tensor = gradients.apply_function(gradients.Allgather, tensor, name, process_set)
    return result


def grouped_allgather(
    tensors: Iterable[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Tensor]:
    """Returns the rows of all ranks for each tensor of a list."""
    return list(gradients.apply_function(gradients.GroupedAllgather, name, process_set, *tensors))


def broadcast(tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Tensor:
    """Returns the values of `root_rank`, a rank of the whole job, in a new tensor."""
    result: Tensor = gradients.apply_function(gradients.Broadcast, tensor, root_rank, name, process_set)
    return result


def broadcast_(tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Tensor:
    """Copies the values of `root_rank` in place; without gradients."""
    result: Tensor = synchronize(broadcast_async_(tensor, root_rank, name, process_set))
    return result


def alltoall(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor | tuple[Tensor, Tensor]:
    """Sends `splits[r]` rows to each rank r; returns the rows that came and, if `splits` was given, how many came from each."""
    rows, counts = gradients.apply_function(gradients.Alltoall, tensor, splits, name, process_set)
    if splits is None:
        result: Tensor = rows
        return result
    return rows, counts.to(splits.device) if isinstance(splits, Tensor) else counts


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Returns this rank's rows of the reduction; the first ranks get one more where they do not divide."""
    small, undo = compression.compress(tensor)
    (result,) = gradients.apply_function(
        gradients.Reducescatter, name, op, process_set, prescale_factor, postscale_factor, False, small
    )
    found: Tensor = compression.decompress(result, undo)
    return found


def grouped_reducescatter(
    tensors: Iterable[Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """Returns this rank's rows of the reductions of a list."""
    pairs = [compression.compress(tensor) for tensor in tensors]
    results = gradients.apply_function(
        gradients.Reducescatter, name, op, process_set, prescale_factor, postscale_factor, True, *(small for small, _ in pairs)
    )
    return [compression.decompress(result, undo) for result, (_, undo) in zip(results, pairs, strict=True)]
