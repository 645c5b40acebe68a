"""Makes batches and checks their form: `(inputs,)`, `(inputs, targets)` or `(inputs, targets, weights)`."""

from __future__ import annotations

from typing import Any

import numpy as np

from unisono.data.tree import leaves, map_tree
from unisono.errors import UsageError


def batch_of(inputs: Any, targets: Any = None, weights: Any = None) -> tuple[Any, ...]:
    """Pure: returns the parts that are not None as one tuple."""
    if weights is not None and targets is None:
        raise UsageError("the data have sample weights but no targets; give targets too, or leave the weights out")
    parts = (inputs, targets, weights)
    return parts[: 1 + (targets is not None) + (weights is not None)]


def as_arrays(tree: Any, what: str) -> Any:
    """Pure: returns the nesting with every leaf as a NumPy array, without a copy; torch tensors in CPU memory are shared."""
    found = map_tree(as_array, tree)
    for place, leaf in leaves(found):
        if leaf.ndim == 0:
            raise UsageError(
                f"{what}: {place or 'it'} is a single number, not an array of samples; convert lists with numpy.asarray"
            )
        if leaf.dtype.kind not in "biufc":
            held = "Python objects" if leaf.dtype.hasobject else "text" if leaf.dtype.kind in "US" else str(leaf.dtype)
            raise UsageError(f"{what}: {place or 'it'} holds {held}, not numbers; convert it to a numeric dtype")
    return found


def as_array(leaf: Any) -> np.ndarray[Any, Any]:
    """Pure: returns one leaf as a NumPy array in the byte order of this machine (torch knows no other); refuses one of which
    values are masked. A torch tensor is detached first, and known by its methods, so that torch is not loaded for it."""
    if hasattr(leaf, "detach") and hasattr(leaf, "numpy"):
        if leaf.device.type != "cpu":
            raise UsageError(f"a tensor of the data is on {leaf.device}, but a source holds CPU memory; pass tensor.cpu()")
        try:
            return np.asarray(leaf.detach().numpy())
        except TypeError:
            raise UsageError(
                f"a tensor of the data has dtype {leaf.dtype}, which NumPy does not support; pass tensor.float()"
            ) from None
    if isinstance(leaf, np.ma.MaskedArray) and (num_masked := leaf.size - leaf.count()):
        raise UsageError(
            f"an array of the data masks {num_masked} of {leaf.size} values, and a training knows no masks; fill "
            "them in (array.filled(0)), or leave their samples out"
        )
    found = np.asarray(leaf)
    return found if found.dtype.isnative else found.astype(found.dtype.newbyteorder("="))


def label_array(tree: Any) -> np.ndarray[Any, Any] | None:
    """Pure: returns the targets if they are one array, as splits and label checks need them; else None."""
    return tree if isinstance(tree, np.ndarray) else None


def shapes(tree: Any) -> dict[str, str]:
    """Pure: returns type and shape of one sample of every leaf, for the record of a run: {"[0]": "uint8 28x28"}."""
    return {place or "[0]": " ".join((str(leaf.dtype), "x".join(map(str, leaf.shape[1:])))).strip() for place, leaf in leaves(tree)}
