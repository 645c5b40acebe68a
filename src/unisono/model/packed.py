"""Any nesting of tensors and plain values as what is safe to store: named tensors, and JSON that says where each belongs.

No code is stored, so none can run when it is read back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from unisono.errors import UsageError


def pack(value: Any, tensors: dict[str, Tensor], name: str) -> Any:
    """Returns `value` as plain values; its tensors are put into `tensors` under names that begin with `name`. Otherwise pure."""
    if isinstance(value, Tensor):
        while name in tensors:  # {"a.b": ...} beside {"a": {"b": ...}}
            name += "'"
        tensors[name] = value.detach()
        return {"tensor": name}
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.generic):
        return pack(value.item(), tensors, name)
    if isinstance(value, Mapping):
        for key in value:
            if isinstance(key, Tensor):
                raise UsageError(f"a dict with tensors as keys cannot be saved in a checkpoint ({name}); use names or numbers")
        pairs = [[pack(key, tensors, name), pack(part, tensors, f"{name}.{key}")] for key, part in value.items()]
        return {"mapping": pairs}
    if isinstance(value, (list, tuple)):
        parts = [pack(part, tensors, f"{name}.{place}") for place, part in enumerate(value)]
        return {"tuple": parts} if isinstance(value, tuple) else parts
    raise UsageError(
        f"a value of type {type(value).__name__} cannot be saved in a checkpoint ({name}); use tensors, numbers, text, "
        "and lists, tuples and dicts of them"
    )


def unpack(stored: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Pure: returns the value that `pack` was given; tensors are those of `tensors`, not copies."""
    if isinstance(stored, list):
        return [unpack(part, tensors) for part in stored]
    if not isinstance(stored, dict):
        return stored
    ((kind, held),) = stored.items()
    if kind == "tensor":
        return tensors[held]
    if kind == "tuple":
        return tuple(unpack(part, tensors) for part in held)
    return {unpack(key, tensors): unpack(part, tensors) for key, part in held}
