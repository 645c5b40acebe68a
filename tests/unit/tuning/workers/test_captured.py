"""Two objectives of the same source text are told apart by what they have captured, in every process alike."""

from __future__ import annotations

import functools
import logging
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unisono.tuning.workers.captured import captured_by

LOG = logging.getLogger("objective")
DRAW = random.Random()
settings: dict[str, Any] = {}


def with_target(trial: Any, target: Any) -> Any:
    LOG.debug("called")
    return trial.suggest_float("x", -5, 5) - target + DRAW.random()


def closure(target: Any) -> Callable[[Any], Any]:
    def objective(trial: Any) -> Any:
        return trial.suggest_float("x", -5, 5) - target

    return objective


def with_default(value: Any) -> Callable[[Any], Any]:
    def objective(trial: Any, target: Any = value) -> Any:
        return trial.suggest_float("x", -5, 5) - target

    return objective


def inner(value: Any) -> Callable[[Any], Any]:
    """The target is that of a function that the objective calls."""
    loss = closure(value)
    return lambda trial: loss(trial)


def of_globals(value: Any) -> Callable[[Any], Any]:
    """As in a notebook, where a cell sets a global to another value."""
    code = "def objective(trial):\n    return trial.suggest_float('x', -5, 5) - TARGET"
    names: dict[str, Any] = {"__name__": "__main__", "TARGET": value}
    exec(code, names)
    return names["objective"]  # type: ignore[no-any-return]


def of_constants(value: Any) -> Callable[[Any], Any]:
    """Typed at a prompt, where no source text is known."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(f"def objective(trial):\n    return trial.suggest_float('x', -5, 5) - {value!r}", names)
    return names["objective"]  # type: ignore[no-any-return]


class Object:
    def __init__(self, target: Any) -> None:
        self.target = target

    def __call__(self, trial: Any) -> Any:
        return trial.suggest_float("x", -5, 5) - self.target

    def method(self, trial: Any) -> Any:
        return self(trial)


@dataclass
class Settings:
    target: Any


WAYS: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "closure": closure,
    "partial by name": lambda value: functools.partial(with_target, target=value),
    "partial by place": lambda value: functools.partial(lambda target, trial: with_target(trial, target), value),
    "partial of a closure": lambda value: functools.partial(closure(value)),
    "default": with_default,
    "function that it calls": inner,
    "global": of_globals,
    "constant of a function without source": of_constants,
    "callable object": Object,
    "method": lambda value: Object(value).method,
    "attribute of a record": lambda value: closure(Settings(value)),
}


@pytest.mark.parametrize("way", WAYS)
def test_another_target_makes_another_objective(way: str) -> None:
    make = WAYS[way]
    assert captured_by(make(-3)) == captured_by(make(-3)) != captured_by(make(4))
    assert captured_by(make(4)) != captured_by(make(4.0))


VALUES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "array": (lambda: np.arange(1000.0), lambda: np.arange(1000.0) + (np.arange(1000) == 500)),
    "tensor": (lambda: torch.arange(9), lambda: torch.arange(1, 10)),
    "NumPy's number": (lambda: np.float32(1), lambda: np.float32(2)),
    "set": (lambda: {"a", "b", "c"}, lambda: {"a", "b", "d"}),
    "nested": (lambda: {"a": [1, (2, {3: None})]}, lambda: {"a": [1, (2, {3: 4})]}),
    "path": (lambda: Path("a"), lambda: Path("b")),
    "function": (lambda: np.sin, lambda: np.cos),
    "class": (lambda: torch.optim.SGD, lambda: torch.optim.Adam),
}


@pytest.mark.parametrize("kind", VALUES)
def test_values_of_many_kinds_count_by_their_content(kind: str) -> None:
    value, other = VALUES[kind]
    assert captured_by(closure(value())) == captured_by(closure(value())) != captured_by(closure(other()))


def test_generators_loggers_and_circles_do_not_make_another_objective() -> None:
    circle: list[Any] = []
    circle.append(circle)
    for value in (lambda: np.random.default_rng(), lambda: random.Random(), lambda: LOG, lambda: circle):
        assert captured_by(closure(value())) == captured_by(closure(value()))


def test_short_values_are_shown_and_long_ones_are_not() -> None:
    assert captured_by(closure(-3)) == {"target": "-3"}
    assert captured_by(closure("x" * 1000))["target"].startswith("content ")


ELSEWHERE = """
import functools, json, sys
from dataclasses import dataclass, field

@dataclass
class Settings:
    names: set = field(default_factory=lambda: {"a", "b", "c", "d"})

SETTINGS, TABLE = Settings(), {"x": {1, 2}, "y": frozenset("abc")}

def helper(x):
    return x if x in SETTINGS.names else other(x)

def other(x):
    return helper(x) in ("a", "b") and x in {"p", "q", "r"}

def objective(trial, target):
    return helper(trial) + target + len(TABLE)

from unisono.tuning.workers.captured import captured_by
print(json.dumps(captured_by(functools.partial(objective, target={"k", "l", "m"}))))
"""


def test_the_texts_are_the_same_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text(ELSEWHERE)
    command = [sys.executable, str(tmp_path / "elsewhere.py")]
    found = {subprocess.run(command, check=True, capture_output=True, env={"PYTHONHASHSEED": seed}).stdout for seed in "123"}
    assert len(found) == 1 and b"target" in found.pop()
