"""Checks targets against the loss, before a training begins: class numbers that the model has, and shares of labels in 0..1."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from unisono.data.batch import label_array
from unisono.data.checks import check_labels, origin
from unisono.data.data_differences import PART_NAMES
from unisono.data.fingerprint import DATASETS, sampled_rows
from unisono.data.random_streams import seeded_generators
from unisono.data.source import Indices, Source
from unisono.errors import UsageError

OF_CLASSES = frozenset({"cross_entropy", "nll", "focal", "dice"})
"""Losses of which targets with an axis less than the outputs are class numbers."""
OF_SHARES = frozenset({"cross_entropy", "bce", "dice", "binary_crossentropy", "BinaryCrossentropy", "BCEWithLogitsLoss", "BCELoss"})
"""Losses of which other targets say how far a label holds, from 0 to 1; names of ours, of Keras and of torch."""
ROUNDING = 1e-4
"""How far shares may lie outside of 0..1, as those that were computed are rounded."""


def check_targets(
    parts: Mapping[str, Source], loss: str | Callable[..., Any], shape: Sequence[int], ignored: Collection[int] = ()
) -> None:
    """Local, blocking for one read of the labels, or of some samples where labels are not cheap: refuses targets that `loss`
    cannot mean, for outputs of this shape."""
    name = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
    if name not in OF_CLASSES | OF_SHARES:
        return
    for part, source in parts.items():
        # The labels that a data set of torch shows may not be those that it gives: it may change them as it is read.
        rows, targets = None, None if name in OF_SHARES and type(origin(source)[0]).__module__ == DATASETS else source.targets()
        if targets is None and name in OF_SHARES:
            rows, targets = _sampled_targets(source)
        are_shares = name not in OF_CLASSES or (name == "dice" and shape[1] == 1)
        if targets is not None and (are_shares or targets.shape[1:] == tuple(shape[1:])):
            _check_shares(part, targets, rows, name, ignored)
        elif name in OF_CLASSES and len(shape) >= 2:
            check_labels(part, source, shape[1], ignored)


def _sampled_targets(source: Source) -> tuple[Indices, npt.NDArray[Any] | None]:
    """Returns places and targets of some samples; None where they are not one array."""
    rows = sampled_rows(source)
    with seeded_generators(0):
        batch = source.read(rows)
    found = batch[1] if isinstance(batch, (tuple, list)) and len(batch) > 1 else None
    return rows, label_array(np.asarray(found) if hasattr(found, "detach") else found)


def _check_shares(part: str, targets: npt.NDArray[Any], rows: Indices | None, loss: str, ignored: Collection[int]) -> None:
    """Refuses targets outside of 0..1, but for those that are ignored; `rows` are the places of some samples, None for all."""
    if targets.dtype.kind not in "iuf" or not targets.size or (targets.min() >= -ROUNDING and targets.max() <= 1 + ROUNDING):
        return
    wrong = (targets < -ROUNDING) | (targets > 1 + ROUNDING)
    if ignored:
        wrong &= ~np.isin(targets, list(ignored))
    if not wrong.any():
        return
    place = tuple(int(at[0]) for at in np.nonzero(wrong))
    sample = place[0] if rows is None else int(rows[place[0]])
    raise UsageError(
        f"sample {sample} of the {PART_NAMES[part]} data has target {targets[place]:g}, but loss {loss!r} needs targets in 0..1, "
        "the share to which a label holds; bring them there: y - 1 for labels 1 and 2, (y + 1) / 2 for -1 and 1, y / 255 for masks"
    )
