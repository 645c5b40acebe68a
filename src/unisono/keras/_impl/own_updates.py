"""Updates in loops of people's own: inside `strategy.run` an optimiser of Keras applies the sum of all workers' gradients, as in
tf.distribute; elsewhere its update is refused, as every worker would train a model of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, MutableSet
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unisono.comm.base import Communicator
from unisono.errors import UsageError
from unisono.model.keras.backends import own_backend

LOSS_SCALES = (
    "a LossScaleOptimizer would skip a step on one worker and make it on another; use the dtype policy mixed_bfloat16, which needs "
    "no loss scale"
)


@contextmanager
def summed_updates(comm: Communicator, compared: MutableSet[Any], algorithm: str) -> Iterator[None]:
    """A context in which `apply` and `apply_gradients` of Keras optimisers are collective: gradients are summed over the workers
    first. `compared` are the optimisers whose variables are known to be equal on all workers; an algorithm other than all-reduce is
    refused at the first update."""
    from keras import Optimizer
    from keras.optimizers import LossScaleOptimizer

    plain = Optimizer.apply

    def apply(optimizer: Any, grads: Any, trainable_variables: Any = None) -> None:
        if algorithm != "allreduce":
            raise UsageError(
                f"the algorithm {algorithm} has no effect in strategy.run, which sums the gradients of every step; use "
                "un.keras.MultiWorkerMirroredStrategy(), or model.fit"
            )
        grads = list(grads)
        reduced = iter(sum_over_workers(comm, [one for one in grads if one is not None], is_first=optimizer not in compared))
        if optimizer not in compared:
            _refuse_different(comm, trainable_variables or optimizer._trainable_variables)
            compared.add(optimizer)
        plain(optimizer, [None if one is None else next(reduced) for one in grads], trainable_variables)

    def refuse(*_: Any, **__: Any) -> None:
        raise UsageError(LOSS_SCALES)

    with replaced(Optimizer, "apply", apply), replaced(LossScaleOptimizer, "apply", refuse):
        yield


@contextmanager
def guarded_optimizers(check: Callable[[], None]) -> Iterator[None]:
    """A context: Keras optimisers that are made in it call `check` before every update."""
    from keras import Optimizer

    plain = Optimizer.__init__

    def make(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        plain(optimizer, *args, **kwargs)

        def apply(grads: Any, trainable_variables: Any = None) -> None:
            check()
            type(optimizer).apply(optimizer, grads, trainable_variables)

        object.__setattr__(optimizer, "apply", apply)

    with replaced(Optimizer, "__init__", make):
        yield


@contextmanager
def replaced(kind: type, name: str, value: Any) -> Iterator[None]:
    """A context in which an attribute of a class has another value."""
    is_own, before = name in vars(kind), vars(kind).get(name)
    setattr(kind, name, value)
    try:
        yield
    finally:
        if is_own:
            setattr(kind, name, before)
        else:
            delattr(kind, name)


def sum_over_workers(comm: Communicator, values: list[Any], is_first: bool = False) -> list[Any]:
    """Returns the sums of these arrays of the backend. With `is_first` they are gradients of a first update, which must not be the
    same on all workers. Collective, blocking; in a graph when it runs."""

    def reduce(tensors: list[Tensor]) -> list[Tensor]:
        nonlocal is_first
        buffers = [tensor.to(comm.device, copy=True).contiguous() for tensor in tensors]
        comm.allreduce([buffer.view(-1) for buffer in buffers])
        found = [buffer.to(tensor.device) for buffer, tensor in zip(buffers, tensors, strict=True)]
        if is_first:
            _refuse_equal(comm.size, tensors, found)
        is_first = False
        return found

    found: list[Any] = own_backend().through_host(reduce, values) if values else []
    return found


def _refuse_equal(size: int, mine: list[Tensor], sums: list[Tensor]) -> None:
    """Local, and alike on all workers: refuses gradients that every worker has."""
    is_same = all(torch.allclose(total, size * one, rtol=1e-6, atol=0.0) for one, total in zip(mine, sums, strict=True))
    if is_same and any(bool(one.any()) for one in mine):
        raise UsageError(
            f"all {size} workers computed the same gradients in strategy.run, so each has the same samples and the update would be "
            f"{size} times too large; give each worker its own rows of a batch, x[strategy.comm.rank::strategy.comm.size]"
        )


def _refuse_different(comm: Communicator, variables: Any) -> None:
    """Refuses variables that are not equal on all workers before the first update. Collective, blocking."""
    from keras import ops

    digest = hashlib.sha256()
    with own_backend().outside_graph():
        for variable in variables:
            digest.update(np.ascontiguousarray(ops.convert_to_numpy(variable)).tobytes())
    if len(set(comm.allgather_object(digest.hexdigest()))) > 1:
        raise UsageError(
            "the workers hold different weights before the first update of strategy.run; make the model inside strategy.scope(), "
            "and load or set its weights on all workers alike"
        )
