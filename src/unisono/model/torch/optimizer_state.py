"""The state of an optimiser, by the names of its parameters; read from one optimiser and loaded into another.

Saved is what it has for each parameter or under a name of its own, and what it has changed in its groups and attributes. Settings
are not, as a task may have changed them. An optimiser that writes `state_dict` or `load_state_dict` itself knows better what it
needs: then these two are used, and the second must bring back what the first gave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.optim import Optimizer

from unisono.errors import UsageError
from unisono.model.flat import Entry, view_of
from unisono.model.torch.optimizer_record import (
    REMEDY,
    InitialOptimizer,
    Packed,
    parameters_of,
    replace_references,
    restore_references,
    settings,
)

Named = Sequence[tuple[str, Tensor]]


def state_of(optimizer: Optimizer, made: InitialOptimizer, named: Named) -> dict[str, Any]:
    """Local: returns the state of an optimiser of these parameters. Tensors are not copied."""
    if _writes_its_own(optimizer):
        own = optimizer.state_dict()
        try:
            Packed.of(own)
        except UsageError as error:
            raise UsageError(f"state_dict of {type(optimizer).__name__}: {error}") from error
        return {"kind": type(optimizer).__name__, "groups": made.learned_groups(optimizer), "own": own}
    parameters = parameters_of(optimizer)
    held: Mapping[Any, Any] = optimizer.state
    others = {key: replace_references(value, parameters) for key, value in held.items() if key not in parameters}
    for key in others:
        if not isinstance(key, str):
            raise UsageError(
                f"{type(optimizer).__name__} has state under a key of type {type(key).__name__}, "
                f"neither a parameter nor a name, {REMEDY}"
            )
    each = {name: optimizer.state.get(parameter, {}) for name, parameter in named}
    return {**_learned_state(optimizer, made), "each": each, "others": others}


def state_of_vector(optimizer: Optimizer, made: InitialOptimizer, entries: Sequence[Entry]) -> dict[str, Any]:
    """Local: returns the state of an optimiser whose one parameter is a vector of many tensors: the part of each, and what is
    `of_all`."""
    (vector,) = parameters_of(optimizer)
    state = optimizer.state.get(vector, {})
    parts = {name: value for name, value in state.items() if is_like(value, vector)}
    each = {entry.name: {name: view_of(entry, value) for name, value in parts.items()} for entry in entries}
    of_all = {name: value for name, value in state.items() if name not in parts}
    return {**_learned_state(optimizer, made), "each": each, "of_all": of_all, "others": {}}


def load_state(optimizer: Optimizer, state: Mapping[str, Any], named: Named) -> None:
    """Local: loads what `state_of` or `state_of_vector` returned; ValueError if it is from an optimiser of another kind. Tensors
    are copied."""
    _expect_same_kind(optimizer, state)
    if "own" in state:
        _load_its_own(optimizer, state)
        return
    _load_learned(optimizer, state)
    counts_on_device = _counts_on_device(optimizer)
    for name, parameter in named:
        held = {**state["each"][name], **state.get("of_all", {})}
        if held:
            optimizer.state[parameter] = {key: _placed(value, parameter, counts_on_device) for key, value in held.items()}
    parameters = list(parameters_of(optimizer))
    for key, value in state["others"].items():
        optimizer.state[key] = restore_references(value, optimizer.state.get(key), parameters)


def load_state_of_vector(optimizer: Optimizer, state: Mapping[str, Any], entries: Sequence[Entry]) -> None:
    """Local: loads what `state_of_vector` returned. Tensors are copied."""
    _expect_same_kind(optimizer, state)
    _load_learned(optimizer, state)
    each, of_all = state["each"], state["of_all"]
    if not of_all and not any(each.values()):
        return  # it has not moved anything yet
    (vector,) = parameters_of(optimizer)
    loaded = {name: _placed(value, vector, _counts_on_device(optimizer)) for name, value in of_all.items()}
    for name, first in next(iter(each.values())).items():
        joined = torch.zeros_like(vector.detach(), dtype=first.dtype)
        for entry in entries:
            view_of(entry, joined).copy_(each[entry.name][name])
        loaded[name] = joined
    optimizer.state[vector] = loaded


def is_like(value: object, vector: Tensor) -> TypeGuard[Tensor]:
    """Pure: whether a value is a tensor with one element for each element of the vector."""
    return isinstance(value, Tensor) and value.shape == vector.shape


def own_copy(value: object) -> object:
    """Local: returns a copy of a state value."""
    return value.clone() if isinstance(value, Tensor) else copy(value)


def _expect_same_kind(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Raises ValueError if the state is of another class of optimiser."""
    if type(optimizer).__name__ != state["kind"]:
        raise ValueError(f"the state of {state['kind']} cannot be loaded into {type(optimizer).__name__}")


def _writes_its_own(optimizer: Optimizer) -> bool:
    """Returns whether the optimiser's class overrides state_dict or load_state_dict."""
    kind = type(optimizer)
    return kind.state_dict is not Optimizer.state_dict or kind.load_state_dict is not Optimizer.load_state_dict


def _load_its_own(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Loads the state with the optimiser's load_state_dict, with the task's settings; refuses one that does not restore it."""
    asked = [settings(group) for group in optimizer.param_groups]
    optimizer.load_state_dict(deepcopy(state["own"]))
    place = Packed.of(optimizer.state_dict()).difference(Packed.of(state["own"]))
    if place is not None:
        raise UsageError(
            f"load_state_dict of {type(optimizer).__name__} does not restore what its state_dict returned ({place}), so the run "
            "cannot be resumed exactly; correct it, or start over with --fresh"
        )
    for group, wanted in zip(optimizer.param_groups, asked, strict=True):
        group.update(wanted)
    _load_groups(optimizer, state)


def _learned_state(optimizer: Optimizer, made: InitialOptimizer) -> dict[str, Any]:
    """Returns what the optimiser has changed in its groups and attributes since it was made, and its class."""
    return {
        "kind": type(optimizer).__name__,
        "groups": made.learned_groups(optimizer),
        "attributes": made.learned_attributes(optimizer),
    }


def _load_learned(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Loads what `_learned_state` gave."""
    _load_groups(optimizer, state)
    parameters = list(parameters_of(optimizer))
    for name, value in state["attributes"].items():
        setattr(optimizer, name, restore_references(value, getattr(optimizer, name, None), parameters))


def _load_groups(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Sets what the optimiser had changed in its parameter groups."""
    parameters = list(parameters_of(optimizer))
    for group, learned in zip(optimizer.param_groups, state["groups"], strict=True):
        group.update({name: restore_references(value, group.get(name), parameters) for name, value in learned.items()})


def _counts_on_device(optimizer: Optimizer) -> bool:
    """Returns whether the optimiser keeps its number of steps on the device, being fused or capturable."""
    return any(group.get("fused") or group.get("capturable") for group in optimizer.param_groups)


def _placed(value: Any, parameter: Tensor, counts_on_device: bool) -> Any:
    """Returns a copy, on the device and in the order of axes of the parameter; a single number is a count, which most optimisers
    keep on the host."""
    if isinstance(value, Mapping):
        return {key: _placed(part, parameter, counts_on_device) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_placed(part, parameter, counts_on_device) for part in value)
    if not isinstance(value, Tensor):
        return value
    if value.shape == parameter.shape:
        return torch.empty_like(parameter, dtype=value.dtype).detach().copy_(value)
    return value.to(parameter.device, copy=True) if value.dim() or counts_on_device else value.clone()
