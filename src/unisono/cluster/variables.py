"""Reads an environment mapping: numbers, and the message for variables of which only a part is set. Local, pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from unisono.errors import UsageError


def first_set(env: Mapping[str, str], names: Sequence[str]) -> str | None:
    """Returns the first of `names` that has a value: versions of launchers give one thing different names."""
    return next((name for name in names if env.get(name)), None)


def whole_number(env: Mapping[str, str], name: str) -> int:
    """Returns a variable as a number >= 0; it must be set."""
    value = env[name]
    if not re.fullmatch(r"[0-9]{1,18}", value):
        raise UsageError(f"{name} must be a whole number; received {value!r} (environment); correct or unset it")
    return int(value)


def positive_seconds(env: Mapping[str, str], name: str) -> float:
    """Returns a variable as a number of seconds > 0; it must be set."""
    try:
        value = float(env[name])
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"{name} must be a number of seconds above 0; received {env[name]!r} (environment); correct or unset it")
    return value


def one_of(env: Mapping[str, str], name: str, known: Sequence[str]) -> str | None:
    """Returns a variable, which must be one of `known`; None where it is not set."""
    value = env.get(name)
    if value and value not in known:
        raise UsageError(f"{name} must be one of {', '.join(known)}; received {value!r} (environment); correct or unset it")
    return value or None


Name = str | tuple[str, ...]
"""Name of a variable; a tuple names alternatives of which one is enough."""


def whole_numbers(
    env: Mapping[str, str], needed: Sequence[Name], whose: str, remedy: str, besides: Sequence[Name] = ()
) -> list[int]:
    """Returns the values of `needed` as numbers >= 0; raises unless all of these and of `besides` are set."""
    require(env, (*needed, *besides), whose, remedy)
    found = (first_set(env, (names,) if isinstance(names, str) else names) for names in needed)
    return [whole_number(env, name) for name in found if name]


def require(env: Mapping[str, str], needed: Sequence[Name], whose: str, remedy: str) -> None:
    """Raises unless every one of `needed` is set."""
    alternatives = [(names,) if isinstance(names, str) else names for names in needed]
    missing = [" or ".join(names) for names in alternatives if first_set(env, names) is None]
    if missing:
        present = [name for names in alternatives if (name := first_set(env, names)) is not None]
        raise UsageError(
            f"the variables of {whose} are incomplete: {', '.join(present)} {'is' if len(present) == 1 else 'are'} set, "
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing (environment); {remedy}"
        )
