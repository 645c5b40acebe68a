"""Batch normalisation with the mean and variance over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from unisono.horovod._impl.job.persistent_ids import PersistentId
from unisono.horovod._impl.job.process_sets import global_process_set
from unisono.horovod._impl.job.process_state import PROCESS
from unisono.horovod._impl.torch.operation_gradients import apply_function
from unisono.horovod._impl.torch.operations import allgather_async, allreduce_async, synchronize
from unisono.horovod._impl.torch.submission import Sum


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation over the batches of all ranks. In training its forward and backward passes are collective over all ranks
    and blocking, in one order on all of them. The input has a batch, channels, and any further dimensions."""

    _persistent_id: PersistentId | None = None

    def _check_input_dim(self, input: Tensor) -> None:
        """Raises `ValueError` for an input without a batch and channels."""
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm needs an input with a batch and channels; received {input.dim()} dimension(s)")

    def forward(self, input: Tensor) -> Tensor:
        """Returns the normalised input; in training with the statistics of all ranks, and the running ones are updated. Collective
        and blocking then."""
        self._check_input_dim(input)
        if (not self.training and self.track_running_stats) or PROCESS.topology.size == 1:
            return super().forward(input)
        factor = 0.0 if self.momentum is None else self.momentum
        if self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                factor = 1.0 / float(self.num_batches_tracked)
        normalised, mean, variance, count = apply_function(_Normalise, input, self.weight, self.bias, self.eps, self._name())
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            unbiased = variance * (count / (count - 1.0).clamp(min=1.0))
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), factor)
        result: Tensor = normalised
        return result

    def _name(self) -> str:
        """The name of the layer's operations, given in the first forward pass, which layers make in one order on all ranks."""
        if self._persistent_id is None:
            self._persistent_id = PersistentId("sync_batch_norm", global_process_set)
        return f"sync_batch_norm.{self._persistent_id.number}"

    def __getstate__(self) -> dict[str, Any]:
        """Leaves the number out: a copy is another layer."""
        return {name: value for name, value in self.__dict__.items() if name != "_persistent_id"}


class _Normalise(torch.autograd.Function):
    """Normalisation with its gradient. The ranks exchange mean, sum of squared distances and count of each channel, and in the
    backward pass two sums."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, name: str
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns the normalised values, and mean, variance and number of values per channel over all ranks. Collective,
        blocking."""
        wide = values.to(torch.promote_types(values.dtype, torch.float32))
        num_channels, over = values.shape[1], [dim for dim in range(values.dim()) if dim != 1]
        number = values.numel() // num_channels
        mean = wide.mean(over) if number else wide.new_zeros(num_channels)
        distances = (wide - _shaped(mean, values)).square().sum(over)
        mine = torch.cat([mean, distances, wide.new_tensor([float(number)])])
        everybodys = synchronize(allgather_async(mine.unsqueeze(0), name))
        means, spreads, counts = everybodys.split([num_channels, num_channels, 1], dim=1)
        count = counts.sum()
        mean = (means * counts).sum(0) / count
        variance = (spreads.sum(0) + (counts * (means - mean).square()).sum(0)) / count
        scale = torch.rsqrt(variance + eps)
        centred = (wide - _shaped(mean, values)) * _shaped(scale, values)
        out = centred.clone() if weight is None else centred * _shaped(weight, values)
        out = out if bias is None else out + _shaped(bias, values)
        ctx.save_for_backward(centred, weight, scale, count)
        ctx.bias_type, ctx.name = None if bias is None else bias.dtype, name
        ctx.mark_non_differentiable(mean, variance, count)
        return out.to(values.dtype), mean, variance, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor, Tensor | None, Tensor | None, None, None]:
        """Returns the gradients of values, weight and bias; that of the values takes those of all ranks into account. Collective,
        blocking."""
        centred, weight, scale, count = ctx.saved_tensors
        over = [dim for dim in range(gradient.dim()) if dim != 1]
        wide = gradient.to(centred.dtype)
        sums = torch.stack([wide.sum(over), (wide * centred).sum(over)])
        totals = synchronize(allreduce_async(sums, name=ctx.name, op=Sum)) / count
        slope = wide - _shaped(totals[0], gradient) - centred * _shaped(totals[1], gradient)
        factor = scale if weight is None else scale * weight
        back = (slope * _shaped(factor, gradient)).to(gradient.dtype)
        of_weight = None if weight is None else sums[1].to(weight.dtype)
        of_bias = None if ctx.bias_type is None else sums[0].to(ctx.bias_type)
        return back, of_weight, of_bias, None, None


def _shaped(vector: Tensor, like: Tensor) -> Tensor:
    """The values of the channels in a shape that is applied to all of `like`."""
    return vector.view(1, -1, *(1 for _ in range(like.dim() - 2)))
