"""Elementwise optimisers, run on one vector of many tensors or on a slice of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import signature, unwrap
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from unisono.model.flat import Entry, view_of
from unisono.model.torch.optimizer_state import is_like, own_copy
from unisono.model.torch.vector_slices import cut_evenly, step_in_slices

ELEMENTWISE_OPTIMIZERS = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adagrad,
    torch.optim.RMSprop,
    torch.optim.Adadelta,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.ASGD,
)
"""Optimisers whose update of an element depends on that element alone: applied to one vector of all tensors they do the same."""


class ElementwiseOptimizer(Optimizer):
    """Base of elementwise optimisers of this package. Their settings are plain values, all of them arguments."""


def optimizer_on_vector(optimizer: Optimizer, values: Tensor, gradients: Tensor) -> Optimizer:
    """Local: makes an optimiser of the same kind and settings, without state, whose one parameter is a vector."""
    (group,) = optimizer.param_groups
    whole = nn.Parameter(values)
    whole.grad = gradients
    settings = {name: value for name, value in group.items() if name != "params"}
    if settings.get("fused") is None and "foreach" in settings:
        settings["foreach"] = bool(settings["foreach"])  # there is only one tensor; torch would check it again in every step
    same: Callable[..., Optimizer] = type(optimizer)
    if isinstance(optimizer, ElementwiseOptimizer):
        return same([{"params": [whole], **settings}])
    # As defaults too: Adagrad fills its first state from those.
    defaults = {name: value for name, value in optimizer.defaults.items() if name in signature(same).parameters}
    return same([{"params": [whole], **settings}], **defaults)


def has_own_step(optimizer: Optimizer) -> bool:
    """Pure, cheap: whether a step of this object does more than that of its class: hooks, or a `step` that was put in its place."""
    return bool(
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or _global_optimizer_pre_hooks
        or _global_optimizer_post_hooks
        or has_patched_step(optimizer)
    )


def has_patched_step(optimizer: Optimizer) -> bool:
    """Pure: whether user code has put another `step` into this object. That of a scheduler of torch, which sees so that steps are
    made, is the same one."""
    step = optimizer.__dict__.get("step")
    return step is not None and not (hasattr(step, "_wrapped_by_lr_sched") and step.__wrapped__ is type(optimizer).step)


def is_new(optimizer: Optimizer, whole: Optimizer, entries: Sequence[Entry], tensors: Sequence[Tensor]) -> bool:
    """Local: whether an optimiser of these tensors has the state that it was made with, and none that was loaded; `whole` is a new
    one of the same kind for the whole vector."""
    ((vector, made),) = [(one, whole.state.get(one, {})) for one in whole.param_groups[0]["params"]]
    if not set(optimizer.state) <= set(tensors):
        return False
    for entry, tensor in zip(entries, tensors, strict=True):
        held = optimizer.state.get(tensor, {})
        initial = {name: view_of(entry, value) if is_like(value, vector) else value for name, value in made.items()}
        if held.keys() != initial.keys() or not all(_are_equal(held[name], value) for name, value in initial.items()):
            return False
    return True


def _are_equal(one: object, other: object) -> bool:
    """Whether two values of a state are equal."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and bool((one == other).all())
    return type(one) is type(other) and bool(one == other)


def slice_optimizer(whole: Optimizer, stretch: slice, gradients: Tensor) -> Optimizer:
    """Local: makes the same optimiser for a slice of its vector, with a copy of the state of that slice."""
    (vector,) = whole.param_groups[0]["params"]
    found = optimizer_on_vector(whole, vector.detach()[stretch], gradients[stretch])
    (part,) = found.param_groups[0]["params"]
    if vector in whole.state:
        held = whole.state[vector].items()
        found.state[part] = {name: one[stretch].clone() if is_like(one, vector) else own_copy(one) for name, one in held}
    return found


def vectors_of(optimizer: Optimizer) -> dict[str, Tensor]:
    """Local: returns the state vectors of the optimiser, by name, without copies."""
    (vector,) = optimizer.param_groups[0]["params"]
    held: Mapping[str, Any] = optimizer.state.get(vector, {})
    return {name: one for name, one in held.items() if is_like(one, vector)}


def merge_slices(narrow: Optimizer, values: Tensor, gradients: Tensor, vectors: Mapping[str, Tensor]) -> Optimizer:
    """Local: makes the optimiser of the whole vector from that of a slice; `vectors` are the state vectors of the whole."""
    found = optimizer_on_vector(narrow, values, gradients)
    (vector,), (part,) = found.param_groups[0]["params"], narrow.param_groups[0]["params"]
    found.state[vector] = {**narrow.state.get(part, {}), **vectors}
    return found


def bare_step(whole: Optimizer) -> Callable[[], object]:
    """Returns the step of an optimiser of one vector without what torch wraps around it for profilers, hooks and many tensors,
    which takes longer than the update of a small network itself."""
    group = whole.param_groups[0]
    if type(whole) is torch.optim.SGD and not group["fused"] and not isinstance(group["lr"], Tensor):
        return partial(_sgd, whole, group)
    in_slices = step_in_slices(whole)
    return partial(unwrap(type(whole).step), whole) if in_slices is None else partial(in_slices, cut_evenly, None)


def _sgd(whole: Optimizer, group: Mapping[str, Any]) -> None:
    """Makes a step of torch.optim.SGD, operation by operation."""
    (vector,) = group["params"]
    gradient = -vector.grad if group["maximize"] else vector.grad
    if group["weight_decay"]:
        gradient = gradient.add(vector, alpha=group["weight_decay"])
    if momentum := group["momentum"]:
        state = whole.state[vector]
        buffer = state.get("momentum_buffer")
        if buffer is None:
            buffer = state["momentum_buffer"] = gradient.clone()
        else:
            buffer.mul_(momentum).add_(gradient, alpha=1 - group["dampening"])
        gradient = gradient.add(buffer, alpha=momentum) if group["nesterov"] else buffer
    vector.add_(gradient, alpha=-group["lr"])
