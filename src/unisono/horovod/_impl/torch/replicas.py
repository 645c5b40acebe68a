"""Equal replicas: the weights and optimiser state of one rank on all ranks. Collective over the process set, blocking."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from unisono.horovod._impl.job.process_sets import ProcessSet, global_process_set
from unisono.horovod._impl.job.process_state import PROCESS
from unisono.horovod._impl.torch.gradient_forms import fill_with_zeros
from unisono.horovod._impl.torch.object_exchange import broadcast_object
from unisono.horovod._impl.torch.operations import broadcast_async_, synchronize_all
from unisono.optim.state_loading import load_in_place
from unisono.optim.wrapped_optimizer import Wrapped


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str, Any] | Tensor], root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Copies the root's values to all ranks, in place. `params` is a state_dict, named parameters, or parameters, which are then
    distinguished by their order; values in it that are no tensors are left alone."""
    if isinstance(params, Mapping):
        named = sorted(params.items())
    elif isinstance(params, Iterable) and not isinstance(params, Tensor):
        named = [(None, one) if isinstance(one, Tensor) else one for one in params]
    else:
        raise ValueError(f"params must be a state_dict or parameters; received a {type(params).__name__}")
    if any(not (isinstance(pair, tuple) and len(pair) == 2) for pair in named):
        raise ValueError("params must be pairs of a name and a tensor; give model.named_parameters() or model.state_dict()")
    _broadcast_all([(name, tensor) for name, tensor in named if isinstance(tensor, Tensor)], root_rank, process_set)


def broadcast_optimizer_state(
    optimizer: Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Copies the root's state and settings to all ranks, whatever the others have. Where the root has no state yet, parameters
    without a gradient are given zeros, on which programs written for Horovod may rely; sparse ones where the `model` or the
    optimiser says that theirs are sparse."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "the state of torch.optim.LBFGS cannot be broadcast, as it has no fixed form; start without state on all ranks"
        )
    at_root = PROCESS.topology.rank == root_rank
    tensors: list[Tensor] = []
    outline = _outline(optimizer.state_dict(), tensors) if at_root else None
    outline = broadcast_object(outline, root_rank, process_set=process_set)
    state = None if at_root else _filled(outline, tensors, _device_of(optimizer))
    _broadcast_all([(f"optimizer_state.{number}", tensor) for number, tensor in enumerate(tensors)], root_rank, process_set)
    if state is not None:
        # Past a distributed optimiser's own way, which drops gradients on their way: the root loads nothing, and drops none.
        if isinstance(optimizer, Wrapped):
            optimizer._load(state)
        else:
            load_in_place(optimizer, lambda: optimizer.load_state_dict(state))
        _keep_types(optimizer, state)
    if not optimizer.state:
        sparse = {layer.weight for layer in (() if model is None else model.modules()) if getattr(layer, "sparse", False)}
        for one in (one for group in optimizer.param_groups for one in group["params"]):
            if one.requires_grad and one.grad is None:
                fill_with_zeros(one, one in sparse or isinstance(optimizer, torch.optim.SparseAdam))


def _keep_types(optimizer: Optimizer, sent: dict[str, Any]) -> None:
    """Restores the root's types in a loaded state: PyTorch casts what it loads to the type of the parameter, but the root did not
    load."""
    held = (one for group in optimizer.param_groups for one in group["params"])
    numbers = (number for group in sent["param_groups"] for number in group["params"])
    for number, one in zip(numbers, held, strict=True):
        for key, value in sent["state"].get(number, {}).items():
            loaded = optimizer.state[one].get(key)
            if isinstance(value, Tensor) and isinstance(loaded, Tensor) and loaded.dtype != value.dtype:
                optimizer.state[one][key] = value if value.is_cpu else value.to(one.device)


def _broadcast_all(named: list[tuple[str | None, Tensor]], root_rank: int, process_set: ProcessSet) -> None:
    """Broadcasts all tensors; all are in flight before the first is waited for, so they are fused."""
    handles = []
    for name, tensor in named:
        dense = tensor.detach()
        flat = dense if dense.is_contiguous() else dense.contiguous()
        handles.append((dense, flat, broadcast_async_(flat, root_rank, name, process_set)))
    synchronize_all(handle for _, _, handle in handles)
    for dense, flat, _ in handles:
        if flat is not dense:
            dense.copy_(flat)


@dataclass(frozen=True)
class _Hole:
    """The place of a tensor in a structure, with its shape and type."""

    number: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    on_host: bool


def _outline(state: Any, tensors: list[Tensor]) -> Any:
    """The structure without its tensors, which are appended to the list."""
    if isinstance(state, Tensor):
        tensors.append(state.detach().contiguous())
        return _Hole(len(tensors) - 1, state.dtype, tuple(state.shape), not state.is_cuda)
    if isinstance(state, dict):
        return {key: _outline(value, tensors) for key, value in state.items()}
    if isinstance(state, (list, tuple)) and type(state) in (list, tuple):
        return type(state)(_outline(value, tensors) for value in state)
    return state


def _filled(outline: Any, tensors: list[Tensor], device: torch.device) -> Any:
    """The structure with new tensors, which are also appended to the list, in the root's order."""
    if isinstance(outline, _Hole):
        where = torch.device("cpu") if outline.on_host else device
        tensors.append(torch.empty(outline.shape, dtype=outline.dtype, device=where))
        return tensors[-1]
    if isinstance(outline, dict):
        return {key: _filled(value, tensors, device) for key, value in outline.items()}
    if isinstance(outline, (list, tuple)) and type(outline) in (list, tuple):
        return type(outline)(_filled(value, tensors, device) for value in outline)
    return outline


def _device_of(optimizer: Optimizer) -> torch.device:
    """Returns the device of an optimiser's first parameter; the CPU if it has none."""
    return next((one.device for group in optimizer.param_groups for one in group["params"]), torch.device("cpu"))
