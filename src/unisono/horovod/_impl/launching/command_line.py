"""Reads flags and a file of settings by the table of flags, and turns their values into HOROVOD_* variables."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from unisono.errors import UsageError, did_you_mean
from unisono.horovod._impl.launching.flags import FLAGS, GROUPS, NUMBER, PAIR, SWITCH, WHOLE, Flag

Values = Mapping[str, Any]
"""By the `dest` of flags; None: not given."""
CONTROL_STDIN = "--control-stdin"
"""The flag of processes that start this program (`run_function.py`) and stop it through its standard input; see `LaunchConfig`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds all flags to a parser, for parsing and for --help. Local."""
    for title, flags in GROUPS:
        group = parser.add_argument_group(title)
        for flag in flags:
            if flag.kind == SWITCH:
                group.add_argument(*flag.names, dest=flag.dest, action="store_true", default=None, help=flag.does)
                if flag.off:
                    group.add_argument(*flag.off, dest=flag.dest, action="store_false", default=None, help=argparse.SUPPRESS)
            else:
                values = 2 if flag.kind == PAIR else None
                group.add_argument(*flag.names, dest=flag.dest, metavar=flag.metavar, nargs=values, help=flag.does)


def split(words: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Returns the flags, and the program with its own words, which starts at the first word that is no flag. Pure."""
    num_values = {name: {SWITCH: 0, PAIR: 2}.get(flag.kind, 1) for flag in FLAGS for name in (*flag.names, *flag.off)}
    num_values |= {"-h": 0, "--help": 0, CONTROL_STDIN: 0}
    flags: list[str] = []
    position = 0
    while position < len(words):
        word = words[position]
        if word == "--":
            return flags, tuple(words[position + 1 :])
        if not word.startswith("-"):
            break
        name, equals, _ = word.partition("=")
        if name not in num_values and not word.startswith("--") and num_values.get(word[:2]) == 1:
            flags.append(word)  # a letter with its value: -Hlocalhost:2
            position += 1
            continue
        if name not in num_values:
            hint = did_you_mean(name, num_values, "see unisono horovodrun --help")
            raise UsageError(f"horovodrun does not know {name!r}; {hint}")
        values = () if equals else words[position + 1 : position + 1 + num_values[name]]
        if len(values) == 1 and values[0].startswith("-"):
            flags.append(f"{word}={values[0]}")  # or argparse would take the value for a flag: --mpi-args "--map-by node"
        else:
            flags += [word, *values]
        position += 1 + len(values)
    return flags, tuple(words[position:])


def values_of(args: argparse.Namespace, settings: Mapping[str, str]) -> dict[str, Any]:
    """Returns each flag's value: from the command line, else from the file of settings, else None. Pure."""
    found: dict[str, Any] = {}
    for flag in FLAGS:
        given = getattr(args, flag.dest)
        place = max(flag.names, key=len)
        if given is None and flag.setting is not None and flag.setting.removeprefix("!") in settings:
            place = f"{flag.setting.removeprefix('!')} (--config-file)"
            given = settings[flag.setting.removeprefix("!")]
            if flag.kind == SWITCH:
                given = _truth_of(given, place) != flag.setting.startswith("!")
        found[flag.dest] = None if given is None else _parse_value(flag, given, place)
    return found


def with_defaults(values: Values, env: Mapping[str, str]) -> dict[str, Any]:
    """Returns the values with those of the flags' environment variables where a flag was not given. Pure."""
    found = dict(values)
    for flag in FLAGS:
        if flag.default is not None and found[flag.dest] is None and env.get(flag.default):
            found[flag.dest] = _parse_value(flag, env[flag.default], f"{flag.default} (environment)")
    return found


def variables_of(values: Values) -> tuple[tuple[str, str], ...]:
    """Returns the HOROVOD_* variables that ranks get. Pure."""
    found: list[tuple[str, str]] = []
    for flag in FLAGS:
        value = values[flag.dest]
        if flag.variable is None or value is None:
            continue
        if flag.variable == "HOROVOD_FUSION_THRESHOLD":
            value = int(value * (1 << 20))
        found.append(
            (
                flag.variable,
                str(int(value)) if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value),
            )
        )
    return tuple(found)


def remarks_of(values: Values) -> list[str]:
    """Returns messages on flags that were given but have no effect, one for each reason. Pure."""
    given: dict[str, list[str]] = {}
    for flag in FLAGS:
        if flag.no_effect and _is_given(values[flag.dest]):
            given.setdefault(flag.no_effect, []).append(max(flag.names, key=len))
    return [f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} no effect: {reason}" for reason, names in given.items()]


def idle_of(values: Values, env: Mapping[str, str]) -> list[str]:
    """Returns messages on flags that were given without the flag that they need. The variable of that flag in `env` is as good as
    the flag; where it was switched off, nothing is said. Pure."""
    needed = {flag.dest: flag for flag in FLAGS}
    remarks = []
    for flag in FLAGS:
        if not flag.needs or not _is_given(values[flag.dest]) or any(values[name] is not None for name in flag.needs):
            continue
        if all(env.get(needed[name].variable or "", "0") in ("", "0") for name in flag.needs):
            others = " or ".join(max(needed[name].names, key=len) for name in flag.needs)
            remarks.append(f"{max(flag.names, key=len)} has no effect without {others}")
    return remarks


def _is_given(value: object) -> bool:
    """Whether a flag was given; 0 is a value too."""
    return value is not None and value is not False


def _parse_value(flag: Flag, given: Any, place: str) -> Any:
    """Returns the value of a flag from what was given for it; `UsageError`, which names `place`, for what does not fit its kind."""
    if flag.kind == SWITCH:
        return given
    if flag.kind == PAIR:
        pair = tuple(_number_of(text, place, whole=False) for text in given)
        if pair[0] > pair[1]:
            raise UsageError(f"{place} must be two numbers of seconds, the smaller first; received {pair[0]:g} {pair[1]:g}")
        return pair
    if flag.kind in (WHOLE, NUMBER):
        return _number_of(given, place, flag.kind == WHOLE)
    if flag.choices:
        if given.upper() not in flag.choices:
            raise UsageError(f"{place} must be one of {', '.join(flag.choices)}; received {given!r}")
        return given.upper()
    if not given:
        raise UsageError(f"{place} is empty; give it a value or leave it out")
    return given


def _number_of(text: str, place: str, whole: bool) -> float:
    """Returns the number, 0 or more, that a text holds. Raises `UsageError` for anything else."""
    try:
        number: float = int(text) if whole else float(text)
    except ValueError:
        number = -1
    if not 0 <= number < float("inf"):
        raise UsageError(f"{place} must be a {'whole ' if whole else ''}number, 0 or more; received {text!r}")
    return number


def _truth_of(text: str, place: str) -> bool:
    """Returns whether a text says true, yes, on or 1. Raises `UsageError` for one that says neither that nor the contrary."""
    if text.lower() not in ("true", "yes", "on", "1", "false", "no", "off", "0"):
        raise UsageError(f"{place} must be true or false; received {text!r}")
    return text.lower() in ("true", "yes", "on", "1")
