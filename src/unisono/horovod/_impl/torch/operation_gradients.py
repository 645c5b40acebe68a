"""The gradients of the operations. Each backward pass is collective over the process set, as the operation was.

    allreduce        the same all-reduce, with the same factors
    allgather        mean over the ranks, of which this rank takes its rows
    broadcast        mean over the ranks, to the root; zero elsewhere
    alltoall         the way back
    reducescatter    everybody's rows; times the number of ranks for a sum

The means are what programs written for Horovod expect: every rank computes the same loss from what was gathered. The way back is
made of the same operations, so gradients of gradients flow too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unisono.horovod._impl.job.process_state import PROCESS
from unisono.horovod._impl.torch.operations import (
    allgather_async,
    allreduce_async,
    broadcast_async,
    counted_alltoall_async,
    grouped_allgather_async,
    grouped_allreduce_async,
    grouped_reducescatter_async,
    reducescatter_async,
    synchronize,
)
from unisono.horovod._impl.torch.submission import Average, Sum


def apply_function(kind: Any, *arguments: Any) -> Any:
    """Calls the operation so that gradients flow through it. (`apply` is not typed.) Collective, blocking."""
    return kind.apply(*arguments)


class Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: Any, op: int, prescale: float, postscale: float, process_set: Any) -> Tensor:
        """Returns the reduction of a tensor in a new one. Collective, blocking."""
        ctx.how = _back(name), op, prescale, postscale, process_set
        result: Tensor = synchronize(allreduce_async(tensor, None, name, op, prescale, postscale, process_set))
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        """Returns the same reduction of the gradient. Collective, blocking."""
        back = apply_function(Allreduce, gradient.contiguous(), *ctx.how)
        return back, None, None, None, None, None


class GroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, name: Any, op: int, prescale: float, postscale: float, process_set: Any, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        """Returns the reductions of several tensors, which are one operation. Collective, blocking."""
        ctx.how = _back(name), op, prescale, postscale, process_set
        return tuple(synchronize(grouped_allreduce_async(tensors, None, name, op, prescale, postscale, process_set)))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        """Returns the same reductions of the gradients. Collective, blocking."""
        back = apply_function(GroupedAllreduce, *ctx.how, *(one.contiguous() for one in gradients))
        return None, None, None, None, None, *back


class Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: Any, process_set: Any) -> Tensor:
        """Returns the rows of all ranks, one rank after another. Collective, blocking."""
        ctx.name, ctx.process_set, ctx.num_rows = _back(name), process_set, tensor.shape[0] if tensor.dim() else 0
        result: Tensor = synchronize(allgather_async(tensor, name, process_set))
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        """Returns this rank's rows of the mean of the gradients. Collective, blocking."""
        (back,) = _own_rows([gradient], [ctx.num_rows], ctx.name, ctx.process_set)
        return back, None, None


class GroupedAllgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: Any, process_set: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Returns the rows of all ranks for each of several tensors. Collective, blocking."""
        ctx.name, ctx.process_set = _back(name), process_set
        ctx.num_rows = [tensor.shape[0] if tensor.dim() else 0 for tensor in tensors]
        return tuple(synchronize(grouped_allgather_async(tensors, name, process_set)))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        """Returns this rank's rows of the mean of the gradients, for each tensor. Collective, blocking."""
        return None, None, *_own_rows(gradients, ctx.num_rows, ctx.name, ctx.process_set)


class Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root_rank: int, name: Any, process_set: Any) -> Tensor:
        """Returns the root's values in a new tensor. Collective, blocking."""
        ctx.how = root_rank, _back(name), process_set
        result: Tensor = synchronize(broadcast_async(tensor, root_rank, name, process_set))
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        """Returns the mean of the gradients on the root, and zeros on other ranks. Collective, blocking."""
        root_rank, name, process_set = ctx.how
        mean = apply_function(Allreduce, gradient.contiguous(), name, Average, 1.0, 1.0, process_set)
        is_root = torch.tensor(PROCESS.topology.rank == root_rank, device=mean.device)
        # Not simply zeros: the way back of this one is collective again, so all ranks must be on it.
        return torch.where(is_root, mean, torch.zeros_like(mean)), None, None, None


class Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, splits: Any, name: Any, process_set: Any) -> tuple[Tensor, Tensor]:
        """Returns the rows that came, and how many from each rank. Collective, blocking."""
        ctx.name, ctx.process_set, ctx.num_rows = _back(name), process_set, tensor.shape[0] if tensor.dim() else 0
        rows, counts = synchronize(counted_alltoall_async(tensor, splits, name, process_set))
        ctx.counts = counts.cpu()
        ctx.mark_non_differentiable(counts)
        return rows, counts

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> tuple[Any, ...]:
        """Returns the gradients of the rows that were sent, sent back the same way; zeros for rows that went nowhere. Collective,
        blocking."""
        back, _counts = apply_function(Alltoall, gradient.contiguous(), ctx.counts, ctx.name, ctx.process_set)
        unsent = ctx.num_rows - back.shape[0]
        if unsent:  # rows that went nowhere
            back = torch.cat([back, back.new_zeros(unsent, *back.shape[1:])])
        return back, None, None, None


class Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, name: Any, op: int, process_set: Any, prescale: float, postscale: float, grouped: bool, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        """Returns this rank's rows of the reduction of each tensor. Collective, blocking."""
        ctx.factor = prescale * postscale * (process_set.size() if op == Sum else 1)
        ctx.name, ctx.process_set = _back(name), process_set
        if grouped:
            return tuple(synchronize(grouped_reducescatter_async(tensors, name, op, process_set, prescale, postscale)))
        return (synchronize(reducescatter_async(tensors[0], name, op, process_set, prescale, postscale)),)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        """Returns the gradients of all ranks' rows, gathered and scaled as the sum was. Collective, blocking."""
        scaled = [gradient.mul(ctx.factor).contiguous() for gradient in gradients]
        back = apply_function(GroupedAllgather, ctx.name, ctx.process_set, *scaled)
        return None, None, None, None, None, None, *back


def _own_rows(gradients: Any, num_rows: list[int], name: str | None, process_set: Any) -> list[Tensor]:
    """The rows of this rank in the mean of the gradients."""
    means = apply_function(GroupedAllreduce, name, Average, 1.0, 1.0, process_set, *(one.contiguous() for one in gradients))
    everybodys = synchronize(allgather_async(torch.tensor([num_rows], device="cpu"), name, process_set))
    begins = everybodys[: process_set.rank()].sum(dim=0).tolist()
    return [mean.narrow(0, begin, count) for mean, begin, count in zip(means, begins, num_rows, strict=True)]


def _back(name: str | None) -> str | None:
    """The name of the operation in the backward pass; for one without a name, that is numbered too."""
    return None if name is None else f"{name}.gradient"
