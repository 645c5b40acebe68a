"""Chooses the arrays of a file that are inputs, targets and weights: keys of the user, or a usual pair of names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unisono.data.batch import batch_of
from unisono.errors import UsageError

USUAL_PAIRS = (
    ("x", "y"),
    ("X", "Y"),
    ("X", "y"),
    ("inputs", "targets"),
    ("features", "labels"),
    ("images", "labels"),
    ("images", "masks"),
    ("data", "labels"),
    ("data", "target"),
    ("data", "label"),
)


def chosen_keys(names: Sequence[str], where: str, inputs: Any, targets: Any, weights: Any) -> tuple[Any, ...]:
    """Pure: returns the keys in the form of a batch. Where none is given, exactly one usual pair must be in the file."""
    if inputs is not None:
        return batch_of(inputs, targets, weights)
    usual = [pair for pair in USUAL_PAIRS if pair[0] in names and pair[1] in names]
    if len(usual) != 1 or targets is not None:
        raise UsageError(
            f'{where} holds {", ".join(names) or "nothing"}; name the inputs and the targets: inputs="...", targets="..."'
        )
    return batch_of(*usual[0], weights)
