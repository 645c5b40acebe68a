"""Losses and metrics of a compiled model, tried with two samples: workers combine means of losses, and add up what metrics count.
So a loss that is a sum is refused, one that is no mean over samples is noted, and metrics that do not add up are refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from unisono.errors import UsageError
from unisono.model.keras.pure import MEAN, WEIGHTED_MEAN, metric_starts

FIRST, LAST = 0, -1
EACH_TWICE = (FIRST, LAST, FIRST, LAST)
"""So there are pairs of one class, without which some losses that compare samples are 0; and the largest of 0 and 1 is no sum."""


def try_losses(model: Any, targets: Any, outputs: Any) -> str:
    """Local: returns the name of the first loss if the compiled losses are no mean over samples; else "". Refuses one of the
    user's own that is a sum. Others than means by their reduction are refused with the first batch."""
    entries = [] if model._compile_loss is None else [entry.loss for entry in model._compile_loss._flat_losses]
    if not entries or any(one.reduction not in (*MEAN, WEIGHTED_MEAN) for one in entries):
        return ""
    each = [(FIRST,), (LAST,), EACH_TWICE, EACH_TWICE]
    first, last, all_four, again = (_loss_of(model._compile_loss, targets, outputs, rows) for rows in each)
    if all_four != again or np.isclose(all_four, (first + last) / 2, rtol=1e-4, atol=1e-6):
        return ""
    own = [str(one.name) for one in entries if not _is_known(one)]
    if own and np.isclose(all_four, 2 * (first + last), rtol=1e-4, atol=1e-6):
        raise UsageError(
            f"the loss {own[0]!r} is a sum over samples, which would be divided by their number over all workers; return one value "
            "for each sample, or their mean"
        )
    return (own or [str(one.name) for one in entries])[0]


def refuse_what_cannot_be_added(metrics: Any, targets: Any, outputs: Any) -> None:
    """Local: refuses metrics whose counts of samples are not the sum of those of each; and those that give several numbers."""
    from keras import StatelessScope, ops

    starts = metric_starts(metrics.metrics)

    def counted(rows: Sequence[int]) -> list[Any]:
        pairs = zip(metrics.variables, starts, strict=True)
        with StatelessScope([(one, ops.convert_to_tensor(start.copy(), one.dtype)) for one, start in pairs]) as scope:
            metrics.update_state(*(_rows_of(tree, rows) for tree in (targets, outputs)))
        found = (ops.convert_to_numpy(scope.get_current_value(one)) for one in metrics.variables)
        return [np.asarray(value, np.float64) - start for value, start in zip(found, starts, strict=True)]

    first, last, all_four = (counted(rows) for rows in ((FIRST,), (LAST,), EACH_TWICE))
    number = 0
    for metric in metrics.metrics:
        for _ in metric.variables:
            if not np.allclose(2 * (first[number] + last[number]), all_four[number], rtol=1e-3, atol=1e-4):
                remedy = "let the function return one value for each sample, not their mean"
                if getattr(metric, "_fn", None) is None:
                    remedy = "keep sums in its variables, to which every sample adds something"
                raise UsageError(f"Keras metric {metric.name!r} cannot be added up over workers; {remedy}")
            number += 1


def _is_known(loss: Any) -> bool:
    """Pure: whether a loss is of Keras or Unisono."""
    function = getattr(loss, "fn", None) or type(loss)
    return bool(function.__module__.startswith(("keras.", "unisono.")))


def _loss_of(loss: Any, targets: Any, outputs: Any, rows: Sequence[int]) -> float:
    """Local: the loss of some of the samples."""
    from keras import StatelessScope, ops

    with StatelessScope():
        return float(ops.convert_to_numpy(loss(_rows_of(targets, rows), _rows_of(outputs, rows))))


def _rows_of(arrays: Any, rows: Sequence[int]) -> Any:
    """Local: some of the samples, which are one or two."""
    from keras import ops, tree

    def of(leaf: Any) -> Any:
        return ops.take(leaf, [row % len(leaf) for row in rows], axis=0)

    return tree.map_structure(of, arrays)
