"""Keras on PyTorch: steps are not compiled, and its tensors are those of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from unisono.horovod._impl.keras.step_parcels import Parcel, carry

HAS_SLICES = False
"""Gradients are dense here."""


def through_host(parcels: Sequence[Parcel], tensors: Sequence[Any], shapes: Sequence[Any]) -> list[Any]:  # noqa: ARG001
    """Runs these operations and returns their results. Collective, blocking."""
    with torch.no_grad():
        return carry(parcels, [tensor.detach().contiguous() for tensor in tensors])


def is_slices(gradient: Any) -> bool:  # noqa: ARG001
    """Returns False: gradients of Keras are dense here."""
    return False
