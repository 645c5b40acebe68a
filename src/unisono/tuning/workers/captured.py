"""What an objective is beyond its source text: variables of enclosing functions, arguments of `functools.partial`, attributes of
its object, and the user's globals that it names. As texts, so that a study can say what has changed."""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import sys
import types
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from enum import Enum
from pathlib import Path, PurePath
from typing import Any

from unisono.files.hashes import sha256_of
from unisono.training.run_folder.local_imports import INSTALLED
from unisono.training.run_folder.provenance import source_of

PLAIN = (type(None), bool, int, float, complex, str, bytes)
MOST_SHOWN, NUM_DIGITS = 60, 12
"""A longer text is recorded by so many digits of its hash."""
MOST_DEPTH = 20
GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")


def captured_by(objective: Any) -> dict[str, str]:
    """Returns what an objective has captured, by name: numbers and texts as they are written, all else by a hash of its content.
    Objects of installed packages count by their type alone, as their state may differ from process to process. Local."""
    texts = _Texts()
    found = dict(texts.parts_of(objective, 0))
    if isinstance(objective, types.FunctionType) and source_of(objective) is None:  # else the study has its source
        found["code"] = texts.text(objective.__code__)
    long = {name: text for name, text in found.items() if len(text) > MOST_SHOWN}
    return found | {name: f"content {hashlib.sha256(text.encode()).hexdigest()[:NUM_DIGITS]}" for name, text in long.items()}


@dataclass
class _Texts:
    """Makes texts that are equal for equal values in every process. Functions and objects that came before are not repeated."""

    _seen: dict[int, Any] = field(default_factory=dict)

    def parts_of(self, value: Any, depth: int) -> Iterator[tuple[str, str]]:
        """Yields the names and texts of all on which a callable depends, besides its own source."""
        if isinstance(value, functools.partial):
            yield from self.parts_of(value.func, depth)
            yield _name_of(value.func), self.source(value.func)
            yield from ((f"argument {number}", self.text(one, depth)) for number, one in enumerate(value.args))
            yield from ((name, self.text(one, depth)) for name, one in value.keywords.items())
            return
        function = getattr(value, "__func__", value)
        if not isinstance(function, types.FunctionType):
            function = inspect.getattr_static(type(value), "__call__", None)
        owner = getattr(value, "__self__", None if function is value else value)
        if owner is not None and self._is_open(owner):
            yield type(owner).__name__, self.source(type(owner))
            yield from ((f"self.{name}", self.text(one, depth)) for name, one in vars(owner).items())
        if isinstance(function, types.FunctionType):
            yield from self._parts_of_function(function, depth)

    def _parts_of_function(self, function: types.FunctionType, depth: int) -> Iterator[tuple[str, str]]:
        """Yields the variables of enclosing functions, the defaults, and the globals that a function names."""
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if cell != types.CellType():  # it is assigned
                yield name, self.text(cell.cell_contents, depth)
        for name, argument in inspect.signature(function).parameters.items():
            if argument.default is not argument.empty:
                yield name, self.text(argument.default, depth)
        for name in _global_names(function.__code__):
            if name in function.__globals__:
                yield name, self.text(function.__globals__[name], depth)

    def text(self, value: Any, depth: int = 0) -> str:
        """Returns the text of a value."""
        kind = type(value)
        if isinstance(value, PLAIN):
            return repr(value)
        if isinstance(value, (PurePath, Enum)):
            return str(value)
        if depth > MOST_DEPTH or id(value) in self._seen:
            return f"a {kind.__name__} as before"
        inside = depth + 1
        if isinstance(value, Mapping):
            return f"{{{', '.join(sorted(f'{self.text(key, inside)}: {self.text(one, inside)}' for key, one in value.items()))}}}"
        if isinstance(value, (list, tuple, set, frozenset)):
            found = [self.text(one, inside) for one in value]
            return f"[{', '.join(sorted(found) if isinstance(value, (set, frozenset)) else found)}]"
        if hasattr(value, "__array__") and not isinstance(value, type):
            return self._text_of_array(value, inside)
        self._seen[id(value)] = value
        if isinstance(value, types.CodeType):
            return f"{value.co_code.hex()} {value.co_names} {self.text(value.co_consts, inside)}"
        if isinstance(value, types.ModuleType):
            file = getattr(value, "__file__", None) if _is_users(value.__name__) else None
            return f"{value.__name__} {sha256_of(Path(file)) if file else ''}"
        if isinstance(value, type):
            return self.source(value)
        if isinstance(value, functools.partial) or (isinstance(value, types.FunctionType) and _is_users(value.__module__)):
            source = "" if isinstance(value, functools.partial) else self.source(value)
            return f"{source} {dict(self.parts_of(value, inside))}"
        if isinstance(value, types.MethodType):
            return f"{value.__name__} of {self.text(value.__self__, inside)}"
        if self._is_open(value):
            return f"{self.source(kind)} {self.text(vars(value), inside)}"
        return f"a {kind.__module__}.{kind.__qualname__} {getattr(value, '__name__', '')}"

    def _text_of_array(self, value: Any, depth: int) -> str:
        """Returns the type, shape and content of an array, a tensor or a table."""
        import numpy as np

        try:
            found = np.asarray(value)
        except (TypeError, ValueError, RuntimeError):  # a type or a device that NumPy does not know, or a parameter of a model
            return f"a {type(value).__name__}"
        if found.dtype.hasobject:
            return f"{found.shape} {self.text(found.tolist(), depth)}"
        if not found.ndim:
            return repr(found.item())
        return f"{found.dtype} {found.shape} {hashlib.sha256(np.ascontiguousarray(found).tobytes()).hexdigest()}"

    def source(self, value: Any) -> str:
        """Returns the name of a function or class and, for one of the user's, its source; its bytecode where there is no source."""
        name = _name_of(value)
        if not _is_users(value.__module__):
            return f"{value.__module__}.{name}"
        text = source_of(value)
        return f"{name} {self.text(getattr(value, '__code__', None)) if text is None else text}"

    def _is_open(self, value: Any) -> bool:
        """Whether the attributes of an object say what it is: one of the user's classes, and plain records."""
        kind = type(value)
        is_record = is_dataclass(value) or kind in (types.SimpleNamespace, Namespace)
        return (
            hasattr(value, "__dict__")
            and not isinstance(value, (type, types.ModuleType))
            and (is_record or _is_users(kind.__module__))
        )


def _global_names(code: types.CodeType) -> list[str]:
    """Returns the names of globals in a function and in the functions inside it, each once and in order."""
    found = [str(one.argval) for one in dis.get_instructions(code) if one.opname in GLOBAL]
    inner = [name for one in code.co_consts if isinstance(one, types.CodeType) for name in _global_names(one)]
    return list(dict.fromkeys((*found, *inner)))


def _is_users(module: str | None) -> bool:
    """Whether a module of this name is the user's: neither of Python nor installed, nor ours."""
    if module in (None, "__main__"):
        return True
    if module.partition(".")[0] in {*sys.stdlib_module_names, __name__.partition(".")[0]}:
        return False
    return not INSTALLED.intersection(Path(getattr(sys.modules.get(module), "__file__", None) or "").parts)


def _name_of(value: Any) -> str:
    """Returns the name of a callable."""
    return str(getattr(value, "__name__", type(value).__name__))
