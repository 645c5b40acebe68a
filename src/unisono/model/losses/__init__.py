"""Losses as sums with their denominators, so that the mean over any number of workers is exact.

Imported by keras/, metrics, predict, training and tuning; imports model.
"""

from __future__ import annotations

from unisono.model.losses.base import Loss, Reading
from unisono.model.losses.find_loss import resolve_loss

__all__ = ["Loss", "Reading", "resolve_loss"]
