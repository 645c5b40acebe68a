"""What a search may change: a dimension for each setting, from the annotations of the task's functions or from a file.

[lr]                                  # as --set calls it; in TOML, nested tables mean the same: [optimizer.momentum]
low = 1e-4
high = 1.0
log = true

[optimizer.momentum]
low = 0.0
high = 0.99
when = { optimizer = "sgd" }          # only where that is so; a list for several values

[global_batch]
choice = [32, 64, 128]

[model.width]
fixed = 64                            # not searched, though the task would let it
"""

from __future__ import annotations

import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unisono.algorithms.base import find_algorithm
from unisono.errors import UsageError, unknown_name
from unisono.overrides import FACTORIES, change, hints_of
from unisono.task import Choice, Range, Task

LEAF_KEYS = ("low", "high", "log", "choice", "fixed", "when")
ALGORITHM = "algorithm"
"""A name that `train` has an option for and a task has not."""


@dataclass(frozen=True)
class Dimension:
    """One setting and the values that may be tried."""

    name: str
    """As --set has it: model.width, lr, optimizer.momentum; or algorithm."""
    values: Range | Choice
    is_whole: bool = False
    """Whether the numbers of a Range are whole."""
    when: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Other dimensions, and the values that each must have so that this one means something."""

    def holds(self, value: Any) -> bool:
        """Pure: whether a value lies in it."""
        if isinstance(self.values, Choice):
            return value in self.values.values
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return is_number and self.values.low <= value <= self.values.high and (not self.is_whole or value == int(value))

    def ends(self) -> Sequence[Any]:
        """Pure: all values of a choice, the ends of a range."""
        if isinstance(self.values, Choice):
            return self.values.values
        kind = int if self.is_whole else float
        return kind(self.values.low), kind(self.values.high)

    def __str__(self) -> str:
        if isinstance(self.values, Choice):
            return f"{self.name}: one of {', '.join(map(str, self.values.values))}"
        return f"{self.name}: {self.values.low:g} to {self.values.high:g}{', by powers' if self.values.log else ''}"


@dataclass(frozen=True)
class Space:
    """All dimensions, those that others depend on first; and settings that a file has fixed."""

    dimensions: Sequence[Dimension]
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def means_something(self, dimension: Dimension, values: Mapping[str, Any]) -> bool:
        """Pure: whether a dimension takes part where the others have these values."""
        known = {**self.fixed, **values}
        return all(name in known and known[name] in wanted for name, wanted in dimension.when.items())

    def described(self) -> list[dict[str, Any]]:
        """Pure: in plain values, by which a study knows its space again."""
        return [
            {
                "name": one.name,
                **({"choice": list(one.values.values)} if isinstance(one.values, Choice) else _range(one.values)),
                "whole": one.is_whole,
                "when": {name: list(wanted) for name, wanted in one.when.items()},
            }
            for one in self.dimensions
        ]


def space_of(task: Task, file: Path | None = None) -> Space:
    """Local, blocking: what the annotations of the task say, and a file in their place where it says something. Refuses what
    nothing reads, and a space without dimensions."""
    found = {one.name: one for one in _annotated(task)}
    fixed: dict[str, Any] = {}
    for name, leaf in _leaves(_read(file)) if file is not None else ():
        where = f"{name} in {file}"
        if "fixed" in leaf:
            if len(leaf) > 1:
                raise UsageError(f"{where} is fixed and has other keys too; leave one out")
            found.pop(name, None)
            fixed[name] = leaf["fixed"]
        else:
            found[name] = _dimension(task, name, leaf, where)
    if not found:
        raise UsageError(
            "there is nothing to search: annotate arguments of the model, e.g. width: Annotated[int, un.Range(16, 256, log=True)], "
            "or give a file (--space)"
        )
    for dimension in found.values():
        _check_conditions(dimension, found, fixed)
    space = Space(_ordered(found), fixed)
    for name, value in (*fixed.items(), *((one.name, value) for one in found.values() for value in one.ends())):
        _check_name(task, name, value)
    return space


def _annotated(task: Task) -> Iterator[Dimension]:
    for factory in FACTORIES:
        for name, hint in hints_of(getattr(task, factory)).items():
            if typing.get_origin(hint) is typing.Annotated:
                inner, *extras = typing.get_args(hint)
                for extra in extras:
                    if isinstance(extra, (Range, Choice)):
                        yield Dimension(f"{factory}.{name}", extra, inner is int)


def _read(file: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise UsageError(f"cannot read {file} (--space): {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} (--space) is no TOML: {error}") from error


def _leaves(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    for key, value in table.items():
        name = f"{above}{key}"
        if not isinstance(value, Mapping):
            raise UsageError(
                f"{name} = {value!r} in the space (--space) is no dimension; write [{name}] with low and high, choice, or fixed"
            )
        if not value:
            raise UsageError(f"[{name}] in the space (--space) is empty; give low and high, choice, or fixed")
        leaf = {one: part for one, part in value.items() if one in LEAF_KEYS or not isinstance(part, Mapping)}
        if leaf:
            yield name, leaf
        yield from _leaves({one: part for one, part in value.items() if one not in leaf}, f"{name}.")


def _dimension(task: Task, name: str, leaf: Mapping[str, Any], where: str) -> Dimension:
    for key in leaf:
        if key not in LEAF_KEYS:
            raise unknown_name(f"key of {where}", key, LEAF_KEYS)
    when = {other: wanted if isinstance(wanted, list) else [wanted] for other, wanted in leaf.get("when", {}).items()}
    if "choice" in leaf:
        if {"low", "high", "log"} & leaf.keys():
            raise UsageError(f"{where} has choice and low or high; leave one out")
        if not isinstance(leaf["choice"], list) or not leaf["choice"]:
            raise UsageError(f"choice of {where} must be a list with at least one value; received {leaf['choice']!r}")
        return Dimension(name, Choice(*leaf["choice"]), False, when)
    if not {"low", "high"} <= leaf.keys():
        raise UsageError(f"{where} needs low and high, or choice, or fixed")
    for key in ("low", "high"):
        if isinstance(leaf[key], bool) or not isinstance(leaf[key], (int, float)):
            raise UsageError(f"{key} of {where} must be a number; received {leaf[key]!r}")
    try:
        values = Range(leaf["low"], leaf["high"], bool(leaf.get("log", False)))
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    return Dimension(name, values, _is_whole(task, name, values), when)


def _is_whole(task: Task, name: str, values: Range) -> bool:
    """By the type of what it sets; where that is not known, by how its ends are written."""
    head, dot, rest = name.partition(".")
    hints = hints_of(getattr(task, head)) if dot and head in FACTORIES else {} if dot else typing.get_type_hints(Task)
    hint = hints.get(rest if dot else head)
    if typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    kinds = {hint, *typing.get_args(hint)}
    if int in kinds or float in kinds:
        return float not in kinds
    return isinstance(values.low, int) and isinstance(values.high, int)


def _check_conditions(dimension: Dimension, found: Mapping[str, Dimension], fixed: Mapping[str, Any]) -> None:
    for other, wanted in dimension.when.items():
        if other == dimension.name or (other not in found and other not in fixed):
            raise UsageError(
                f"{dimension.name} depends on {other} (when), which is no other dimension of the space; name one, or fix it"
            )
        for value in wanted:
            if other in found and not found[other].holds(value):
                raise UsageError(f"{dimension.name} depends on {other} being {value!r} (when), which it never is: {found[other]}")


def _ordered(found: Mapping[str, Dimension]) -> list[Dimension]:
    """Those that others depend on first."""
    ordered: dict[str, Dimension] = {}

    def add(name: str, above: tuple[str, ...]) -> None:
        if name in above:
            raise UsageError(f"dimensions of the space depend on each other in a circle: {' -> '.join((*above, name))}")
        if name in found and name not in ordered:
            for other in found[name].when:
                add(other, (*above, name))
            ordered[name] = found[name]

    for name in found:
        add(name, ())
    return list(ordered.values())


def _check_name(task: Task, name: str, value: Any) -> None:
    """Refuses what `train` would refuse."""
    if name == ALGORITHM:
        find_algorithm(value)
    else:
        change(task, {name: value})


def _range(values: Range) -> dict[str, Any]:
    return {"low": values.low, "high": values.high, "log": values.log}
