"""Packages that only some sources need: loaded at use, and where one is missing the message says how to get it."""

from __future__ import annotations

import importlib
from types import ModuleType

from unisono.errors import UsageError


def load(package: str, what: str) -> ModuleType:
    """Import `package`, which reading `what` needs. Raises UsageError where it is not installed."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.split(".")[0] != package.split(".")[0]:
            raise
        name = package.split(".")[0]
        raise UsageError(
            f"reading {what} needs the package {name!r}, which is not installed here; pip install unisono[data]"
        ) from None
