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

[model.norm]
none = true                           # fixed to None, for which TOML has no value
"""

from __future__ import annotations

import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from unisono.errors import UsageError, unknown_name
from unisono.task.overrides import FACTORIES, change, hints_of
from unisono.task.task import Choice, Range, Task
from unisono.tuning.search.own_settings import ALGORITHM, own_name, own_setting, takes_whole_numbers

LEAF_KEYS = ("low", "high", "log", "choice", "fixed", "none", "when")
PLAIN = (str, bool, int, float, type(None))


@dataclass(frozen=True)
class Dimension:
    """One setting and the values that may be tried."""

    name: str
    """As --set has it: model.width, lr, optimizer.momentum; or algorithm."""
    values: Range | Choice
    is_integer: bool = False
    """Whether the numbers of a Range are whole."""
    when: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Other dimensions, and the values that each must have so that this one means something."""

    def contains(self, value: Any) -> bool:
        """Whether a value lies in this dimension. Pure."""
        if isinstance(self.values, Choice):
            return value in self.values.values
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return is_number and self.values.low <= value <= self.values.high and (not self.is_integer or value == int(value))

    def boundary_values(self) -> Sequence[Any]:
        """Returns all values of a choice, or the two ends of a range. Pure."""
        if isinstance(self.values, Choice):
            return self.values.values
        kind = int if self.is_integer else float
        return kind(self.values.low), kind(self.values.high)

    def __str__(self) -> str:
        if isinstance(self.values, Choice):
            return f"{self.name}: one of {', '.join(map(str, self.values.values))}"
        return f"{self.name}: {self.values.low:g} to {self.values.high:g}{', on a log scale' if self.values.log else ''}"


@dataclass(frozen=True)
class Space:
    """All dimensions, those that others depend on first; and settings that a file has fixed."""

    dimensions: Sequence[Dimension]
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def is_active(self, dimension: Dimension, values: Mapping[str, Any]) -> bool:
        """Whether a dimension takes part where the others have these values. Pure."""
        known = {**self.fixed, **values}
        return all(name in known and known[name] in wanted for name, wanted in dimension.when.items())

    def largest(self, name: str, default: Any) -> Any:
        """Returns the largest value that a number may have in any trial; `default` is its value where it is not searched. Pure."""
        found = [one for one in self.dimensions if one.name == name]
        return max([value for one in found for value in one.boundary_values()] + [default] * (not found or bool(found[0].when)))

    def to_dict(self) -> dict[str, Any]:
        """Returns the space in plain values, as study.json keeps it. Pure."""
        dimensions = [
            {
                "name": one.name,
                **({"choice": list(one.values.values)} if isinstance(one.values, Choice) else _range(one.values)),
                "whole": one.is_integer,
                "when": {name: list(wanted) for name, wanted in one.when.items()},
            }
            for one in self.dimensions
        ]
        return {"dimensions": dimensions, "fixed": dict(self.fixed)}


def space_of(task: Task, file: Path | None = None, given: Mapping[str, Any] | None = None) -> Space:
    """Returns the space that the task's annotations declare, changed by a file where one is given. Refuses settings that have no
    effect, and a space without dimensions. Conditions also see settings that are `given` (--set); a condition that these fulfil is
    dropped. Local, blocking."""
    given = given or {}
    found = {one.name: one for one in _annotated_dimensions(task)}
    fixed: dict[str, Any] = {}
    named = set[str]()
    for name, leaf in _leaves(_read(file)) if file is not None else ():
        where = f"{name} in {file}"
        if name in named:
            raise UsageError(f"{where} is given twice; give it once")
        named.add(name)
        if "fixed" in leaf or "none" in leaf:
            found.pop(name, None)
            fixed[name] = _fixed_value(leaf, where)
        else:
            found[name] = _dimension(name, leaf, where)
    if not found and not fixed:
        raise UsageError(
            "there is nothing to search: annotate arguments of the model, e.g. width: Annotated[int, un.Range(16, 256, log=True)], "
            "give the task a space, e.g. space={'lr': un.Range(0.001, 1, log=True)}, or give a file (--space)"
        )
    for name, one in found.items():
        if isinstance(one.values, Range):
            takers = _possible_values(task, name.partition(".")[0], found, {**given, **fixed})
            found[name] = replace(one, is_integer=takes_whole_numbers(task, name, one.values, takers))
    for dimension in found.values():
        _check_values(dimension)
        _check_conditions(dimension, found, {**given, **fixed})
    for name, one in found.items():
        found[name] = replace(one, when={other: wanted for other, wanted in one.when.items() if other in found or other in fixed})
    space = Space(_in_dependency_order(found), fixed)
    usual = {
        **fixed,
        **{one.name: one.boundary_values()[0] for one in found.values()},
    }  # so that arguments without a default have a value
    for name, value in (*fixed.items(), *((one.name, value) for one in found.values() for value in one.boundary_values())):
        try:
            _check_name(task, {**usual, name: value})
        except UsageError as error:
            where = "the space of the task" if file is None else f"the space ({file}, or the task's own)"
            raise UsageError(f"{where}: {error}") from error
    return space


