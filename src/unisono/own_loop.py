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

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Self
from weakref import ref

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
from unisono.model.torch.aliases import refuse_aliases
from unisono.model.torch.one_vector import has_patched_step
from unisono.model.torch.parameters import FlatParameters
from unisono.optim.wrapped_optimizer import Wrapped, same_class
from unisono.training.same_data import expect_same_data, expect_same_settings

CHANGED = (
    "gradients were changed after the backward pass (by clip_grad_norm_ or a GradScaler, say), when they were those of this worker "
    "alone; call optimizer.synchronize(num_samples=len(x)) before, and step() without num_samples after"
)
WRITTEN = (
    "gradients were written in place, without a backward pass and where torch keeps no trace of it; assign those that come from "
    "torch.autograd.grad (parameter.grad = gradient)"
)


class DistributedOptimizer(Wrapped):
    """An optimiser for your own training loop, whose `step` uses the mean gradient over the samples of all workers.

    Wrap the optimiser and keep the loop: zero_grad, forward, loss, backward, step. The loss is the mean over the worker's
    own samples, and `step(num_samples=...)` says how many these were, so that uneven parts give the same update as one
    worker with all samples. When it is made, all replicas take the weights and buffers of rank 0.

    It is an optimiser of the same class with the same settings and state, so schedulers of torch take it. Whatever changes
    gradients before the update, such as `clip_grad_norm_` or a `GradScaler`, must come after `synchronize`, which makes
    them those of all workers; gradients that were changed before are refused, but for changes through `.data` or NumPy, of
    which torch keeps no trace. Optimisers that need a closure (LBFGS) get the loss of all workers.

    Running statistics of batch normalisation stay those of each worker. A parameter that no worker used in a step is not
    updated. An optimiser of another model is refused, and so are parameters that are added or unfrozen later. Collective,
    blocking.

    Example:
        import torch
        from torch import nn
        import unisono as un

        with un.connect() as comm:
            model = nn.Linear(64, 10)
            optimizer = un.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, comm)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
            loader = un.ShardedLoader(un.digits(), comm, global_batch=128)
            for epoch in range(2):
                for x, y in loader.epoch(epoch):
                    optimizer.zero_grad()
                    if len(x):
                        nn.functional.cross_entropy(model(x), y).backward()
                    optimizer.step(num_samples=len(x))
                scheduler.step()

    Args:
        optimizer: An optimiser of torch.
        model: The model whose parameters it holds, the same on all workers.
        comm: The communicator of the workers, from `un.connect()`.
    """

    _version: int
    """That of the gradients when autograd had made them."""
    _is_synchronized: bool
    """Whether the gradients are those of all workers."""

    def __new__(cls, optimizer: Optimizer, model: nn.Module, comm: Communicator) -> Self:  # noqa: ARG004
        if not isinstance(optimizer, Optimizer) or isinstance(optimizer, Wrapped):
            what = "one that is distributed already" if isinstance(optimizer, Wrapped) else f"a {type(optimizer).__name__}"
            raise UsageError(f"optimizer must be a torch.optim.Optimizer (un.DistributedOptimizer); received {what}")
        if has_patched_step(optimizer):
            raise UsageError(
                "the `step` of this optimizer object was replaced, and un.DistributedOptimizer calls that of its class; write a "
                "subclass with this step, or use register_step_pre_hook and register_step_post_hook"
            )
        made: Self = same_class(optimizer, cls)
        return made

    def __init__(self, optimizer: Optimizer, model: nn.Module, comm: Communicator) -> None:  # it has the state of `optimizer`
        held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        named = [(name, one) for name, one in model.named_parameters() if one in held and one.requires_grad]
        if len(named) < sum(parameter.requires_grad for parameter in held):
            raise UsageError(
                "the optimizer has parameters that are not in this model; give the model that the optimizer was made for"
            )
        self.comm = comm
        refuse_aliases(model, [parameter for _, parameter in named])
        self._parameters = FlatParameters(named, comm.empty)
        self._num_members = sum(len(group["params"]) for group in optimizer.param_groups)
        self._frozen = [parameter for parameter in held if not parameter.requires_grad]
        self._sums = comm.empty(2, torch.float64)
        """The number of samples, and the sum of their losses."""
        self._uses = comm.empty(len(named), torch.float64)
        moved = set(self._parameters.tensors)
        rest = (tensor for tensor in (*model.parameters(), *model.buffers()) if tensor not in moved)
        replicate(comm, [*self._parameters.values.values(), *rest])
        self._from_pass = np.zeros(len(named), dtype=bool)
        """Whether a backward pass has made the gradient of each parameter since the last step."""
        for number, one in enumerate(self._parameters.tensors):
            one.register_post_accumulate_grad_hook(partial(_note_backward, ref(self), number))  # type: ignore[no-untyped-call]
        self._note_gradients()

    @property
    def optimizer(self) -> Optimizer:
        """The optimiser that was given, whose settings and state this one shares. Local."""
        found: Optimizer = self._made_from
        return found

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: ARG002 - the gradients stay where they travel from
        """Sets the gradients to zero. Local.

        Args:
            set_to_none: Has no effect: the gradients stay in the memory from which they are sent.
        """
        self._parameters.clear()
        self._note_gradients()
        self._from_pass.fill(False)

    def synchronize(self, num_samples: int) -> None:
        """Makes the gradients the mean over the samples of all workers, for what must see them before the update.

        Then clip or unscale them, and call `step()` without `num_samples`. As all workers have the same gradients, they clip
        them alike, and a `GradScaler` skips the same steps on all of them.

        A worker without samples calls it with 0 and contributes nothing; if no worker has a sample, it is refused.
        Collective, blocking.

        Example:
            import torch
            from torch import nn
            import unisono as un

            with un.connect() as comm:
                model = nn.Linear(64, 10)
                optimizer = un.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, comm)
                for x, y in un.ShardedLoader(un.digits(), comm, global_batch=128).epoch(0):
                    optimizer.zero_grad()
                    if len(x):
                        nn.functional.cross_entropy(model(x), y).backward()
                    optimizer.synchronize(num_samples=len(x))
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()

        Args:
            num_samples: Number of samples that the loss of this worker was the mean of.
        """
        self._synchronize(num_samples)

    def step(self, closure: Callable[[], Any] | None = None, *, num_samples: int | None = None) -> Any:
        """Makes one update from the gradients of all workers.

        `num_samples` must be given, unless `synchronize` was called since the backward pass. A worker without samples gives
        0. With a closure, as LBFGS needs it, the gradients and the loss that it computes become those of all workers each
        time it is called; the result is then the mean loss over all samples. Collective, blocking.

        Args:
            closure: A function that computes the loss and its gradients again, and returns the loss.
            num_samples: Number of samples that the loss of this worker was the mean of.
        """
        if closure is not None and not callable(closure):
            raise UsageError(f"closure must be a function; received {closure!r}. The number of samples is the keyword num_samples")
        if num_samples is None:
            if closure is not None or not self._is_synchronized:
                raise UsageError(
                    "step() needs the number of samples that the loss of this worker was the mean of, as parts may be uneven; "
                    "use step(num_samples=len(x))"
                )
            found = self._step_synchronized(None, lambda _: None)
        elif self._is_synchronized:
            raise UsageError("the gradients are synchronised already; call step() without num_samples after synchronize()")
        elif hasattr(self, "found_inf"):
            raise UsageError(CHANGED)
        else:
            found = self._step_synchronized(closure, partial(self._synchronize, num_samples, has_loss=closure is not None))
        self._note_gradients()
        self._from_pass.fill(False)
        return found

    step.hooked = True  # type: ignore[attr-defined]  # the step of the user's class calls the hooks, ours must not

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the state; call it on all workers, with the same state. Local.

        Args:
            state_dict: What `state_dict` returned, here or of a plain optimiser of this class.
        """
        self._load(state_dict)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Read by `GradScaler.step`. With True it sets `found_inf` and calls `step` on every worker, also on one whose gradients
        overflow; else that one would make no step, and the others would wait for it."""
        return not self._is_synchronized or bool(getattr(self._made_from, "_step_supports_amp_scaling", False))

    def _synchronize(self, num_samples: int, loss: Any = None, has_loss: bool = False) -> Tensor | None:
        """Makes the gradients those of all workers; returns the mean loss over all samples if there is one. Collective,
        blocking."""
        if num_samples < 0:
            raise UsageError(f"num_samples must be at least 0; received {num_samples}")
        held = self._parameters
        num_members = sum(len(group["params"]) for group in self.param_groups)
        if num_members != self._num_members or any(parameter.requires_grad for parameter in self._frozen):
            raise UsageError(
                "the optimizer has parameters that were added or unfrozen after un.DistributedOptimizer was made, so each worker "
                "would train its own; make the un.DistributedOptimizer after that"
            )
        self._sums.zero_()
        if num_samples:
            if has_loss and loss is None:
                raise UsageError("the closure of step() must return the loss; received None")
            if self._version != self._gradient_version() or not held.take_assigned_gradients(self._from_pass):
                raise UsageError(CHANGED if self._from_pass.any() else WRITTEN)
            if held.has_unnoticed_gradients():
                raise UsageError(WRITTEN)
            self._sums[0] = num_samples
            if has_loss:
                self._sums[1] = num_samples * float(loss.detach() if isinstance(loss, Tensor) else loss)
        else:
            held.clear()
        self._uses.copy_(torch.from_numpy(held.used))
        held.scale(float(num_samples))
        self.comm.allreduce([*held.gradients.values(), self._sums, self._uses])
        total, loss_sum = self._sums.tolist()
        if not total:
            raise UsageError("no worker had a sample in this step; call step() only if at least one worker has samples")
        held.scale(1.0 / total)
        for number in np.flatnonzero(self._uses.cpu().numpy() == 0):  # as plain torch, which does not update them
            held.tensors[number].grad = None
        self._is_synchronized = True
        return torch.tensor(loss_sum / total, dtype=torch.float64) if has_loss else None

    def _note_gradients(self) -> None:
        """Notes that the gradients are those of this worker, as autograd made them."""
        self._version = self._gradient_version()
        self._is_synchronized = False

    def _gradient_version(self) -> int:
        """Returns a number that every change of a gradient in place increases."""
        return sum(vector._version for vector in self._parameters.gradients.values())


def _note_backward(owner: ref[DistributedOptimizer], number: int, _: Tensor) -> None:
    """Hook of autograd, after it has made the gradient of a parameter, which may outlive the optimiser."""
    if (found := owner()) is not None:
        found._note_gradients()
        found._from_pass[number] = True


class ShardedLoader:
    """This worker's part of every batch, as tensors, for your own training loop.

    In an epoch the workers together use every sample exactly once; nothing is padded, dropped or repeated. The order
    depends on the seed and the epoch alone, so that more workers see the same batches. Parts differ by at most one sample,
    and so the last batch may be short.

    All workers take the same number of steps: one without samples in a short last batch gets an empty one. A `global_batch`
    smaller than the number of workers is refused. So are data that are not the same on all workers, in the same order, and
    another seed, batch or shuffle on one of them. Data in compressed chunks are shuffled by whole chunks. Collective,
    blocking; all workers make it with all of the data.

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
        seed: The seed of the order, the same on all workers.
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
        expect_same_settings(comm, {"global_batch": global_batch, "seed": seed, "shuffle": shuffle})
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
