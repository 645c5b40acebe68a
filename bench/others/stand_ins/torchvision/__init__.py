"""Stands in for torchvision: pictures of the same shapes, with random pixels, and the few functions that the programs call."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """A module of the package, which programs may use without importing it."""
    if name.startswith("__"):
        raise AttributeError(name)
    return import_module(f"{__name__}.{name}")