def _annotated_dimensions(task: Task) -> Iterator[Dimension]:
    """Yields the dimensions that the task declares: annotated arguments of its factories, then `task.space`."""
    for factory in FACTORIES:
        for name, hint in hints_of(getattr(task, factory)).items():
            if typing.get_origin(hint) is typing.Annotated:
                for extra in typing.get_args(hint)[1:]:
                    if isinstance(extra, (Range, Choice)):
                        yield Dimension(f"{factory}.{name}", extra, when=_as_lists(extra.when))
    for name, values in task.space.items():
        yield Dimension(name, values, when=_as_lists(values.when))


def _possible_values(task: Task, head: str, found: Mapping[str, Dimension], fixed: Mapping[str, Any]) -> Sequence[Any]:
    """Returns the values that a setting may have in the trials, e.g. the optimisers among which one is searched; one at least."""
    if head not in fixed and head in found and isinstance(values := found[head].values, Choice):
        return values.values
    return (own_name(task, head, fixed),)


def _read(file: Path) -> Mapping[str, Any]:
    """Returns the contents of a TOML file; refuses one that cannot be read."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {file} (--space): {error.strerror}; check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} (--space) is not valid TOML: {error}") from error


def _leaves(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields (dotted name, table) of every dimension in nested TOML tables."""
    for key, value in table.items():
        name = f"{above}{key}"
        if not isinstance(value, Mapping):
            raise UsageError(
                f"{name} = {value!r} in the space (--space) is not a dimension; write [{name}] with low and high, choice, or fixed"
            )
        if not value:
            raise UsageError(f"[{name}] in the space (--space) is empty; give low and high, choice, or fixed")
        leaf = {one: part for one, part in value.items() if not isinstance(part, Mapping)}
        if "when" in value and leaf:  # else it is an argument of that name
            leaf["when"] = value["when"]
        if leaf:
            yield name, leaf
        yield from _leaves({one: part for one, part in value.items() if one not in leaf}, f"{name}.")


def _fixed_value(leaf: Mapping[str, Any], where: str) -> Any:
    """Returns the value that a TOML table fixes; refuses a table that also says something else."""
    key = "fixed" if "fixed" in leaf else "none"
    if len(leaf) > 1:
        raise UsageError(f"{where} has {key} and other keys; leave out {key}, or the others")
    if key == "none" and leaf[key] is not True:
        raise UsageError(f"none of {where} must be true, which fixes it to None; received {leaf[key]!r}")
    return leaf.get("fixed")


def _dimension(name: str, leaf: Mapping[str, Any], where: str) -> Dimension:
    """Makes a dimension from its TOML table (`where` in messages); refuses keys and values that make no sense."""
    for key in leaf:
        if key not in LEAF_KEYS:
            raise unknown_name("key", key, LEAF_KEYS, f"of {where}")
    if not isinstance(leaf.get("when", {}), Mapping):
        raise UsageError(
            f"when of {where} must name other dimensions, e.g. when = {{ optimizer = 'sgd' }}; received {leaf['when']!r}"
        )
    when = _as_lists(dict(_flatten(leaf.get("when", {}))))
    if "choice" in leaf:
        if {"low", "high", "log"} & leaf.keys():
            raise UsageError(f"{where} has choice and also low, high or log; leave out choice, or the others")
        if not isinstance(leaf["choice"], list) or not leaf["choice"]:
            raise UsageError(f"choice of {where} must be a list with at least one value; received {leaf['choice']!r}")
        return Dimension(name, Choice(*leaf["choice"]), False, when)
    if not {"low", "high"} <= leaf.keys():
        raise UsageError(f"{where} needs low and high, or choice, or fixed")
    for key in ("low", "high"):
        if isinstance(leaf[key], bool) or not isinstance(leaf[key], (int, float)):
            raise UsageError(f"{key} of {where} must be a number; received {leaf[key]!r}")
    if not isinstance(leaf.get("log", False), bool):
        raise UsageError(f"log of {where} must be true or false; received {leaf['log']!r}")
    try:
        values = Range(leaf["low"], leaf["high"], leaf.get("log", False))
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    return Dimension(name, values, when=when)


