"""What is made is complete: nobody sets attributes of another object afterwards, and nobody hands long rows of arguments around."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import MappingProxyType

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "unisono"
COMPLETE = ("run.py", "training", "keras/_impl")
"""Where no function sets attributes of an object but its own."""
SHORT = ("run.py", "training/frontends", "training/server")
"""Where no function has, and no call hands over, more than `MOST` arguments by position."""
MOST = 6

EXCEPTIONS = MappingProxyType(
    {
        "training/determinism.py": ("setattr",),  # PyTorch's switches are attributes of its modules
        "training/frontends/torchmetrics_states.py": ("setattr",),  # metrics of TorchMetrics take a communicator so
        "training/frontends/try_out.py": ("training",),  # the mode of one torch module without that of its children
        "keras/_impl/callbacks.py": ("stop_training", "learning_rate"),  # where Keras's callbacks look, and what they set
        "keras/_impl/fitting.py": ("epoch", "history"),  # Keras's History
        "keras/_impl/own_numbers.py": ("__setattr__",),  # metrics of Keras that sum over the workers
        "keras/_impl/own_updates.py": ("__setattr__", "setattr", "delattr"),  # the updates of Keras's optimisers
        "keras/_impl/shared_model.py": ("__setattr__",),  # fit, evaluate and predict of a Keras model become ours
        "keras/_impl/strategy.py": ("__new__",),  # within `scope` every Keras model that is made
    }
)
"""File -> attributes that belong to other packages, which have no other way to be told."""


def files(parts: Iterable[str]) -> Iterator[tuple[str, ast.Module]]:
    for part in parts:
        place = PACKAGE / part
        for file in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            yield file.relative_to(PACKAGE).as_posix(), ast.parse(file.read_text())


def assigned_outside(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of every attribute that is set on something else than self or cls."""
    for node in ast.walk(tree):
        is_own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)) and not is_own:
            yield node.lineno, node.attr
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name in ("setattr", "delattr", "__setattr__"):
                yield node.lineno, name


def long_rows(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            named = [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            if len(named) - (named[:1] in (["self"], ["cls"])) > MOST:
                yield node.lineno, f"{node.name} has {len(named)} parameters"
        elif isinstance(node, ast.Call) and len(node.args) > MOST:
            yield node.lineno, f"{ast.unparse(node.func)} is given {len(node.args)} arguments by position"


def test_no_attribute_is_set_from_outside() -> None:
    found = [
        f"{name}:{line} {attribute}"
        for name, tree in files(COMPLETE)
        for line, attribute in assigned_outside(tree)
        if attribute not in EXCEPTIONS.get(name, ())
    ]
    assert not found, "complete objects when they are made, or give them a method:\n" + "\n".join(found)


def test_every_exception_is_needed() -> None:
    used = {(name, attribute) for name, tree in files(COMPLETE) for _, attribute in assigned_outside(tree)}
    assert {(name, attribute) for name, attributes in EXCEPTIONS.items() for attribute in attributes} <= used


def test_no_function_takes_or_gives_a_long_row_of_arguments() -> None:
    found = [f"{name}:{line} {what}" for name, tree in files(SHORT) for line, what in long_rows(tree)]
    assert not found, "group what belongs together in a record:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "code",
    [
        "def f(a):\n    a.b = 1",
        "def f(a):\n    a.b += 1",
        "def f(self):\n    self.a.b = 1",
        "def f(a):\n    a.b, c = 1, 2",
        "def f(a):\n    a[0].b: int = 1",
        "def f(a):\n    del a.b",
        "def f(a):\n    for a.b in (1, 2):\n        pass",
        "def f(a):\n    with a as a.b:\n        pass",
        "def f(a):\n    setattr(a, 'b', 1)",
        "def f(a):\n    object.__setattr__(a, 'b', 1)",
    ],
)
def test_a_breach_is_found(code: str) -> None:
    assert list(assigned_outside(ast.parse(code)))


@pytest.mark.parametrize(
    "code", ["class A:\n    def f(self):\n        self.b = 1", "def f(a):\n    a['b'] = 1", "a = 1", "print(a.b)"]
)
def test_what_is_allowed_is_not_reported(code: str) -> None:
    assert not list(assigned_outside(ast.parse(code)))


@pytest.mark.parametrize(
    "code", ["def f(a, b, c, d, e, g, h): ...", "def f(self, a, b, c, d, e, *, g, h): ...", "f(1, 2, 3, 4, 5, 6, 7)"]
)
def test_a_long_row_is_found(code: str) -> None:
    assert list(long_rows(ast.parse(code)))


@pytest.mark.parametrize("code", ["def f(self, a, b, c, d, e, g): ...", "f(a=1, b=2, c=3, d=4, e=5, g=6, h=7)"])
def test_a_row_that_is_short_enough_is_not_reported(code: str) -> None:
    assert not list(long_rows(ast.parse(code)))
