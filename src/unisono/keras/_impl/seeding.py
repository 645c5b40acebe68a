"""The seed of a strategy: given, or drawn by the first worker; and seeding of all generators with it."""

from __future__ import annotations

import random
import sys
from typing import NamedTuple

import numpy as np
import torch

from unisono.comm.base import Communicator


class Seed(NamedTuple):
    """The seed that all workers use."""

    value: int
    chosen: int | None
    """What the user has chosen, by `Strategy(seed=...)` or by keras.utils.set_random_seed; None if neither."""


def draw() -> int:
    """Local: draws a seed from Python's generator, from which Keras would have drawn the weights."""
    return random.getrandbits(31)


def share_seed(comm: Communicator, given: int | None, drawn: int) -> Seed:
    """Collective: returns the given seed, or what the first worker has drawn."""
    from keras.src.utils.rng_utils import get_random_seed

    mine = Seed(drawn, get_random_seed()) if given is None else Seed(given, given)
    return Seed(*comm.broadcast_object(tuple(mine)))


def seed_all(seed: int) -> None:
    """Local: seeds all generators alike on all workers, for initial weights and for shuffling of data streams."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    if (tensorflow := sys.modules.get("tensorflow")) is not None:  # not loaded for it: Keras may run on another backend
        tensorflow.random.set_seed(seed)
