"""Own training loop? Five lines make it distributed: an optimiser that uses the gradients of all workers, and a loader of this
worker's part.

with un.connect() as comm:                                            # who am I, how do we talk
    optimizer = un.DistributedOptimizer(optimizer, model, comm)       # equal replicas, exact mean gradients
    loader = un.ShardedLoader((x, y), comm, global_batch=128)         # this worker's part of every batch
    for epoch in range(10):
        for x, y in loader.epoch(epoch):
            ...                                                       # the loop as it was
            optimizer.step(num_samples=len(x))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unisono.comm.base import Communicator
from unisono.comm.replicate import replicate
from unisono.data.loader import Loader
from unisono.data.plan import Plan, Windows
from unisono.data.sources.open_source import as_source
from unisono.data.tree import map_tree
from unisono.errors import UsageError
from unisono.model.torch.parameters import FlatParameters


class DistributedOptimizer:
    """Wraps an optimiser so that its `step` uses the mean gradient over the samples of all workers.

    Made collectively: the replicas take the weights and buffers of rank 0. The loss of each worker is the mean over its own
    samples, as in a plain loop; `num_samples` says how many these were, so that uneven parts are exact. Schedulers of torch take
    the optimiser that this was made from. Running statistics of batch normalisation stay those of each worker.
    """

    def __init__(self, optimizer: Optimizer, model: nn.Module, comm: Communicator) -> None:
        held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        named = [(name, one) for name, one in model.named_parameters() if one in held and one.requires_grad]
        if len(named) < sum(parameter.requires_grad for parameter in held):
            raise UsageError("the optimizer holds parameters that are not of this model; give the model that it was made for")
        self.optimizer = optimizer
        self.comm = comm
        self._parameters = FlatParameters(named, comm.empty)
        self._parameters.optimizer = optimizer
        self._weight = comm.empty(1, torch.float64)
        self._uses = comm.empty(len(named), torch.float64)
        moved = set(self._parameters.tensors)
        rest = (tensor for tensor in (*model.parameters(), *model.buffers()) if tensor not in moved)
        replicate(comm, [*self._parameters.values.values(), *rest])

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: ARG002 - the gradients stay where they travel from
        """Local: clears the gradients."""
        self._parameters.clear()

    def step(self, num_samples: int = 1) -> None:
        """Collective, blocking: one update from all workers. A worker without samples (0) contributes nothing."""
        if num_samples < 0:
            raise UsageError(f"num_samples must be at least 0; received {num_samples}")
        held = self._parameters
        if num_samples:
            held.forget_dropped()
        else:
            held.clear()
        self._weight[0] = num_samples
        self._uses.copy_(torch.from_numpy(held.used))
        held.scale(float(num_samples))
        self.comm.allreduce([*held.gradients.values(), self._weight, self._uses])
        total = float(self._weight[0])
        if not total:
            raise UsageError("no worker had a sample in this step; call step only when somebody has")
        held.scale(1.0 / total)
        settings: list[Mapping[str, float]] = [{} for _ in self.optimizer.param_groups]
        held.update(settings, self._uses.cpu().numpy())

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)


class ShardedLoader:
    """Loads this worker's part of every global batch, as tensors: together the workers use every sample once in an epoch, in an
    order that is a function of seed and epoch alone."""

    def __init__(
        self,
        data: Any,
        comm: Communicator,
        global_batch: int,
        seed: int = 0,
        shuffle: bool = True,
        device: torch.device | None = None,
    ) -> None:
        source = as_source(data)
        if global_batch < comm.size:
            raise UsageError(f"global_batch {global_batch} is smaller than the {comm.size} workers; use at least {comm.size}")
        windows = None if source.chunk_samples is None else Windows(source.chunk_samples)
        self.plan = Plan(len(source), global_batch, seed, shuffle, windows if shuffle else None)
        self._loader = Loader(source, self.plan, comm.rank, comm.size)
        self._source = source
        self._device = device or comm.device

    def __len__(self) -> int:
        """Number of steps of an epoch."""
        return self.plan.steps_per_epoch

    def epoch(self, epoch: int) -> Iterator[Any]:
        """Local, blocking: yields the batches of an epoch. A worker without samples in a short last batch gets an empty one, so
        that all take the same number of steps."""
        for portion in self._loader.epoch(epoch):
            batch = portion.micro_batches[0] if portion.micro_batches else self._empty_batch()
            yield map_tree(self._tensor, batch)

    def _empty_batch(self) -> Any:
        return map_tree(lambda leaf: leaf[:0], self._source.read(np.zeros(1, dtype=np.int64)))

    def _tensor(self, array: Any) -> Tensor:
        return torch.as_tensor(array).to(self._device, non_blocking=True)
