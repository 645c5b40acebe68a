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
from unisono.data.sharding_plan import Plan, Windows
from unisono.data.sources.open_source import as_source
from unisono.data.streamed_reads import with_streams
from unisono.data.tree import map_tree
from unisono.errors import UsageError
from unisono.model.torch.parameters import FlatParameters
from unisono.training.same_data import expect_same_data


class DistributedOptimizer:
    """An optimiser for your own training loop, whose `step` uses the mean gradient over the samples of all workers.

    Wrap the optimiser and keep the loop: zero_grad, forward, loss, backward, step. The loss is the mean over the worker's
    own samples, and `step(num_samples=...)` says how many these were, so that uneven parts give the same update as one
    worker with all samples. When it is made, all replicas take the weights and buffers of rank 0.

    Schedulers of torch take the optimiser inside: `StepLR(optimizer.optimizer, 10)`. Running statistics of batch
    normalisation stay those of each worker. A parameter that no worker used in a step is not updated. An optimiser of
    another model is refused. Collective, blocking.

    Example:
        import torch
        from torch import nn
        import unisono as un

        with un.connect() as comm:
            model = nn.Linear(64, 10)
            optimizer = un.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, comm)
            loader = un.ShardedLoader(un.digits(), comm, global_batch=128)
            for epoch in range(2):
                for x, y in loader.epoch(epoch):
                    optimizer.zero_grad()
                    if len(x):
                        nn.functional.cross_entropy(model(x), y).backward()
                    optimizer.step(num_samples=len(x))

    Args:
        optimizer: An optimiser of torch.
        model: The model whose parameters it holds, the same on all workers.
        comm: The communicator of the workers, from `un.connect()`.
    """

    def __init__(self, optimizer: Optimizer, model: nn.Module, comm: Communicator) -> None:
        held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        named = [(name, one) for name, one in model.named_parameters() if one in held and one.requires_grad]
        if len(named) < sum(parameter.requires_grad for parameter in held):
            raise UsageError(
                "the optimizer has parameters that are not in this model; give the model that the optimizer was made for"
            )
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
        """Sets the gradients to zero. Local.

        Args:
            set_to_none: Has no effect: the gradients stay in the memory from which they are sent.
        """
        self._parameters.clear()

    def step(self, num_samples: int = 1) -> None:
        """Makes one update from the gradients of all workers.

        A worker without samples calls it with 0 and contributes nothing; if no worker has a sample, it is refused.
        Collective, blocking.

        Args:
            num_samples: Number of samples that the loss of this worker was the mean of. With the default, 1, every worker
                counts the same.
        """
        if num_samples < 0:
            raise UsageError(f"num_samples must be at least 0; received {num_samples}")
        held = self._parameters
        if num_samples:
            held.reset_dropped_gradients()
        else:
            held.clear()
        self._weight[0] = num_samples
        self._uses.copy_(torch.from_numpy(held.used))
        held.scale(float(num_samples))
        self.comm.allreduce([*held.gradients.values(), self._weight, self._uses])
        total = float(self._weight[0])
        if not total:
            raise UsageError("no worker had a sample in this step; call step() only if at least one worker has samples")
        held.scale(1.0 / total)
        settings: list[Mapping[str, float]] = [{} for _ in self.optimizer.param_groups]
        held.update(settings, self._uses.cpu().numpy())

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of the optimiser inside, whose learning rates may be changed. Local."""
        return self.optimizer.param_groups

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the optimiser inside, for a checkpoint; it is the same on all workers. Local."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state of the optimiser inside; call it on all workers, with the same state. Local.

        Args:
            state: What `state_dict` returned.
        """
        self.optimizer.load_state_dict(state)


class ShardedLoader:
    """This worker's part of every batch, as tensors, for your own training loop.

    In an epoch the workers together use every sample exactly once; nothing is padded, dropped or repeated. The order
    depends on the seed and the epoch alone, so that more workers see the same batches. Parts differ by at most one sample,
    and so the last batch may be short.

    All workers take the same number of steps: one without samples in a short last batch gets an empty one. A `global_batch`
    smaller than the number of workers is refused, and so are data that are not the same on all workers, in the same order.
    Data in compressed chunks are shuffled by whole chunks. Collective, blocking; all workers make it with all of the data.

    Example:
        import unisono as un

        with un.connect() as comm:
            loader = un.ShardedLoader(un.digits(), comm, global_batch=128, seed=1)
            mine = sum(len(x) for x, y in loader.epoch(0))
            sum(comm.allgather_object(mine))  # -> 1797

    Args:
        data: Anything that `un.as_source` opens: (inputs, targets), a path, a torch Dataset.
        comm: The communicator of the workers, from `un.connect()`.
        global_batch: Number of samples of one step over all workers together.
        seed: The seed of the order.
        shuffle: False keeps the order of the data in every epoch.
        device: Where the tensors go; left out, the device of the communicator.
    """

    def __init__(
        self,
        data: Any,
        comm: Communicator,
        global_batch: int,
        seed: int = 0,
        shuffle: bool = True,
        device: torch.device | None = None,
    ) -> None:
        source = with_streams(as_source(data))
        if global_batch < comm.size:
            raise UsageError(f"global_batch {global_batch} is too small for {comm.size} workers; use at least {comm.size}")
        expect_same_data(comm, {"data": source})
        windows = None if source.chunk_samples is None else Windows(source.chunk_samples)
        self.plan = Plan(len(source), global_batch, seed, shuffle, windows if shuffle else None)
        self._loader = Loader(source, self.plan, comm.rank, comm.size)
        self._source = source
        self._device = device or comm.device

    def __len__(self) -> int:
        """Number of steps of an epoch."""
        return self.plan.steps_per_epoch

    def epoch(self, epoch: int) -> Iterator[Any]:
        """Yields this worker's part of every batch of an epoch, in the form of the data: (inputs, targets).

        Local, blocking.

        Args:
            epoch: The number of the epoch, from 0; every number has its own order.
        """
        for portion in self._loader.epoch(epoch):
            batch = portion.micro_batches[0] if portion.micro_batches else self._empty_batch()
            yield map_tree(self._tensor, batch)

    def _empty_batch(self) -> Any:
        """Returns a batch without samples, in the form of the data."""
        return map_tree(lambda leaf: leaf[:0], self._source.read(np.zeros(1, dtype=np.int64)))

    def _tensor(self, array: Any) -> Tensor:
        """Returns an array as a tensor on the device of this worker."""
        return torch.as_tensor(array).to(self._device, non_blocking=True)
