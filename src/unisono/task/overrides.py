"""`--set`: changes to a task by name. A name that nothing reads is refused, with the nearest names."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from unisono.errors import UsageError, unknown_name
from unisono.task.name_value import show_value
from unisono.task.options import Option, options_of
from unisono.task.task import Choice, Range, Task

OPTION_FIELDS: Mapping[str, str] = {
    "optimizer": "optimizer_options",
    "schedule": "schedule_options",
    "loss": "loss_options",
}
FACTORIES = ("model", "data")
COMMON_OPTIONS = ("optimizer.momentum", "optimizer.weight_decay")
"""Options that most optimizers have."""
SETTINGS: Mapping[str, Option] = {one.field: one for one in options_of(Task)}
PLAIN = tuple(SETTINGS)
"""Settings that --set may name without a dot."""
FLAGS: Mapping[str, str] = {name: one.flag for name, one in SETTINGS.items() if one.flag is not None}
"""Settings of a task that have an option of their own; every other is set with --set."""


@dataclass(frozen=True)
class ResolvedTask:
    """A task with the changes applied, and the arguments of its factories and of the algorithm."""

    task: Task
    model: Mapping[str, Any]
    data: Mapping[str, Any]
    algorithm: Mapping[str, Any]
    simulate: Mapping[str, Any] = field(default_factory=dict)
    division: Mapping[str, Any] | None = None
    """The division of the data, as in `TrainConfig`."""


def with_settings(changes: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Pure: returns the changes of --set together with the settings that have an option of their own; refuses a setting given
    twice."""
    for name in settings:
        if name in changes:
            raise UsageError(f"{FLAGS.get(name, f'--{name}')} and --set {name} are the same setting; give only one")
    return {**changes, **settings}


def change(task: Task, changes: Mapping[str, Any]) -> ResolvedTask:
    """Pure: returns the task with these changes; refuses names that nothing reads and values of a wrong type."""
    parts: dict[str, dict[str, Any]] = {name: {} for name in (*FACTORIES, *OPTION_FIELDS, "algorithm", "simulate")}
    plain: dict[str, Any] = {}
    for name, value in changes.items():
        head, dot, rest = name.partition(".")
        if dot:
            if head not in parts:
                raise unknown_name("prefix", head, parts, "in --set")
            parts[head][rest] = value
        else:
            if head in FACTORIES:
                raise UsageError(f"--set {head} needs the name of an argument: --set {head}.NAME=VALUE")
            if head not in PLAIN:
                listed = (*PLAIN, *(f"{one}.NAME" for one in parts))
                raise unknown_name("name", head, listed, "in --set", _dotted_names(task))
            plain[head] = _setting_value(head, value)
    for head, target in OPTION_FIELDS.items():
        if parts[head]:
            plain[target] = {**getattr(task, target), **parts[head]}
    return ResolvedTask(
        replace(task, **plain),
        arguments(task.model, "model", parts["model"]),
        arguments(task.data, "data", parts["data"]),
        parts["algorithm"],
        parts["simulate"],
    )


def _setting_value(name: str, value: Any) -> Any:
    """Pure: returns the value of a setting of the task, checked as the task checks it but under the name that the user typed."""
    what, setting = FLAGS.get(name, f"--set {name}"), SETTINGS[name]
    if setting.kind not in ("int", "float"):
        value = _converted(what, value, typing.get_type_hints(Task)[name])
    return setting.validate(value, what)


def _dotted_names(task: Task) -> Iterator[str]:
    """Pure: yields names of --set that need what stands before the dot, as far as the task tells them."""
    for head in FACTORIES:
        with suppress(TypeError, ValueError):  # a factory whose arguments cannot be read
            yield from (f"{head}.{name}" for name in inspect.signature(getattr(task, head)).parameters)
    yield from (f"{head}.{name}" for head, target in OPTION_FIELDS.items() for name in getattr(task, target))
    yield from COMMON_OPTIONS


def arguments(factory: Callable[..., Any], what: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Pure: returns all arguments that a factory is called with, defaults included; refuses arguments that it does not take."""
    try:
        parameters = inspect.signature(factory).parameters
    except ValueError:
        raise UsageError(
            f"the arguments of {what} of the task ({factory!r}) cannot be read; wrap it in a function with def"
        ) from None
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    known = {name: one for name, one in parameters.items() if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)}
    hints = hints_of(factory)
    found = {name: one.default for name, one in known.items() if one.default is not one.empty}
    for name, value in given.items():
        if name not in known and not takes_any:
            raise unknown_name("name", f"{what}.{name}", [f"{what}.{one}" for one in known], "in --set")
        found[name] = _converted(f"--set {what}.{name}", value, hints.get(name, Any))
    missing = [name for name in known if name not in found]
    if missing:
        raise UsageError(
            f"{what} of the task needs {', '.join(missing)}; give it with --set {what}.{missing[0]}=VALUE, or a default"
        )
    return found


def hints_of(factory: Callable[..., Any]) -> Mapping[str, Any]:
    """Pure: returns the annotations of the arguments of a factory, with what `Annotated` adds to them."""
    target = factory.__init__ if isinstance(factory, type) else factory  # type: ignore[misc]
    try:
        return typing.get_type_hints(target, include_extras=True)
    except (NameError, TypeError, AttributeError):  # annotations that cannot be read say nothing about a value
        return {}


def _converted(what: str, value: Any, hint: Any) -> Any:
    """Pure: returns the value in the type of its annotation: a whole number may stand for a real one, nothing else is converted."""
    if typing.get_origin(hint) is typing.Annotated:
        inner, *extras = typing.get_args(hint)
        value = _converted(what, value, inner)
        for extra in extras:
            if isinstance(extra, Choice) and value not in extra.values:
                raise UsageError(f"{what} must be one of {', '.join(map(repr, extra.values))}; received {value!r}")
            if isinstance(extra, Range) and (isinstance(value, bool) or not isinstance(value, (int, float))):
                raise UsageError(f"{what} must be a number; received {value!r}")
        return value
    choices = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if any(choice not in _WORDS for choice in choices):
        return value  # an annotation that we do not understand, or Any
    for choice in choices:
        if type(value) is choice:
            return value
    if float in choices and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if str in choices and not isinstance(value, (tuple, list, dict)):
        return str(value)
    raise UsageError(f"{what} must be {' or '.join(_WORDS[choice] for choice in choices)}; received {show_value(value)}")


_WORDS: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    type(None): "none",
}
