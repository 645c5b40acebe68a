"""Options, each written once: a dataclass field made by `option` is an option of the command line, a keyword of `un.train` or
`un.tune`, a check with its message, and a row of docs/reference/options.md."""

from __future__ import annotations

import argparse
import inspect
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from math import isfinite
from numbers import Integral, Real
from textwrap import fill
from typing import Any, TypeVar

from unisono.errors import UsageError
from unisono.task.name_value import parse, show_value

REQUIRED: Any = MISSING
"""Marks an option without a default."""
KEY = "option"
"""Key of the `Option` in a field's metadata."""
DOC = "doc"
"""Of a field's metadata: what it is, where it is no option."""
DOC_WIDTH = 120
"""Of the lines of docstrings that are put together here."""
KINDS: Mapping[str, str] = {"int": "a whole number", "float": "a finite number", "bool": "true or false", "str": "a string"}
"""Annotation, without `| None`, of fields that are checked -> description of their values."""

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option: what its field declares, and below what the dataclass says of the field."""

    help: str
    """Help text in the user's terms, without the default; empty: an internal option, which --help does not list."""
    metavar: str | None = None
    group: str | None = None
    """Heading in --help; None: that of the option before it."""
    flag: str | None = ""
    """Name on the command line. Empty: the name of the field with dashes. None: not on the command line."""
    name: str = ""
    """Keyword in Python; empty: as the flag, else as the field."""
    is_keyword: bool = True
    is_change: bool = False
    """Whether it changes a setting of the task, which holds where the option is left out; --help then shows no default."""
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    unit: str = ""
    choices: Collection[str] = ()
    example: str = ""
    """Example of NAME=VALUE, where the field is a mapping."""
    read: Callable[[str], Any] | None = None
    """Converts a command-line argument into a value; None: as the annotation says."""
    convert: Callable[[Any], Any] | None = None
    """Converts a value given on the command line or in Python into the field's value."""

    field: str = ""
    kind: str = ""
    """The annotation, without `| None`."""
    can_be_none: bool = False
    default: Any = None

    @property
    def rule(self) -> str:
        """Description of the allowed values, for messages: 'a whole number of at least 1'. Empty where nothing is checked."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        words = KINDS.get(self.kind, "")
        if self.unit:
            words += f" of {self.unit}"
        if self.least is not None and self.most is not None:
            return f"{words} from {self.least} to {self.most}"
        bounds = {"of at least": self.least, "above": self.above, "at most": self.most, "below": self.below}
        spelled = [f"{word} {bound}" for word, bound in bounds.items() if bound is not None]
        return " ".join((words, " and ".join(spelled))).rstrip()

    def validate(self, value: Any, what: str) -> Any:
        """Pure: returns the value, NumPy's numbers as plain ones, or refuses it; `what` names the option in the message."""
        if (value is None and self.can_be_none) or not self.rule:
            return value
        found = self._of_kind(value)
        if found is None or (self.choices and found not in self.choices) or not self._is_in_range(found):
            raise UsageError(f"{what} must be {self.rule}; received {show_value(value)}")
        return found

    def _of_kind(self, value: Any) -> Any:
        """Pure: returns the value as the option's kind, or None for a value of another kind: a whole number may stand for a real
        one, nothing else is converted."""
        if self.kind == "bool":
            return value if isinstance(value, bool) else None
        if self.kind == "str":
            return os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
        if isinstance(value, bool) or not isinstance(value, Real):
            return None
        if self.kind == "int":
            return int(value) if isinstance(value, Integral) else None
        return float(value) if isfinite(value) else None

    def _is_in_range(self, value: Any) -> bool:
        """Whether a number lies within the bounds of the option."""
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    def parse_argument(self, argument: str) -> Any:
        """Pure: converts a command-line argument into a value; one that spells no number stays a text, which the check refuses."""
        if self.read is not None:
            return self.read(argument)
        if self.convert is not None or self.kind not in ("int", "float"):
            return argument
        try:
            return int(argument) if self.kind == "int" else float(argument)
        except ValueError:
            return argument

    def convert_value(self, value: Any) -> Any:
        """Pure: converts a given value into the field's value."""
        if isinstance(value, list) and self.kind.startswith("Mapping"):  # words of the command line
            return parse(value, self.flag or "--set", self.example)
        if isinstance(value, list) and self.kind.startswith("Sequence"):
            value = tuple(value)
        return value if value is None or self.convert is None else self.convert(value)

    def help_line(self) -> str:
        """Pure: returns the help text with the default."""
        if not self.help or self.is_change or "default" in self.help or self.default in ("", (), None) or self.default is False:
            return self.help
        return f"{self.help} (default {f'{self.default:g}' if isinstance(self.default, float) else self.default})"