def _as_lists(when: Mapping[str, Any]) -> dict[str, Sequence[Any]]:
    """Returns the conditions with each wanted value or tuple as a list."""
    return {name: list(wanted) if isinstance(wanted, (list, tuple)) else [wanted] for name, wanted in when.items()}


def _flatten(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (dotted name, value) of nested tables."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _check_values(dimension: Dimension) -> None:
    """Refuses a search for data, choices that cannot be written down, and whole-number ranges without whole ends."""
    if dimension.name == "data_seed":
        raise UsageError("trials are compared on the same data, so data_seed cannot be searched; fix it (--set data_seed=1)")
    if isinstance(dimension.values, Choice):
        for value in dimension.values.values:
            if not isinstance(value, PLAIN):
                raise UsageError(
                    f"a choice of {dimension.name} is {value!r}, which a study cannot record: it is not a text, a number, true, "
                    "false or none. Use names as choices, and look up the object by its name in the model"
                )
    elif dimension.is_integer and (dimension.values.low % 1 or dimension.values.high % 1):
        raise UsageError(
            f"{dimension.name} takes whole numbers, and its range is {dimension.values.low:g} to {dimension.values.high:g}; give "
            "whole numbers as its ends"
        )


def _check_conditions(dimension: Dimension, found: Mapping[str, Dimension], fixed: Mapping[str, Any]) -> None:
    """Refuses conditions that name no other dimension or can never hold."""
    for other, wanted in dimension.when.items():
        if not wanted or (other in fixed and fixed[other] not in wanted):
            raise UsageError(f"{dimension.name} can never be active: it depends on {other} being one of {list(wanted)} (when)")
        if other == dimension.name or (other not in found and other not in fixed):
            raise UsageError(
                f"{dimension.name} depends on {other} (when), which is not another dimension of the space; name one, or fix {other}"
            )
        for value in wanted:
            if other in found and not found[other].contains(value):
                raise UsageError(f"{dimension.name} depends on {other} being {value!r} (when), which it cannot be: {found[other]}")


def _in_dependency_order(found: Mapping[str, Dimension]) -> list[Dimension]:
    """The dimensions, those that others depend on first."""
    ordered: dict[str, Dimension] = {}

    def add(name: str, above: tuple[str, ...]) -> None:
        if name in above:
            raise UsageError(
                f"dimensions of the space depend on each other in a circle (when): {' -> '.join((*above, name))}; remove one "
                "condition"
            )
        if name in found and name not in ordered:
            for other in found[name].when:
                add(other, (*above, name))
            ordered[name] = found[name]

    for name in found:
        add(name, ())
    return list(ordered.values())


def _check_name(task: Task, values: Mapping[str, Any]) -> None:
    """Refuses settings that have no effect and values of a wrong type, as `train` does."""
    if ALGORITHM in values:
        from unisono.algorithms.base import find_algorithm  # it loads PyTorch, which a supervisor must not

        find_algorithm(values[ALGORITHM])
    change(task, {name: value for name, value in values.items() if name != ALGORITHM})


def _range(values: Range) -> dict[str, Any]:
    """Returns low, high and log of a range as a dict."""
    return {"low": values.low, "high": values.high, "log": values.log}


def space_from_dict(described: Mapping[str, Any]) -> Space:
    """Returns the space that `Space.to_dict` has described. Pure."""
    dimensions = [
        Dimension(
            one["name"],
            Choice(*one["choice"]) if "choice" in one else Range(one["low"], one["high"], one["log"]),
            one["whole"],
            one["when"],
        )
        for one in described["dimensions"]
    ]
    return Space(dimensions, described["fixed"])


def defaults_of(task: Task, space: Space, fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the task's own values of the dimensions, as far as they lie in the space; a search begins with them. Pure."""
    found: dict[str, Any] = {}
    for dimension in space.dimensions:
        taker = own_name(task, dimension.name.partition(".")[0], fixed)
        value = fixed.get(dimension.name, own_setting(task, dimension.name, taker).value)
        value = int(value) if dimension.is_integer and isinstance(value, float) and value.is_integer() else value
        if dimension.contains(value) and Space(space.dimensions, fixed).is_active(dimension, found):
            found[dimension.name] = value
    return found
