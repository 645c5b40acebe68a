"""Imports the module of an alternative that users choose by name: each has a file of that name."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from types import ModuleType

from unisono.errors import UsageError


def load(package: str, name: str, known: Iterable[str], option: str) -> ModuleType:
    """Import `package.name`, refusing a name that is not among `known` (the message lists them)."""
    choices = tuple(known)
    if name not in choices:
        raise UsageError(f"{option} must be one of {', '.join(choices)}; received {name!r}")
    return importlib.import_module(f"{package}.{name}")
