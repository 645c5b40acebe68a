"""What a task says itself of a setting that is searched: its own value, and whether it takes whole numbers. Both come from what
takes the setting: a factory of the task, an optimiser, a schedule, a loss, the options of an algorithm."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from unisono.errors import UsageError
from unisono.task.overrides import FACTORIES, OPTION_FIELDS, hints_of
from unisono.task.task import Range, Task

ALGORITHM = "algorithm"
"""A setting that is an option of `train` and not a field of a task."""
DEFAULTS: Mapping[str, str] = {ALGORITHM: "allreduce", "optimizer": "sgd"}
"""What a task has that names none."""


class OwnSetting(NamedTuple):
    """What a task says of a setting."""

    value: Any = None
    """None where it says nothing."""
    hint: Any = None


def takes_whole_numbers(task: Task, name: str, values: Range, takers: Sequence[Any]) -> bool:
    """Whether the numbers of a range are whole: by the type of the setting, else by its own value, where a real number means real
    ones, else by how the ends are written. `takers` are the values of the setting before the dot that trials may have. Local."""
    settings = [own_setting(task, name, taker) for taker in takers]
    kinds = {kind for one in settings for kind in (one.hint, *typing.get_args(one.hint))}
    if int in kinds or float in kinds:
        return float not in kinds
    return all(isinstance(one, int) for one in (values.low, values.high)) and not any(
        isinstance(one.value, float) for one in settings
    )


def own_name(task: Task, head: str, fixed: Mapping[str, Any]) -> Any:
    """Returns the value of a setting that others have before their dot, e.g. the optimiser of optimizer.momentum. Pure."""
    found = fixed.get(head, getattr(task, head, None))
    return DEFAULTS.get(head) if found is None else found


def own_setting(task: Task, name: str, taker: Any = None) -> OwnSetting:
    """Returns the value of a setting that the task gives, or the default of what takes it. `taker` is the value of the setting
    before the dot. Local; may load PyTorch."""
    head, dot, rest = name.partition(".")
    if not dot:
        return OwnSetting(own_name(task, head, {}), typing.get_type_hints(Task).get(head))
    given = getattr(task, OPTION_FIELDS[head]).get(rest) if head in OPTION_FIELDS else None
    function = getattr(task, head) if head in FACTORIES else _function_of(head, taker)
    if function is None:
        return OwnSetting(given)
    with suppress(ValueError, TypeError):  # a function without a signature
        argument = inspect.signature(function).parameters.get(rest)
        if given is None and argument is not None and argument.default is not argument.empty:
            given = argument.default
    hint = hints_of(function.func if isinstance(function, functools.partial) else function).get(rest)
    return OwnSetting(given, typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint)


def _function_of(head: str, taker: Any) -> Callable[..., Any] | None:
    """Returns what takes the options of an optimiser, a schedule, a loss or an algorithm. None where the name is unknown, which is
    refused where it is used."""
    if not isinstance(taker, str):
        return taker if callable(taker) else None
    with suppress(UsageError):
        if head == "optimizer":
            from unisono.optim.optimizers import optimizer_class

            return optimizer_class(taker)
        if head == "schedule":
            from unisono.optim.curves import SCHEDULES

            return SCHEDULES.get(taker)
        if head == "loss":
            from unisono.model.losses.find_loss import LOSSES

            return LOSSES.get(taker)
        if head == ALGORITHM:
            from unisono.algorithms.base import find_algorithm

            return find_algorithm(taker).Options
    return None
