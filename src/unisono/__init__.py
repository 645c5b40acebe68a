"""Unisono trains, tunes, measures and applies neural networks on many workers. Heavy packages load at use."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from unisono.version import __version__

if TYPE_CHECKING:
    from unisono.comm.base import ANY, MAX, MIN, SUM, Communicator, Op
    from unisono.comm.connect import connect
    from unisono.errors import CollectiveTimeout, CommError, MismatchedCall, PeerLost, UnisonoError, UsageError

_HOMES: Mapping[str, str] = {
    "connect": "unisono.comm.connect",
    **dict.fromkeys(("ANY", "MAX", "MIN", "SUM", "Communicator", "Op"), "unisono.comm.base"),
    **dict.fromkeys(
        ("CollectiveTimeout", "CommError", "MismatchedCall", "PeerLost", "UnisonoError", "UsageError"), "unisono.errors"
    ),
}

__all__ = [
    "ANY",
    "CollectiveTimeout",
    "CommError",
    "Communicator",
    "MAX",
    "MIN",
    "MismatchedCall",
    "Op",
    "PeerLost",
    "SUM",
    "UnisonoError",
    "UsageError",
    "__version__",
    "connect",
]


def __getattr__(name: str) -> object:
    # Importing the package costs nothing; the first use of a name loads what it needs.
    if name not in _HOMES:
        raise AttributeError(f"module 'unisono' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
