"""The random generators of the process (Python's, NumPy's, torch's), which users' code draws from: seeded for a while, and left
alone by the frameworks that it loads."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from types import ModuleType

import numpy as np

FRAMEWORKS = frozenset(("keras", "tensorflow", "jax"))
"""Packages that draw random numbers when they are loaded."""


@contextmanager
def seeded_generators(seed: int) -> Iterator[None]:
    """Context manager, local: seeds the generators of this process on the CPU; afterwards they are as they were."""
    with restored_generators():
        seed_generators(seed)
        yield


@contextmanager
def restored_generators() -> Iterator[None]:
    """Context manager, local: afterwards the generators of this process are as they were."""
    torch = sys.modules.get("torch")  # one that is not loaded has drawn nothing
    of_python, of_numpy = random.getstate(), np.random.get_state()
    of_torch = None if torch is None else torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        if torch is not None:
            torch.default_generator.set_state(of_torch)


def seed_generators(seed: int) -> None:
    """Local: seeds the generators of this process on the CPU. Those of GPUs stay as they are."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(seed)


@contextmanager
def quiet_framework_imports() -> Iterator[None]:
    """Context manager, local: the first import of a framework leaves the generators as they are. Otherwise what the user's code
    draws after it would depend on whether the process had loaded the framework before."""
    finder = _QuietFinder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _QuietFinder(MetaPathFinder):
    """Finds frameworks as Python does."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        found = PathFinder.find_spec(fullname, path, target) if fullname in FRAMEWORKS else None
        if found is None or found.origin is None or not isinstance(found.loader, SourceFileLoader):
            return None
        folders = found.submodule_search_locations
        loader = _QuietLoader(fullname, found.origin)
        return spec_from_file_location(fullname, found.origin, loader=loader, submodule_search_locations=folders)


class _QuietLoader(SourceFileLoader):
    """Loads a module, after which the generators are as they were."""

    def exec_module(self, module: ModuleType) -> None:
        with restored_generators():
            super().exec_module(module)
