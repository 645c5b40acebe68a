"""Losses of people's own, tried with two samples: workers combine means over samples, so a sum is refused, and a loss that compares
samples with each other is noted."""

from __future__ import annotations

from typing import Any

import numpy as np

from unisono.errors import UsageError


def try_own_loss(model: Any, targets: Any, outputs: Any) -> str:
    """Local: returns the name of the compiled model's own loss if it is no mean over samples; else "", as for losses of Keras.
    Refuses one that is a sum."""
    loss = model._compile_loss
    own = [] if loss is None else [one for entry in loss._flat_losses if (one := _own_name(entry.loss))]
    if not own:
        return ""
    first, second, both, again = (_value(loss, targets, outputs, rows) for rows in (slice(1), slice(1, 2), slice(2), slice(2)))
    if both != again or np.isclose(both, (first + second) / 2, rtol=1e-4, atol=1e-6):
        return ""
    if np.isclose(both, first + second, rtol=1e-4, atol=1e-6):
        raise UsageError(
            f"the loss {own[0]!r} is a sum over samples, which would be divided by their number over all workers; return one value "
            "for each sample, or their mean"
        )
    return own[0]


def _own_name(loss: Any) -> str:
    """Pure: the name of a loss that is not of Keras or Unisono; else empty."""
    function = getattr(loss, "fn", None) or type(loss)
    return "" if function.__module__.startswith(("keras.", "unisono.")) else str(loss.name)


def _value(loss: Any, targets: Any, outputs: Any, rows: slice) -> float:
    """Local: the loss of some of the samples."""
    from keras import StatelessScope, ops, tree

    with StatelessScope():
        parts = [tree.map_structure(lambda one: one[rows], nesting) for nesting in (targets, outputs)]
        return float(ops.convert_to_numpy(loss(*parts)))
