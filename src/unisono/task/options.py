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
from unisono.task.name_value import parse, shown

REQUIRED: Any = MISSING
"""In place of a default."""
KEY = "option"
"""Of a field's metadata."""
DOC = "doc"
"""Of a field's metadata: what it is, where it is no option."""
DOC_WIDTH = 120
"""Of the lines of docstrings that are put together here."""
KINDS: Mapping[str, str] = {"int": "a whole number", "float": "a finite number", "bool": "true or false", "str": "a text"}
"""Annotation, without `| None`, of fields that are checked -> what their values are."""

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class Option:
    """What is known of one option: what its field says of it, and below what the dataclass says of the field."""

    help: str
    """In the user's terms, without the default; empty: the command line takes it, but does not tell of it."""
    metavar: str | None = None
    group: str | None = None
    """Its heading in --help; None: that of the option before it."""
    flag: str | None = ""
    """Empty: the name of the field with dashes. None: not on the command line."""
    name: str = ""
    """Its keyword in Python; empty: as the flag, else as the field."""
    is_keyword: bool = True
    is_change: bool = False
    """Left out, what the task says stays; so its default is of no interest where a training is started."""
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    unit: str = ""
    choices: Collection[str] = ()
    example: str = ""
    """Of NAME=VALUE, where the field is a mapping."""
    read: Callable[[str], Any] | None = None
    """Makes a value of a word of the command line; None: as the annotation says."""
    convert: Callable[[Any], Any] | None = None
    """Makes the field's value of what was given on the command line or in Python."""

    field: str = ""
    kind: str = ""
    """The annotation, without `| None`."""
    can_be_none: bool = False
    default: Any = None

    @property
    def rule(self) -> str:
        """What a value must be, for messages: 'a whole number of at least 1'. Empty where nothing is checked."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        words = KINDS.get(self.kind, "")
        if self.unit:
            words += f" of {self.unit}"
        if self.least is not None and self.most is not None:
            return f"{words} from {self.least} to {self.most}"
        bounds = {"of at least": self.least, "above": self.above, "at most": self.most, "below": self.below}
        told = [f"{word} {bound}" for word, bound in bounds.items() if bound is not None]
        return " ".join((words, " and ".join(told))).rstrip()

    def checked(self, value: Any, what: str) -> Any:
        """Pure: the value, NumPy's numbers as plain ones; `what` names the option in the message where it cannot be."""
        if (value is None and self.can_be_none) or not self.rule:
            return value
        found = self._of_kind(value)
        if found is None or (self.choices and found not in self.choices) or not self._is_in_range(found):
            raise UsageError(f"{what} must be {self.rule}; received {shown(value)}")
        return found

    def _of_kind(self, value: Any) -> Any:
        """Pure: None for a value of another kind: a whole number may stand for a real one, nothing else is bent."""
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
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    def read_word(self, word: str) -> Any:
        """Pure: a word of the command line as a value; one that spells no number stays a text, which the check refuses."""
        if self.read is not None:
            return self.read(word)
        if self.convert is not None or self.kind not in ("int", "float"):
            return word
        try:
            return int(word) if self.kind == "int" else float(word)
        except ValueError:
            return word

    def taken(self, value: Any) -> Any:
        """Pure: what was given, as the field holds it."""
        if isinstance(value, list) and self.kind.startswith("Mapping"):  # words of the command line
            return parse(value, self.flag or "--set", self.example)
        if isinstance(value, list) and self.kind.startswith("Sequence"):
            value = tuple(value)
        return value if value is None or self.convert is None else self.convert(value)

    def help_line(self) -> str:
        """Pure: with its default."""
        if not self.help or self.is_change or "default" in self.help or self.default in ("", (), None) or self.default is False:
            return self.help
        return f"{self.help} (default {f'{self.default:g}' if isinstance(self.default, float) else self.default})"


def option(default: T, help: str, metavar: str | None = None, **facts: Any) -> T:
    """A field of a dataclass that is an option; `facts` are those of `Option`."""
    metadata = {KEY: Option(help=help, metavar=metavar, **facts)}
    found: Any = field(default_factory=dict, metadata=metadata) if default == {} else field(default=default, metadata=metadata)
    return found  # type: ignore[no-any-return]


def options_of(owner: type) -> Iterator[Option]:
    """Pure: the options among the fields of a dataclass."""
    group = ""
    for one in fields(owner):
        if KEY in one.metadata:
            told: Option = one.metadata[KEY]
            group = group if told.group is None else told.group
            flag = f"--{one.name.replace('_', '-')}" if told.flag == "" else told.flag
            yield replace(
                told,
                group=group,
                flag=flag,
                name=told.name or (flag or one.name).lstrip("-").replace("-", "_"),
                field=one.name,
                kind=str(one.type).removesuffix(" | None"),
                can_be_none=str(one.type).endswith("| None"),
                default=None if one.default is MISSING else one.default,
            )


def shown_name(one: Option) -> str:
    """Pure: as people who type it and people who write Python know it."""
    flag = one.flag or one.name
    return f"{flag} ({one.name})" if one.is_keyword and len(flag) == len("-n") else flag


def check(config: Any, what: Callable[[Option], str] = shown_name) -> None:
    """Local: refuse values that the options of a frozen dataclass cannot have; `what` names them in messages."""
    for one in options_of(type(config)):
        value = getattr(config, one.field)
        found = one.checked(value, what(one))
        if found is not value:
            object.__setattr__(config, one.field, found)


def add_options(parser: argparse.ArgumentParser, *owners: type, only: Collection[str] | None = None) -> None:
    """Local: the options of some dataclasses, under their headings; one that two of them have is added once. Those that are not
    given leave no trace in the namespace."""
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
            how = {"type": one.read_word, "metavar": one.metavar}
            if one.convert is None and one.kind.startswith(("Mapping", "Sequence")):
                how["action"] = "append"
        text = one.help_line().replace("%", "%%") or argparse.SUPPRESS
        groups[group].add_argument(one.flag, dest=one.name, default=argparse.SUPPRESS, help=text, **how)


def take(owner: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Pure: what of the options given, by name, belongs to a dataclass, by field."""
    return {one.field: one.taken(given[one.name]) for one in options_of(owner) if one.name in given}


def keywords_of(*owners: type) -> dict[str, Option]:
    """Pure: name -> option of those that a Python function takes; of a name that two dataclasses have, the first one's."""
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
    """A function with `**options` that are those of some dataclasses: its signature and its docstring list them."""

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
