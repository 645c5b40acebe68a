"""The initial groups and attributes of an optimiser, and what it has changed in them since: its state, not its settings.

Where parameters themselves are among the values (listed, or as keys), they are saved as numbers.
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
"""Attributes of an optimiser that are no state, or that are saved in another way."""
CHANGE_INSIDE = (
    *(MutableMapping, MutableSequence, MutableSet, np.ndarray),
    *(Random, np.random.Generator, torch.Generator),
    Optimizer,
)
"""Types of objects that may have changed although they are the same objects as before."""
PARAMETER = "parameter of the optimizer"
REMEDY = "which cannot be saved in a checkpoint; define state_dict and load_state_dict in the class of the optimizer"


class Packed(NamedTuple):
    """Any value in a form that can be compared."""

    plain: Any
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, value: Any) -> Packed:
        """Local: packs a value; tensors are not copied."""
        tensors: dict[str, Tensor] = {}
        return cls(pack(value, tensors, ""), tensors)

    def difference(self, other: Packed) -> str | None:
        """Local: returns where the two differ in a bit; None where they are equal."""
        if repr(_in_order(self.plain)) != repr(_in_order(other.plain)):  # equal where a number is NaN in both
            return "plain values"
        for name, tensor in self.tensors.items():
            before = other.tensors[name]
            if (
                tensor.dtype != before.dtype
                or tensor.shape != before.shape
                or not torch.equal(_bytes_of(tensor), _bytes_of(before))
            ):
                return name.removeprefix(".")
        return None


@dataclass(frozen=True)
class InitialOptimizer:
    """The groups and attributes of an optimiser before its first step."""

    groups: Sequence[Mapping[str, Any]]
    """Packed copies of the settings of each group; objects that cannot be packed are kept as they are."""
    attributes: Mapping[str, Any]
    """Packed copies of the attributes; likewise."""

    @classmethod
    def of(cls, optimizer: Optimizer) -> InitialOptimizer:
        """Local: copies groups and attributes of an optimiser."""
        return cls([_copied_values(settings(group)) for group in optimizer.param_groups], _copied_values(_attributes(optimizer)))

    def learned_groups(self, optimizer: Optimizer) -> list[dict[str, Any]]:
        """Local: returns the settings of each group that have changed since. Tensors are not copied."""
        pairs = zip(optimizer.param_groups, self.groups, strict=True)
        return [_changed(optimizer, settings(group), made) for group, made in pairs]

    def learned_attributes(self, optimizer: Optimizer) -> dict[str, Any]:
        """Local: returns the attributes that have changed since. Tensors are not copied."""
        return _changed(optimizer, _attributes(optimizer), self.attributes)


def settings(group: Mapping[str, Any]) -> Mapping[str, Any]:
    """Pure: returns a group without its parameters."""
    return {name: value for name, value in group.items() if name != "params"}


def parameters_of(optimizer: Optimizer) -> dict[Any, int]:
    """Pure: returns the parameters of all groups, with their numbers."""
    found = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {parameter: number for number, parameter in enumerate(found)}


def replace_references(value: Any, parameters: Mapping[Any, int]) -> Any:
    """Pure: returns the value with numbers in the place of parameters."""
    if isinstance(value, Tensor):
        return (PARAMETER, parameters[value]) if value in parameters else value
    if isinstance(value, Mapping):
        return {replace_references(key, parameters): replace_references(part, parameters) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(replace_references(part, parameters) for part in value)
    return value


def restore_references(value: Any, now: Any, parameters: Sequence[Tensor]) -> Any:
    """Local: returns a copy of a saved value with parameters in the place of their numbers. Its tensors are on the device of
    those that are there `now`, else on that of the parameters; a dict that is there is filled, as it may be of another type, or
    referred to elsewhere."""
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
    """Returns the attributes in which an optimiser may keep state; those of torch keep none there."""
    if type(optimizer).__module__.partition(".")[0] == "torch":
        return {}
    parameters = parameters_of(optimizer)
    return {
        name: replace_references(value, parameters)
        for name, value in vars(optimizer).items()
        if name not in OF_TORCH and not name.startswith("_optimizer_")  # hooks
    }


def _copied_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values with their tensors copied; values that cannot be packed as they are."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        try:
            plain, tensors = Packed.of(value)
            found[name] = Packed(plain, {place: tensor.clone() for place, tensor in tensors.items()})
        except UsageError:
            found[name] = value
    return found


def _changed(optimizer: Optimizer, values: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values that differ from those at the start; refuses values that may have changed and cannot be saved."""
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
    """Returns plain values with mappings sorted by their keys."""
    if isinstance(plain, dict) and "mapping" in plain:
        return {"mapping": sorted(([repr(key), _in_order(part)] for key, part in plain["mapping"]), key=lambda pair: pair[0])}
    if isinstance(plain, dict) and "tuple" in plain:
        return {"tuple": _in_order(plain["tuple"])}
    return [_in_order(part) for part in plain] if isinstance(plain, list) else plain


def _bytes_of(tensor: Tensor) -> Tensor:
    """Returns the bytes of the tensor on the host, as a vector of uint8."""
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8)
