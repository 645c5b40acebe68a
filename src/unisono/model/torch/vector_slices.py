"""Vectors cut into slices for kernels that work through lists of tensors: these give one block of threads to 65,536 elements of a
tensor, so that one vector of a small network keeps a few of a GPU's processors busy. Cut into slices it is computed by all, element
by element as before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from unisono.model.flat import Entry, view_of

LEAST = 2048
"""Elements of a slice at least: fewer would not keep a block of threads busy."""
MOST_OF_LAUNCH: Mapping[int, int] = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
"""Number of lists that a kernel works through at once -> tensors that each may have in one launch."""

Cut = Callable[[Tensor, int], list[Tensor]]
"""Cuts a vector into slices, for a kernel with so many lists."""


def cut_evenly(vector: Tensor, num_lists: int) -> list[Tensor]:
    """Local: a vector as slices, so many that a kernel with so many lists has one launch for them."""
    length = -(-vector.numel() // MOST_OF_LAUNCH[num_lists])
    return list(torch.split(vector, max(LEAST, -(-length // 64) * 64)))


def cut_tensors(tensors: Sequence[Tensor], num_lists: int) -> list[Tensor]:
    """Local: tensors without gaps as slices, in the order of their memory: as many as fit in one launch, if the tensors do."""
    most = MOST_OF_LAUNCH[num_lists]
    length = -(-sum(one.numel() for one in tensors) // max(most // 2, most - len(tensors)))
    length = max(LEAST, -(-length // 64) * 64)
    return [piece for one in tensors for piece in torch.split(one.as_strided((one.numel(),), (1,)), length)]


def cut_by(entries: Sequence[Entry]) -> Cut:
    """Pure: a function that cuts a vector as `cut_tensors` cuts the tensors in it."""
    return lambda vector, num_lists: cut_tensors([view_of(entry, vector) for entry in entries], num_lists)


def copy_in_slices(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Local: copies tensors into others, as `torch._foreach_copy_`."""
    alike = [one.stride() == other.stride() and one.dtype is other.dtype for one, other in zip(targets, sources, strict=True)]
    if all(alike):
        targets, sources = cut_tensors(targets, 2), cut_tensors(sources, 2)
    torch._foreach_copy_(targets, sources)


Step = Callable[[Cut, Sequence[Tensor] | None], None]
"""A step of an optimiser of one vector that is cut in this way; gradients may be given, cut alike, in the place of its own."""


def step_in_slices(whole: Optimizer) -> Step | None:
    """Returns the step of a fused optimiser of one vector on a GPU, computed in slices; None for others."""
    (group,) = whole.param_groups
    (vector,) = group["params"]
    if not group.get("fused") or not works_in_slices(vector):
        return None
    rules: Mapping[type, Callable[..., None]] = {
        torch.optim.SGD: _sgd,
        torch.optim.Adam: partial(_adam, torch._fused_adam_),
        torch.optim.AdamW: partial(_adam, torch._fused_adamw_),
    }
    rule = rules.get(type(whole))
    return None if rule is None else partial(rule, whole, group, vector)


def works_in_slices(vector: Tensor) -> bool:
    """Pure: whether slices of a vector are computed side by side: on a GPU."""
    return vector.is_cuda


def _sgd(whole: Optimizer, group: Mapping[str, Any], vector: Tensor, cut: Cut, gradients: Sequence[Tensor] | None) -> None:
    """Makes a step of torch.optim.SGD."""
    buffers: list[Tensor] = []
    state, is_first = whole.state[vector], False
    if group["momentum"]:
        if is_first := state.get("momentum_buffer") is None:
            state["momentum_buffer"] = torch.zeros_like(vector.detach())  # which stays so if the first step is left out
        buffers = cut(state["momentum_buffer"], 3)
    torch._fused_sgd_(
        cut(vector.detach(), 3),
        _gradients(vector, gradients, cut, 3),
        buffers,
        weight_decay=group["weight_decay"],
        momentum=group["momentum"],
        lr=group["lr"],
        dampening=group["dampening"],
        nesterov=group["nesterov"],
        maximize=group["maximize"],
        is_first_step=is_first,
        grad_scale=None,
        found_inf=getattr(whole, "found_inf", None),
    )


def _adam(
    update: Callable[..., None],
    whole: Optimizer,
    group: Mapping[str, Any],
    vector: Tensor,
    cut: Cut,
    gradients: Sequence[Tensor] | None,
) -> None:
    """Makes a step of torch.optim.Adam or AdamW."""
    state = whole.state.get(vector)
    if not state:
        assert gradients is None, "the first step has the gradient of the vector"
        unwrap(type(whole).step)(whole)  # which makes its state
        return
    num_lists = 5 if group["amsgrad"] else 4
    values = cut(vector.detach(), num_lists)
    (beta1, beta2), left_out, step = group["betas"], getattr(whole, "found_inf", None), state["step"]
    step += 1
    update(
        values,
        _gradients(vector, gradients, cut, num_lists),
        cut(state["exp_avg"], num_lists),
        cut(state["exp_avg_sq"], num_lists),
        cut(state["max_exp_avg_sq"], num_lists) if group["amsgrad"] else [],
        [step] * len(values),
        amsgrad=group["amsgrad"],
        lr=group["lr"],
        beta1=beta1,
        beta2=beta2,
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=group["maximize"],
        grad_scale=None,
        found_inf=left_out,
    )
    if left_out is not None:
        step -= left_out


def _gradients(vector: Tensor, given: Sequence[Tensor] | None, cut: Cut, num_lists: int) -> list[Tensor]:
    """The gradients, cut: the given tensors, or the vector's own."""
    if given is not None:
        return cut_tensors(given, num_lists)
    assert vector.grad is not None, "a vector of parameters has its gradient from the start"
    return cut(vector.grad, num_lists)
