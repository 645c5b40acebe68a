"""Reads the file of `horovodrun --config-file`: sections with `key: value` lines, the part of YAML that such files use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from unisono.compat.horovod.launching.flags import FLAGS
from unisono.errors import UsageError

LINE = re.compile(
    r"""(?P<indent>\s*)(?P<key>[A-Za-z_][\w-]*)\s*:(?:\s+(?P<value>"[^"]*"|'(?:[^']|'')*'|[^#]*?))?\s*(?:(?:^|\s)\#.*)?"""
)
QUOTES = ("'", '"')
QUOTED = re.compile(r""""[^"]*"|'(?:[^']|'')*'""")
EMPTY = ("", "null", "~", "none")
CONTROLLER = "controller"


def read_settings(path: Path) -> dict[str, str]:
    """Local: `section.key` -> value as text. Raises `UsageError` with the line that is not understood."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read (--config-file): {error}; check the path") from error
    return parsed(text, str(path))


def parsed(text: str, name: str) -> dict[str, str]:
    """Pure. Keys that Horovod does not have are refused: nothing would read them."""
    found: dict[str, str] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#") or line.rstrip() in ("---", "..."):
            continue
        match = LINE.fullmatch(line)
        value = "" if match is None else (match["value"] or "")
        if match is None or "\t" in match["indent"] or value[:1] in ("[", "{", "&", "*", "|", ">", "!", "-"):
            raise UsageError(
                f"{name}, line {number} is not understood (--config-file): {line.strip()!r}; write sections with lines `key: value`"
            )
        if value[:1] in QUOTES and not QUOTED.fullmatch(value):
            raise UsageError(
                f"{name}, line {number} has a quote without its other one (--config-file): {line.strip()!r}; close it, and "
                "double one that is meant"
            )
        key = match["key"].replace("-", "_")
        if not match["indent"]:
            section = key
            if value or key == CONTROLLER:
                _put(found, key, value, name, number)
        elif not section:
            raise UsageError(
                f"{name}, line {number} is indented but stands in no section (--config-file); begin with one, e.g. params:"
            )
        else:
            _put(found, f"{section}.{key}", value, name, number)
    return found


def _put(found: dict[str, str], place: str, value: str, name: str, number: int) -> None:
    known = (CONTROLLER, *(flag.setting.removeprefix("!") for flag in FLAGS if flag.setting is not None))
    if place not in known:
        section = place.partition(".")[0]
        like = ", ".join(one.partition(".")[2] for one in known if one.startswith(f"{section}."))
        remedy = (
            f"{section} knows {like}"
            if like
            else f"sections are {', '.join(dict.fromkeys(one.partition('.')[0] for one in known))}"
        )
        raise UsageError(f"{name}, line {number} sets {place}, which horovodrun does not know (--config-file); {remedy}")
    if value.lower() not in EMPTY:
        found[place] = value[1:-1].replace("''", "'") if value[:1] == "'" else value[1:-1] if value[:1] == '"' else value


def controller_of(settings: Mapping[str, str]) -> str | None:
    """Pure: gloo or mpi, if the file says so."""
    controller = settings.get(CONTROLLER, "").lower()
    if controller not in ("", "gloo", "mpi"):
        raise UsageError(f"controller must be gloo or mpi; received {controller!r} (--config-file)")
    return controller or None
