"""What a model keeps on the host and changes while it computes: recorded work would repeat the values of the step it recorded."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from functools import cached_property
from types import CellType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor, nn

OWN_OF_MODULES = frozenset(vars(nn.Module())) - {"training"}
"""What every module has of torch; parameters and modules among it do not change in a step, and buffers are seen apart."""
MOST_BYTES = 1 << 20
"""Size of a NumPy array whose values are compared."""
MOST_COMPARED = 64
"""Elements of a list, dict or set that are compared."""


class HostState:
    """The state on the host of a model, its loss and the generators, to be compared with that after a step. Local."""

    def __init__(self, model: nn.Module, loss: Any = None, seeded: tuple[str, ...] = ()) -> None:
        """`seeded` are generators that each repetition seeds, as those of the device."""
        self._modules = [*model.named_modules(), *_modules_of_loss(loss)]
        self._seeded = seeded
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
            if state != self._generators[name] and name not in self._seeded:
                return f"it draws from the generator of {name} on the host"
        return ""


def _modules_of_loss(loss: Any) -> list[tuple[str, Any]]:
    """The objects of a loss that may keep something: a module or an object of the user, or the one whose method it is."""
    loss = getattr(loss, "function", loss)
    loss = getattr(loss, "__self__", loss)
    name = f"the loss {getattr(loss, '__name__', type(loss).__name__)}"
    if isinstance(loss, nn.Module):
        return [(".".join(part for part in (name, inner) if part), module) for inner, module in loss.named_modules()]
    cells = getattr(loss, "__closure__", None) or ()
    closure = SimpleNamespace(**{f"closure_{number}": cell.cell_contents for number, cell in enumerate(cells) if _is_filled(cell)})
    return [*([(name, loss)] if hasattr(loss, "__dict__") else []), (f"{name} (its closure)", closure)]


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _attributes_of(module: Any) -> Mapping[str, Any]:
    """Values by which a change of an object's attributes and buffers is seen."""
    kept = ((name, value) for name, value in vars(module).items() if name not in OWN_OF_MODULES)
    found = {name: _mark(value) for name, value in kept if not isinstance(getattr(type(module), name, None), cached_property)}
    for name, buffer in getattr(module, "_buffers", {}).items():
        found[name] = _Same(buffer)
    return found


class _Same:
    """Equal for one and the same object. It is kept, as the address of one that is gone may be that of the next."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)


def _is_object_of_user(value: Any) -> bool:
    """Whether an object may keep values of its own: no tensor or module, which are seen by themselves, and no class or function."""
    others = (Tensor, nn.Module, type, FunctionType, MethodType, ModuleType, torch.device, torch.dtype)
    return not isinstance(value, others) and isinstance(getattr(value, "__dict__", None), dict)


def _mark(value: Any, depth: int = 2) -> Any:
    """A value that is another one where this one has changed, at little cost; of objects, as deep as this."""
    if value is None or isinstance(value, (bool, int, float, str, np.generic)):
        return repr(value)  # so that a NaN is equal to itself
    if isinstance(value, np.ndarray) and value.size <= MOST_COMPARED:
        return "array", value.shape, repr(value.tolist())
    if isinstance(value, (list, tuple, set, frozenset, deque)) and len(value) <= MOST_COMPARED:
        return type(value).__name__, tuple(_mark(one, depth) for one in value)
    if isinstance(value, dict) and len(value) <= MOST_COMPARED:
        return "dict", tuple((str(key), _mark(one, depth)) for key, one in value.items())
    if isinstance(value, (np.random.Generator, np.random.RandomState)):
        return "generator", repr((value.bit_generator if isinstance(value, np.random.Generator) else value._bit_generator).state)
    if isinstance(value, random.Random):
        return "generator", value.getstate()
    if isinstance(value, torch.Generator):
        return "generator", bytes(value.get_state().numpy().data)
    if isinstance(value, np.ndarray) and value.nbytes <= MOST_BYTES:
        return "array", value.shape, crc32(np.ascontiguousarray(value).view(np.uint8).data)
    if depth and _is_object_of_user(value):
        inner = tuple((name, _mark(one, depth - 1)) for name, one in vars(value).items())
        return _Same(value), inner
    return _Same(value), len(value) if hasattr(value, "__len__") and not isinstance(value, (Tensor, nn.Module)) else None


def _generators() -> Mapping[str, Any]:
    """The states of the generators of the host."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    return {
        "torch": bytes(torch.default_generator.get_state().numpy().data),
        "NumPy": (kind, np.asarray(keys).tobytes(), *rest),
        "Python": random.getstate(),
    }
