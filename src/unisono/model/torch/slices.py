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

LEAST = 2048
"""Elements of a slice at least: fewer would not keep a block of threads busy."""
MOST_OF_LAUNCH: Mapping[int, int] = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
"""Number of lists that a kernel works through at once -> tensors that each may have in one launch."""


def slices_of(vector: Tensor, num_lists: int) -> list[Tensor]:
    """Local: a vector as slices, so many that a kernel with so many lists has one launch for them."""
    length = max(LEAST, -(-vector.numel() // MOST_OF_LAUNCH[num_lists] // 64 + 1) * 64)
    return list(torch.split(vector, length))


def copy_in_slices(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Local, on a GPU: copies tensors into others, as `torch._foreach_copy_`."""
    to: list[Tensor] = []
    by: list[Tensor] = []
    length = max(LEAST, sum(one.numel() for one in targets) // (MOST_OF_LAUNCH[2] // 2))
    for target, source in zip(targets, sources, strict=True):
        if target.stride() == source.stride() and target.dtype is source.dtype and target.numel() > length:
            to += torch.split(target.as_strided((target.numel(),), (1,)), length)
            by += torch.split(source.as_strided((source.numel(),), (1,)), length)
        else:
            to.append(target)
            by.append(source)
    torch._foreach_copy_(to, by)


def step_in_slices(whole: Optimizer) -> Callable[[], object] | None:
    """Returns the step of a fused optimiser of one vector on a GPU, computed in slices; None for others."""
    (group,) = whole.param_groups
    (vector,) = group["params"]
    if not group.get("fused") or not vector.is_cuda:
        return None
    rules: Mapping[type, Callable[..., None]] = {
        torch.optim.SGD: _sgd,
        torch.optim.Adam: partial(_adam, torch._fused_adam_),
        torch.optim.AdamW: partial(_adam, torch._fused_adamw_),
    }
    rule = rules.get(type(whole))
    return None if rule is None else partial(rule, whole, group, vector)


def _sgd(whole: Optimizer, group: Mapping[str, Any], vector: Tensor) -> None:
    """Makes a step of torch.optim.SGD."""
    buffers: list[Tensor] = []
    state, is_first = whole.state[vector], False
    if group["momentum"]:
        if is_first := state.get("momentum_buffer") is None:
            state["momentum_buffer"] = torch.zeros_like(vector.detach())  # which stays so if the first step is left out
        buffers = slices_of(state["momentum_buffer"], 3)
    num_lists = 3 if buffers else 2
    torch._fused_sgd_(
        slices_of(vector.detach(), num_lists),
        slices_of(_gradient(vector), num_lists),
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


def _adam(update: Callable[..., None], whole: Optimizer, group: Mapping[str, Any], vector: Tensor) -> None:
    """Makes a step of torch.optim.Adam or AdamW."""
    state = whole.state.get(vector)
    if not state:
        unwrap(type(whole).step)(whole)  # which makes its state
        return
    num_lists = 5 if group["amsgrad"] else 4
    values = slices_of(vector.detach(), num_lists)
    (beta1, beta2), left_out, step = group["betas"], getattr(whole, "found_inf", None), state["step"]
    step += 1
    update(
        values,
        slices_of(_gradient(vector), num_lists),
        slices_of(state["exp_avg"], num_lists),
        slices_of(state["exp_avg_sq"], num_lists),
        slices_of(state["max_exp_avg_sq"], num_lists) if group["amsgrad"] else [],
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


def _gradient(vector: Tensor) -> Tensor:
    assert vector.grad is not None, "a vector of parameters has its gradient from the start"
    return vector.grad
