"""One field is an option, a keyword, a check and a line of help."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unisono.errors import UsageError
from unisono.task.options import REQUIRED, add_options, check, keywords_of, option, options_for, options_of, takes


@dataclass(frozen=True)
class Oven:
    """Of every kind one."""

    cake: str = option(REQUIRED, "what is baked", "CAKE")
    heat: float = option(180.0, "of the oven", "H", above=0, unit="degrees")
    eggs: int | None = option(None, "how many", "N", least=1, most=12)
    salt: float = option(0.5, "share", "S", least=0, below=1)
    fan: bool = option(False, "also turn the fan on")
    shape: str = option("round", "of the tin", "S", choices=("round", "square"))
    minutes_s: float | None = option(None, "how long", "M", flag="--minutes", convert=lambda given: 60.0 * float(given))
    extras: Mapping[str, Any] = option({}, "more", "NAME=VALUE", flag="--extra", example="nuts=3")
    tastes: Sequence[str] = option((), "for whom", "T", flag="--taste")
    helpers: int = option(1, "", "N", flag="-n", name="helpers", is_keyword=False)
    only_here: int = option(3, "not on the command line", flag=None)
    note: str = ""

    def __post_init__(self) -> None:
        check(self)


def parsed(*words: str, only: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_options(parser, Oven, Oven, only=only)
    return parser.parse_args(words)


def made(*words: str) -> Oven:
    return Oven(**options_for(Oven, {"cake": "marble", **vars(parsed(*words))}))


def test_what_is_not_given_leaves_the_default() -> None:
    assert vars(parsed()) == {}
    assert made() == Oven("marble")


def test_the_command_line_gives_fields() -> None:
    words = "--heat 200 --eggs 3 --salt 0 --fan --shape square --minutes 2 --extra a=1 --extra b.c=x --taste me --taste you -n 4"
    found = made(*words.split())
    assert (found.heat, found.eggs, found.salt, found.fan, found.shape, found.minutes_s) == (200.0, 3, 0.0, True, "square", 120.0)
    assert (found.extras, found.tastes, found.helpers) == ({"a": 1, "b.c": "x"}, ("me", "you"), 4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--heat 0", "--heat must be a finite number of degrees above 0; received 0.0"),
        ("--heat hot", "--heat must be a finite number of degrees above 0; received 'hot'"),
        ("--heat inf", "--heat must be a finite number of degrees above 0; received inf"),
        ("--eggs 13", "--eggs must be a whole number from 1 to 12; received 13"),
        ("--eggs 2.5", "--eggs must be a whole number from 1 to 12; received '2.5'"),
        ("--salt 1", "--salt must be a finite number of at least 0 and below 1; received 1.0"),
        ("--shape oval", "--shape must be one of round, square; received 'oval'"),
        ("--extra nuts", "--extra needs NAME=VALUE, e.g. --extra nuts=3; received 'nuts'"),
    ],
)
def test_what_cannot_be_is_refused(words: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        made(*words.split())
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"fan": 1}, "--fan must be true or false; received 1"),
        ({"eggs": True}, "--eggs must be a whole number from 1 to 12; received True"),
        ({"cake": 3}, "--cake must be a string; received 3"),
        ({"only_here": "x"}, "only_here must be a whole number; received 'x'"),
    ],
)
def test_python_is_checked_alike(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        Oven(**{"cake": "marble", **values})
    assert str(refused.value) == message


def test_numbers_of_numpy_and_paths_become_plain() -> None:
    found = Oven(Path("a/cake"), heat=np.float32(200), eggs=np.int64(3))  # type: ignore[arg-type]
    assert (found.cake, found.heat, found.eggs) == ("a/cake", 200.0, 3)
    assert (type(found.heat), type(found.eggs)) == (float, int)


def test_help_has_the_default_and_hides_options_without_text() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser, Oven)
    text = " ".join(parser.format_help().split())
    assert "--heat H of the oven (default 180)" in text and "--fan also turn the fan on" in text
    assert "-n N" not in text and "--only-here" not in text and "(default None)" not in text


def test_some_options_only() -> None:
    assert vars(parsed("--heat", "5", only=("heat",))) == {"heat": 5.0}
    with pytest.raises(SystemExit):
        parsed("--eggs", "5", only=("heat",))


def test_keywords_are_the_names_of_options() -> None:
    assert [one.name for one in options_of(Oven)] == [
        *("cake", "heat", "eggs", "salt", "fan", "shape", "minutes", "extra", "taste", "helpers", "only_here")
    ]
    assert "helpers" not in keywords_of(Oven) and "minutes" in keywords_of(Oven)
    assert options_for(Oven, {"minutes": 2, "eggs": None, "strange": 1}) == {"minutes_s": 120.0, "eggs": None}


def test_options_come_from_the_function_signature() -> None:
    @takes(Oven)
    def bake(cake: str, **options: Any) -> Oven:
        """Bake."""
        return Oven(cake, **options_for(Oven, options))

    found = inspect.signature(bake).parameters
    assert list(found)[:3] == ["cake", "heat", "eggs"] and "helpers" not in found and "options" not in found
    assert found["heat"].default == 180.0 and found["heat"].kind is inspect.Parameter.KEYWORD_ONLY
    assert bake.__doc__ is not None and "        eggs: how many.\n" in bake.__doc__
    assert bake("marble", minutes=1).minutes_s == 60.0


def test_annotations_may_be_evaluated() -> None:
    """A file without `from __future__ import annotations` has classes there instead of texts."""
    kinds = {"whole": int, "share": float | None, "on": bool}
    defaults: dict[str, Any] = {"whole": option(1, "a", "N", least=0), "share": option(None, "b", "S"), "on": option(False, "c")}
    made = make_dataclass("Evaluated", [(name, kind, defaults[name]) for name, kind in kinds.items()], frozen=True)
    assert [(one.kind, one.can_be_none) for one in options_of(made)] == [("int", False), ("float", True), ("bool", False)]
    with pytest.raises(UsageError, match=r"whole must be a whole number of at least 0; received 2\.5"):
        check(made(whole=2.5), lambda one: one.field)
