"""Any torch optimiser, by its name or as a function of the parameters; two that cannot work here are refused with the reason."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from unisono.errors import UsageError, unknown_name

SEVERAL_EVALUATIONS = "it evaluates the loss several times in one step, and a step here is one evaluation on all workers"
REFUSED: Mapping[str, str] = {
    "LBFGS": SEVERAL_EVALUATIONS,
    "SparseAdam": "it needs sparse gradients, and gradients are dense here",
}


def make_optimizer(
    spec: object,
    parameters: Sequence[nn.Parameter],
    lr: float,
    options: Mapping[str, Any],
    model: nn.Module | None = None,
) -> Optimizer:
    """Local: makes the optimiser of these parameters, by name, class or function.

    A function is given the parameters as its first argument and, by name, those of `lr`, `model` and the options that it takes; one
    whose first argument is called `model` is given the model there. It may make groups with learning rates of their own and leave
    parameters out. Frozen parameters of the model may be among its groups; torch leaves them alone.
    """
    make = optimizer_class(spec) if isinstance(spec, str) else spec
    if not callable(make):
        what = "a name, or a function of the parameters that returns an optimizer"
        raise UsageError(f"optimizer of the task must be {what}; received {_type_with_article(make)}")
    what = f"optimizer {spec if isinstance(spec, str) else _name_of(make)}"
    if isinstance(make, type):
        _refuse_unusable(make, what)
    positional, named = _arguments(make, what, list(parameters), lr, options, model)
    try:
        made = make(*positional, **named)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{what} cannot be made: {error}; check its options (--set optimizer.NAME=VALUE) or use another"
        ) from error
    if not isinstance(made, Optimizer):
        raise UsageError(f"{what} returned {_type_with_article(made)}; it must return a torch.optim.Optimizer")
    _refuse_unusable(type(made), what)
    _check_groups(made, what, parameters, model)
    return made


def reads_lr(spec: str | Callable[..., Any]) -> bool:
    """Pure: whether the learning rate of the task reaches this optimiser; a function without `lr` sets its own."""
    make = optimizer_class(spec) if isinstance(spec, str) else spec
    if isinstance(make, functools.partial) and "lr" in make.keywords:
        return False  # fixed there; what the task says would change it silently
    return "lr" in (parameters := _parameters_of(make)) or _takes_any_option(parameters)


def optimizer_class(name: str) -> type[Optimizer]:
    """Pure: returns the class in torch.optim with this name, in small or capital letters."""
    known = {
        found.__name__.lower(): found
        for found in vars(torch.optim).values()
        if isinstance(found, type) and issubclass(found, Optimizer) and found is not Optimizer
    }
    if (found := known.get(name.lower())) is None:
        usable = [cls.__name__.lower() for cls in known.values() if cls.__name__ not in REFUSED]
        raise unknown_name("optimizer", name.lower(), usable)
    _refuse_unusable(found, f"optimizer {name}")
    return found


def _refuse_unusable(cls: type, what: str) -> None:
    """Raises `UsageError` for optimisers that cannot be used here: listed ones, and those that evaluate the loss several times a
    step.
    """
    for base in cls.__mro__:
        if base.__module__.startswith("torch.optim") and base.__name__ in REFUSED:
            raise UsageError(f"{what} cannot be used: {REFUSED[base.__name__]}; use another, e.g. adam")
    closure = inspect.signature(cls.step).parameters.get("closure") if hasattr(cls, "step") else None
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise UsageError(f"{what} cannot be used: {SEVERAL_EVALUATIONS}; use another, e.g. adam")


def _arguments(
    make: Callable[..., Any],
    what: str,
    parameters: list[nn.Parameter],
    lr: float,
    options: Mapping[str, Any],
    model: nn.Module | None,
) -> tuple[list[Any], dict[str, Any]]:
    """Returns the arguments to call `make` with; options that it does not take, or of a wrong type, are refused."""
    taken = _parameters_of(make)
    if not taken:
        raise UsageError(f"{what} takes no argument; it must be a function of the parameters")
    first, *rest = taken.values()
    others = {parameter.name: parameter for parameter in rest if parameter.kind is not parameter.VAR_KEYWORD}
    named: dict[str, Any] = {"lr": lr} if first.name != "lr" and reads_lr(make) else {}
    if first.name == "model" or "model" in others:
        if model is None:
            raise UsageError(f"{what} takes `model`, but there is no model here; make it a function of the parameters alone")
        if "model" in others:
            named["model"] = model
    settable = [name for name in others if name not in ("lr", "model")]
    hints = _type_hints_of(make)
    for name, value in options.items():
        if name not in settable and not (_takes_any_option(taken) and name not in ("lr", "model", first.name)):
            raise unknown_name("option", name, settable, f"of {what}")
        if not _fits(value, hints.get(name, Any)):
            raise UsageError(f"option {name} of {what} must be {_hint_in_words(hints[name])}; received {value!r}")
        named[name] = tuple(value) if isinstance(value, list) else value
    without = [
        name
        for name, parameter in others.items()
        if name not in named and parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL
    ]
    if without:
        raise UsageError(f"{what} needs {', '.join(without)}; give it (--set optimizer.{without[0]}=VALUE) or a default")
    return [model if first.name == "model" else parameters], named


def _check_groups(made: Optimizer, what: str, parameters: Sequence[nn.Parameter], model: nn.Module | None) -> None:
    """Raises `UsageError` unless the optimiser holds parameters of this model only, each once, and at least one."""
    names = {id(parameter): name for name, parameter in model.named_parameters()} if model is not None else {}
    held = [parameter for group in made.param_groups for parameter in group["params"]]

    def shown(parameter: torch.Tensor) -> str:
        return names.get(id(parameter), f"one of shape {tuple(parameter.shape)}")

    known = set(map(id, parameters))
    if foreign := [parameter for parameter in held if parameter.requires_grad and id(parameter) not in known]:
        raise UsageError(
            f"{what} holds {len(foreign)} parameters that are not of this model, the first {shown(foreign[0])}; "
            "make its groups from the parameters that the function receives"
        )
    twice = [identity for identity, count in Counter(map(id, held)).items() if count > 1]
    if twice:
        parameter = next(parameter for parameter in held if id(parameter) == twice[0])
        raise UsageError(f"{what} holds {len(twice)} parameters twice, the first {shown(parameter)}; put each into one group")
    if not known & set(map(id, held)):
        raise UsageError(f"{what} holds no parameter of this model; give it at least one")


def _parameters_of(make: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Returns the parameters of the signature of `make`, by name; without a signature only `params`."""
    try:
        return inspect.signature(make).parameters
    except ValueError:  # written in C without a signature: it is given the parameters alone
        return {"params": inspect.Parameter("params", inspect.Parameter.POSITIONAL_ONLY)}


