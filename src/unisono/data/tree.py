"""Functions on batches, which are any nesting of dicts and tuples with arrays at the leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from unisono.errors import UsageError


def map_tree(do: Callable[[Any], Any], tree: Any) -> Any:
    """Pure: returns the same nesting with `do(leaf)` at each leaf. Lists count as tuples, named tuples keep their type."""
    if isinstance(tree, dict):
        return {name: map_tree(do, part) for name, part in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_tree(do, part) for part in tree))
    if isinstance(tree, (tuple, list)):
        return tuple([map_tree(do, part) for part in tree])
    return do(tree)


def leaves(tree: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Pure: yields the leaves with their paths, e.g. ("[0].image", array)."""
    if isinstance(tree, dict):
        for name, part in tree.items():
            yield from leaves(part, f"{place}.{name}" if place else str(name))
    elif isinstance(tree, (tuple, list)):
        for position, part in enumerate(tree):
            yield from leaves(part, f"{place}[{position}]")
    else:
        yield place, tree


def concatenate(trees: Sequence[Any]) -> Any:
    """Pure: returns trees of arrays of one nesting as one, each leaf joined along its first axis."""
    first = trees[0]
    if isinstance(first, dict):
        return {name: concatenate([tree[name] for tree in trees]) for name in first}
    if isinstance(first, (tuple, list)):
        return tuple(concatenate([tree[position] for tree in trees]) for position in range(len(first)))
    return np.concatenate([np.asarray(tree) for tree in trees])


def num_rows(tree: Any, what: str = "a batch") -> int:
    """Pure: returns the length that all leaves share along their first axis; refuses leaves that differ."""
    for place, leaf in leaves(tree):
        if not hasattr(leaf, "__len__"):
            raise UsageError(
                f"{what} holds {type(leaf).__name__} at {place or 'the top level'}; give arrays whose first axis is the sample"
            )
    found = [(place, len(leaf)) for place, leaf in leaves(tree)]
    if not found:
        raise UsageError(f"{what} holds no array; give at least one")
    if len({length for _, length in found}) > 1:
        shown = ", ".join(f"{place or 'it'}: {length}" for place, length in found)
        raise UsageError(f"the arrays of {what} have different numbers of samples ({shown}); give each the same")
    return found[0][1]


def num_bytes(tree: Any) -> int:
    """Pure: returns the number of bytes of all leaves."""
    return sum(leaf.nbytes for _, leaf in leaves(tree))


def stack(samples: Sequence[Any], what: str = "the data set") -> Any:
    """Pure: stacks single samples of one nesting into a batch with a new first axis."""
    first = samples[0]
    if isinstance(first, dict):
        return {name: stack([sample[name] for sample in samples], what) for name in first}
    if isinstance(first, (tuple, list)):
        return tuple(stack([sample[position] for sample in samples], what) for position in range(len(first)))
    arrays = [np.asarray(sample) for sample in samples]
    if len({array.shape for array in arrays}) > 1:
        shapes = " and ".join(sorted({str(array.shape) for array in arrays}))
        raise UsageError(f"samples of {what} have different shapes ({shapes}); bring them to one shape, e.g. in a transform")
    return np.stack(arrays)
