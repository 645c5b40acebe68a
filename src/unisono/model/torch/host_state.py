"""What a model keeps on the host and changes while it computes: recorded work would repeat the values of the step it recorded."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

OWN_OF_MODULES = frozenset(vars(nn.Module())) - {"training"}
"""What every module has of torch; parameters and modules among it do not change in a step, and buffers are seen apart."""
MOST_COMPARED = 64
"""Elements of a list, dict or set that are compared."""


class HostState:
    """The state on the host of a model, its loss and the generators, to be compared with that after a step. Local."""

    def __init__(self, model: nn.Module, *others: Any) -> None:
        self._modules = [*model.named_modules(), *((f"the loss {type(one).__name__}", one) for one in others if one is not None)]
        self._attributes = {name: _attributes_of(module) for name, module in self._modules}
        self._generators = _generators()

    def change(self, with_generators: bool = True) -> str:
        """Says what has changed since; empty where nothing has."""
        for name, module in self._modules:
            before, now = self._attributes[name], _attributes_of(module)
            for key in [*before, *now]:
                if before.get(key) != now.get(key):
                    return f"it changes {'.'.join(part for part in (name, key) if part)}, which is not a tensor in place"
        for name, state in _generators().items() if with_generators else ():
            if state != self._generators[name]:
                return f"it draws from the generator of {name} on the host"
        return ""


def _attributes_of(module: Any) -> Mapping[str, Any]:
    """Values by which a change of an object's attributes and buffers is seen."""
    kind = type(module)
    found = {
        name: _mark(value)
        for name, value in vars(module).items()
        if name not in OWN_OF_MODULES
        and not isinstance(getattr(kind, name, None), cached_property)  # which says the same each time
    }
    for name, buffer in getattr(module, "_buffers", {}).items():
        found[name] = id(buffer)
    return found


def _mark(value: Any) -> Any:
    """A value that is another one where this one has changed, at little cost."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple, set, frozenset)) and len(value) <= MOST_COMPARED:
        return type(value).__name__, tuple(_mark(one) for one in value)
    if isinstance(value, dict) and len(value) <= MOST_COMPARED:
        return "dict", tuple((str(key), _mark(one)) for key, one in value.items())
    return id(value), len(value) if hasattr(value, "__len__") and not isinstance(value, (Tensor, nn.Module)) else None


def _generators() -> Mapping[str, Any]:
    """The states of the generators of the host."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    return {
        "torch": bytes(torch.default_generator.get_state().numpy().data),
        "NumPy": (kind, np.asarray(keys).tobytes(), *rest),
        "Python": random.getstate(),
    }