def option(default: T, help: str, metavar: str | None = None, **facts: Any) -> T:
    """Declares a field of a dataclass as an option; `facts` are fields of `Option`."""
    metadata = {KEY: Option(help=help, metavar=metavar, **facts)}
    found: Any = field(default_factory=dict, metadata=metadata) if default == {} else field(default=default, metadata=metadata)
    return found  # type: ignore[no-any-return]


def options_of(owner: type) -> Iterator[Option]:
    """Pure: yields the options among the fields of a dataclass."""
    group = ""
    for one in fields(owner):
        if KEY in one.metadata:
            declared: Option = one.metadata[KEY]
            group = group if declared.group is None else declared.group
            flag = f"--{one.name.replace('_', '-')}" if declared.flag == "" else declared.flag
            kind = one.type.__name__ if isinstance(one.type, type) else str(one.type)  # a class, where annotations are evaluated
            yield replace(
                declared,
                group=group,
                flag=flag,
                name=declared.name or (flag or one.name).lstrip("-").replace("-", "_"),
                field=one.name,
                kind=kind.removesuffix(" | None"),
                can_be_none=kind.endswith("| None"),
                default=None if one.default is MISSING else one.default,
            )


def shown_name(one: Option) -> str:
    """Pure: returns the name of an option for messages, as it is typed and as a keyword in Python."""
    flag = one.flag or one.name
    return f"{flag} ({one.name})" if one.is_keyword and len(flag) == len("-n") else flag


def check(config: Any, what: Callable[[Option], str] = shown_name) -> None:
    """Local: refuses values that the options of a frozen dataclass cannot have; `what` names them in messages."""
    for one in options_of(type(config)):
        value = getattr(config, one.field)
        found = one.validate(value, what(one))
        if found is not value:
            object.__setattr__(config, one.field, found)


def add_options(parser: argparse.ArgumentParser, *owners: type, only: Collection[str] | None = None) -> None:
    """Local: adds the options of some dataclasses to a parser, under their headings; an option that two of them have is added
    once. Those that are not given leave no trace in the namespace."""
    groups: dict[str, argparse._ActionsContainer] = {"": parser}
    known: set[str] = set()
    for one in (one for owner in owners for one in options_of(owner)):
        if one.flag is None or one.name in known or (only is not None and one.name not in only):
            continue
        known.add(one.name)
        group = one.group or ""
        if group not in groups:
            groups[group] = parser.add_argument_group(group)
        how: dict[str, Any] = {"action": "store_true"}
        if one.kind != "bool":
            how = {"type": one.parse_argument, "metavar": one.metavar}
            if one.convert is None and one.kind.startswith(("Mapping", "Sequence")):
                how["action"] = "append"
        text = one.help_line().replace("%", "%%") or argparse.SUPPRESS
        groups[group].add_argument(one.flag, dest=one.name, default=argparse.SUPPRESS, help=text, **how)


def options_for(owner: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Pure: returns those of the given options, by name, that belong to a dataclass: field -> value."""
    return {one.field: one.convert_value(given[one.name]) for one in options_of(owner) if one.name in given}


def keywords_of(*owners: type) -> dict[str, Option]:
    """Pure: returns name -> option of the options that a Python function takes; of a name that two dataclasses have, the first
    one's."""
    found: dict[str, Option] = {}
    for one in (one for owner in owners for one in options_of(owner) if one.is_keyword):
        found.setdefault(one.name, one)
    return found


def lists_fields(owner: type[T]) -> type[T]:
    """A dataclass whose docstring lists its fields: what an option or the metadata of a field says of it."""
    told = {one.name: one.metadata.get(DOC) or one.metadata[KEY].help_line() for one in fields(owner)}  # type: ignore[arg-type]
    add_section(owner, "Args", {name: text[:1].upper() + text[1:] for name, text in told.items()})
    return owner


def add_section(owner: Any, heading: str, told: Mapping[str, str]) -> None:
    """Local: a docstring gets one more section, with an entry for each name."""
    lines = [
        fill(f"{name}: {text}.", DOC_WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 12, break_on_hyphens=False)
        for name, text in told.items()
    ]
    owner.__doc__ = "\n".join((f"{(owner.__doc__ or '').rstrip()}\n", f"    {heading}:", *lines, "    "))


def takes(*owners: type) -> Callable[[Function], Function]:
    """Decorates a function with `**options` that are those of some dataclasses: its signature and its docstring list them."""

    def described(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        names = {one.name for one in own}
        more = {name: one for name, one in keywords_of(*owners).items() if name not in names}
        listed = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None if one.is_change else one.default)
            for name, one in more.items()
        ]
        vars(function)["__signature__"] = signature.replace(parameters=[*own, *listed])
        add_section(function, "Options", {name: one.help_line() for name, one in more.items()})
        return function

    return described
