"""Converts the inputs of `fit`, `evaluate` and `predict` to samples that can be divided exactly. Arrays are samples with numbers;
streams are read batch by batch."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch

from unisono.data.source import Source
from unisono.data.sources.arrays import Arrays
from unisono.data.tree import concatenate, leaves, map_tree, num_rows
from unisono.errors import UsageError
from unisono.keras._impl.streams import Stream, as_stream

DEFAULT_BATCH = 32
"""Keras's default."""


def as_nested_arrays(batch: Any) -> Any:
    """Local: converts a batch to nested NumPy arrays (inputs, targets[, weights])."""
    found = map_tree(_as_numpy, tuple(batch) if isinstance(batch, list) else batch)
    return found if isinstance(found, tuple) else (found,)


def _as_numpy(leaf: Any) -> Any:
    """Returns a tensor of any framework as an array, and None as it is."""
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().cpu().numpy()
    return leaf if leaf is None else leaf.numpy() if hasattr(leaf, "numpy") else np.asarray(leaf)


def as_batch(x: Any, y: Any, weights: Any, class_weight: Mapping[int, float] | None) -> tuple[Any, ...]:
    """Pure: inputs, targets and weights of samples; class weights are multiplied into the weights."""
    if y is None:
        raise UsageError("y (the targets) is missing; give y, or a stream of (inputs, targets)")
    found = (map_tree(_as_numpy, _plain(x)), map_tree(_as_numpy, _plain(y)))
    weights = None if weights is None else _weights_of(found[1], weights)
    if class_weight is not None:
        weights = _weights_by_class(found[1], class_weight) * (1 if weights is None else weights)
    return found if weights is None else (*found, map_tree(lambda leaf: leaf.astype(np.float32), weights))


def _weights_of(targets: Any, weights: Any) -> Any:
    """Returns the sample weights as arrays: one, which counts for all outputs, or one for each; None for an output counts 1."""
    found = map_tree(_as_numpy, _plain(weights))
    if not isinstance(found, (dict, tuple)):
        return found
    places, given = ({place for place, _ in leaves(tree)} for tree in (targets, found))
    if places != given:
        raise UsageError(
            f"sample_weight has {_names(given)}, but y has {_names(places)}; give one array for each output, in the nesting of y, "
            "or a single array for all"
        )
    num = num_rows(targets)
    return map_tree(lambda leaf: np.ones(num) if leaf is None else leaf, found)


def _names(places: set[str]) -> str:
    """Returns the places of arrays for a message."""
    return "one array" if places == {""} else ", ".join(sorted(places))


def _plain(tree: Any) -> Any:
    """Converts a list of numbers to an array; a list of arrays stays, as several inputs."""
    if isinstance(tree, list) and not any(hasattr(part, "shape") for part in tree):
        return np.asarray(tree)
    return tree


def _weights_by_class(targets: Any, class_weight: Mapping[int, float]) -> Any:
    """Returns the class weight of each sample; targets are class numbers or one-hot rows."""
    if not isinstance(targets, np.ndarray):
        raise UsageError("class_weight needs one array of targets, but this model has several; leave class_weight out")
    labels = targets.argmax(-1) if targets.ndim > 1 and targets.shape[-1] > 1 else targets.reshape(len(targets), -1)[:, 0]
    unknown = set(np.unique(labels).tolist()) - set(class_weight)
    if unknown:
        raise UsageError(f"class_weight has no weight for class {sorted(unknown)[0]}; give one for each class")
    return np.array([class_weight[int(label)] for label in labels], dtype=np.float32)


def batch_for(num_samples: int, batch: int | None, num_steps: int | None) -> int:
    """Pure: the batch size of arrays as Keras takes it: what is given, else that with which so many steps use all samples."""
    return batch or (-(-num_samples // num_steps) if num_steps else DEFAULT_BATCH)


def first_steps(source: Source, num_steps: int | None, batch: int | None) -> Source:
    """Local: returns the samples of the first `num_steps` batches; all of them without a number of steps."""
    if num_steps is None:
        return source
    return source.subset(np.arange(min(len(source), num_steps * batch_for(len(source), batch, num_steps))))


def read_all(x: Any, num_steps: int | None, what: str) -> Source:
    """Local, blocking: reads a whole stream into memory, for evaluation."""
    stream = as_stream(x, num_steps, what)
    num_steps = stream.num_steps if stream.length is None else min(stream.num_steps, stream.length)
    stream.begin_epoch()
    batches = [as_nested_arrays(batch) for batch in islice(stream.read_passes(seed=0), num_steps)]
    stream.end_epoch()
    if not batches:
        raise UsageError(f"the {stream.kind} of {what} is empty; give at least one batch")
    parts = [concatenate([batch[place] for batch in batches]) for place in range(len(batches[0]))]
    return Arrays(*parts)


def first_training_batch(stream: Stream, class_weight: Mapping[int, float] | None) -> tuple[Any, ...]:
    """Local, blocking: reads the first batch, with which the stream still begins."""
    raw = stream.first_batch()
    if raw is None:
        raise UsageError(f"the {stream.kind} is empty; give at least one batch")
    return as_training_batch(as_nested_arrays(raw), class_weight)


def as_training_batch(batch: tuple[Any, ...], class_weight: Mapping[int, float] | None) -> tuple[Any, ...]:
    """Pure: checks a batch of a stream and returns its inputs, targets and weights."""
    if len(batch) not in (2, 3):
        raise UsageError(f"a training batch must be (inputs, targets) or (inputs, targets, weights); received {len(batch)} parts")
    return as_batch(batch[0], batch[1], batch[2] if len(batch) == 3 else None, class_weight)


def rows(where: slice, leaf: Any) -> Any:
    """Pure: rows of an array."""
    return leaf[where]
