"""Loads packages that only some sources need, at use; where one is missing the message says how to install it."""

from __future__ import annotations

import importlib
from types import ModuleType

from unisono.errors import UsageError


def load(package: str, what: str) -> ModuleType:
    """Imports `package`, which is needed to read `what`. Raises UsageError where it is not installed."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.split(".")[0] != package.split(".")[0]:
            raise
        name = package.split(".")[0]
        raise UsageError(
            f"reading {what} needs the package {name!r}, which is not installed here; pip install 'unisono[data]'"
        ) from None
