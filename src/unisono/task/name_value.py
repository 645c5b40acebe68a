"""NAME=VALUE as people write it on the command line."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from unisono.errors import UsageError


def parse(items: Sequence[str], option: str = "--set", example: str = "model.width=128") -> dict[str, Any]:
    """Pure: returns name -> value of NAME=VALUE arguments; a value that is a Python literal is read as one."""
    found: dict[str, Any] = {}
    for item in items:
        name, equals, text = item.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{option} needs NAME=VALUE, e.g. {option} {example}; received {item!r}")
        if name.strip() in found:
            raise UsageError(f"{option} {name.strip()} is given twice; give it once")
        found[name.strip()] = literal(text.strip())
    return found


def literal(text: str) -> Any:
    """Pure: returns the value of a text: "128" is a number, "(1, 2)" a tuple, "true" a truth value, "none" None, and what is no
    literal stays a text."""
    known = {"true": True, "false": False, "none": None}
    if text.lower() in known:
        return known[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):  # the last two are how deep nesting is refused
        return text


def show_value(value: object) -> str:
    """Pure: returns a value as text for a message, at most one line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