def _takes_any_option(parameters: Mapping[str, inspect.Parameter]) -> bool:
    """Whether the signature takes any named argument (`**kwargs`)."""
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def _type_hints_of(make: Callable[..., Any]) -> Mapping[str, Any]:
    """Returns the annotations of the arguments of `make`; empty where they cannot be read."""
    inner: Any = make.func if isinstance(make, functools.partial) else make
    try:
        return typing.get_type_hints(inner.__init__ if isinstance(inner, type) else inner)  # type: ignore[misc]
    except (NameError, TypeError, AttributeError):  # annotations that cannot be read say nothing about a value
        return {}


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value suits an annotation, as far as plain numbers, texts and tuples go; what is not understood fits."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in inside)
    if origin is tuple:
        if not isinstance(value, (tuple, list)):
            return False
        if Ellipsis in inside:
            return all(_fits(one, inside[0]) for one in value)
        return len(value) == len(inside) and all(map(_fits, value, inside))
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint) if hint in (bool, str, type(None), torch.Tensor) else True


def _hint_in_words(hint: Any) -> str:
    """Returns an annotation in words for messages: 'a number', 'true or false', 'a text or none'."""
    words = {float: "a number", int: "a whole number", bool: "true or false", str: "a string", type(None): "none"}
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_hint_in_words(one) for one in inside if one is not torch.Tensor)
    if origin is tuple:
        return f"({', '.join('...' if one is Ellipsis else _hint_in_words(one) for one in inside)})"
    return words.get(hint, getattr(hint, "__name__", str(hint)))


def _name_of(make: Any) -> str:
    """Returns the name of a function or class, also of one inside `functools.partial`, for messages."""
    if isinstance(make, functools.partial):
        return _name_of(make.func)
    return str(getattr(make, "__name__", type(make).__name__))


def _type_with_article(value: Any) -> str:
    """Returns the type of a value with its article, for messages: 'a str', 'an int'."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
