"""How an optimiser was made, and what it has changed in its groups and attributes since: what it has learned, not its settings.

Where the parameters themselves are among it (listed, or as keys), they are kept as numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, MutableSequence, MutableSet, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from unisono.errors import UsageError
from unisono.model.packed import pack

OF_TORCH = ("state", "param_groups", "defaults", "found_inf", "grad_scale")
"""Attributes of an optimiser that are no memory, or that are kept in another way."""
CHANGE_INSIDE = (
    *(MutableMapping, MutableSequence, MutableSet, np.ndarray),
    *(Random, np.random.Generator, torch.Generator),
    Optimizer,
)
"""Things that may have learned something though they are the same things as before."""
PARAMETER = "parameter of the optimizer"
REMEDY = "so that it cannot be kept in a checkpoint; give it state_dict and load_state_dict of its own, which are then used"


class Packed(NamedTuple):
    """Any value, ready to be compared."""

    plain: Any
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, value: Any) -> Packed:
        """Local. Tensors are not copied."""
        tensors: dict[str, Tensor] = {}
        return cls(pack(value, tensors, ""), tensors)

    def difference(self, other: Packed) -> str | None:
        """Local: where the two differ in a bit."""
        if repr(_in_order(self.plain)) != repr(_in_order(other.plain)):  # equal where a number is NaN in both
            return "plain values"
        for name, tensor in self.tensors.items():
            before = other.tensors[name]
            if tensor.dtype != before.dtype or tensor.shape != before.shape or not torch.equal(_bits(tensor), _bits(before)):
                return name.removeprefix(".")
        return None


@dataclass(frozen=True)
class InitialOptimizer:
    """The groups and attributes of an optimiser that has not moved anything yet."""

    groups: Sequence[Mapping[str, Any]]
    """Packed copies; things that cannot be packed are themselves."""
    attributes: Mapping[str, Any]
    """Likewise."""

    @classmethod
    def of(cls, optimizer: Optimizer) -> InitialOptimizer:
        """Local; copies."""
        return cls([_copies(settings(group)) for group in optimizer.param_groups], _copies(_attributes(optimizer)))

    def learned_groups(self, optimizer: Optimizer) -> list[dict[str, Any]]:
        """Local: what is other by now. Tensors are not copied."""
        pairs = zip(optimizer.param_groups, self.groups, strict=True)
        return [_changed(optimizer, settings(group), made) for group, made in pairs]

    def learned_attributes(self, optimizer: Optimizer) -> dict[str, Any]:
        """Local: likewise."""
        return _changed(optimizer, _attributes(optimizer), self.attributes)


def settings(group: Mapping[str, Any]) -> Mapping[str, Any]:
    """Pure: a group without its parameters."""
    return {name: value for name, value in group.items() if name != "params"}


def parameters_of(optimizer: Optimizer) -> dict[Any, int]:
    """Pure: the parameters of all groups, with their numbers."""
    found = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {parameter: number for number, parameter in enumerate(found)}


def replace_references(value: Any, parameters: Mapping[Any, int]) -> Any:
    """Pure: with numbers in the place of parameters."""
    if isinstance(value, Tensor):
        return (PARAMETER, parameters[value]) if value in parameters else value
    if isinstance(value, Mapping):
        return {replace_references(key, parameters): replace_references(part, parameters) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(replace_references(part, parameters) for part in value)
    return value


def restore_references(value: Any, now: Any, parameters: Sequence[Tensor]) -> Any:
    """Local: a copy of what was kept, with the parameters themselves for their numbers. Its tensors lie where those lie that are
    there `now`, else beside the parameters; a dict that is there is filled, as it may be of another kind, or known to others."""
    if isinstance(value, Tensor):
        return value.to(now.device if isinstance(now, Tensor) else parameters[0].device, copy=True)
    if isinstance(value, Mapping):
        held = dict(now) if isinstance(now, Mapping) else {}
        keys = [restore_references(key, None, parameters) for key in value]
        found = {key: restore_references(part, held.get(key), parameters) for key, part in zip(keys, value.values(), strict=True)}
        if not isinstance(now, MutableMapping):
            return found
        now.clear()
        now.update(found)
        return now
    if isinstance(value, tuple) and len(value) == 2 and value[0] == PARAMETER:
        return parameters[value[1]]
    if isinstance(value, (list, tuple)):
        return type(value)(restore_references(part, None, parameters) for part in value)
    return value


def _attributes(optimizer: Optimizer) -> Mapping[str, Any]:
    """Those in which an optimiser may keep what it has learned; torch's own do not."""
    if type(optimizer).__module__.partition(".")[0] == "torch":
        return {}
    parameters = parameters_of(optimizer)
    return {
        name: replace_references(value, parameters)
        for name, value in vars(optimizer).items()
        if name not in OF_TORCH and not name.startswith("_optimizer_")  # hooks
    }


def _copies(values: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        try:
            plain, tensors = Packed.of(value)
            found[name] = Packed(plain, {place: tensor.clone() for place, tensor in tensors.items()})
        except UsageError:
            found[name] = value
    return found


def _changed(optimizer: Optimizer, values: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are other than when made; refuses what may be, and cannot be kept."""
    changed: dict[str, Any] = {}
    for name, value in values.items():
        before = made.get(name)
        try:
            now = Packed.of(value)
        except UsageError as error:
            is_shared = isinstance(value, Optimizer) and value.state is optimizer.state
            if not is_shared and (isinstance(value, CHANGE_INSIDE) or value is not before):
                what = f"{type(optimizer).__name__} has a {type(value).__name__} ({name})"
                raise UsageError(f"{what}, {REMEDY}") from error
            continue
        if not isinstance(before, Packed) or now.difference(before) is not None:
            changed[name] = value
    return changed


def _in_order(plain: Any) -> Any:
    """Mappings by their keys, whatever was put in first."""
    if isinstance(plain, dict) and "mapping" in plain:
        return {"mapping": sorted(([repr(key), _in_order(part)] for key, part in plain["mapping"]), key=lambda pair: pair[0])}
    if isinstance(plain, dict) and "tuple" in plain:
        return {"tuple": _in_order(plain["tuple"])}
    return [_in_order(part) for part in plain] if isinstance(plain, list) else plain


def _bits(tensor: Tensor) -> Tensor:
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8)
