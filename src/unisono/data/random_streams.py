"""The random generators of the process (Python's, NumPy's, torch's), which users' code draws from: seeded for a while."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


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
