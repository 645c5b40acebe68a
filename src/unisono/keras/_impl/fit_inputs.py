"""Converts the inputs of `fit`, `evaluate` and `predict` to samples that can be divided exactly.

Arrays are samples with numbers. A stream (tf.data, PyDataset, DataLoader, a generator) is read by every worker, which takes its
rows of each batch by their position; that all of them read the same is checked with every batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count, islice
from typing import Any

import numpy as np
import torch

from unisono.comm.base import Communicator
from unisono.data.fingerprint import fingerprint
from unisono.data.loader import Portion
from unisono.data.sharding_plan import Plan, cut
from unisono.data.source import Source
from unisono.data.sources.arrays import Arrays
from unisono.data.tree import concatenate, map_tree, num_rows
from unisono.errors import UsageError
from unisono.training.same_data import expect_same_fingerprints


@dataclass(frozen=True)
class Stream:
    """Batches that are read one after the other."""

    epoch: Callable[[int], Iterator[Any]]
    """Returns the batches of an epoch; a generator continues from epoch to epoch."""
    num_steps: int
    """Number of steps of an epoch."""
    kind: str
    restarts_each_epoch: bool = True


def is_stream(x: Any) -> bool:
    """Local: whether an input is a stream of batches."""
    return not isinstance(x, Source) and (_stream_kind(x) is not None)


def _stream_kind(x: Any) -> str | None:
    """Returns what kind of stream of batches this is; None if it is none."""
    names = {f"{base.__module__}.{base.__name__}" for base in type(x).__mro__}
    if any(name.startswith("tensorflow.") and name.endswith("DatasetV2") for name in names):
        return "tf.data.Dataset"
    if any(name.startswith("keras.") and name.endswith(".PyDataset") for name in names):
        return "PyDataset"
    if isinstance(x, torch.utils.data.DataLoader):
        return "DataLoader"
    if hasattr(x, "__next__"):
        return "generator"
    return None


def as_stream(x: Any, num_steps: int | None, what: str) -> Stream:
    """Local: makes a stream of an input; refuses one of unknown length."""
    kind = _stream_kind(x)
    assert kind is not None
    known = _num_batches(x, kind) if num_steps is None else num_steps
    if known is None:
        option = "validation_steps" if what == "validation_data" else "steps_per_epoch (steps in evaluate and predict)"
        raise UsageError(f"the {kind} in {what} has no known length; give {option}")
    if kind == "generator":
        held = iter(x)
        return Stream(lambda _: held, known, kind, restarts_each_epoch=False)
    whole = _PyDatasetEpochs(x) if kind == "PyDataset" else lambda _: iter(x)
    if num_steps is not None and num_steps != _num_batches(x, kind):  # continues from epoch to epoch, as in Keras
        endless = chain.from_iterable(map(whole, count()))
        return Stream(lambda _: endless, known, kind, restarts_each_epoch=False)
    return Stream(whole, known, kind)


def _num_batches(x: Any, kind: str) -> int | None:
    """Returns the number of batches in the stream; None if it is not known."""
    if kind == "tf.data.Dataset":
        found = int(x.cardinality())
        return found if found > 0 else None
    if kind == "generator":
        return None
    try:
        return len(x)
    except TypeError:
        return None


class _PyDatasetEpochs:
    """Reads the batches of each epoch of a PyDataset, which may reorder them between two epochs."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self._num_ended = 0

    def __call__(self, epoch: int) -> Iterator[Any]:
        while self._num_ended < epoch:  # also of those that an earlier attempt of the fit has used
            self._data.on_epoch_end()
            self._num_ended += 1
        return (self._data[position] for position in range(len(self._data)))


def _arrays(batch: Any) -> Any:
    """Local: converts a batch to nested NumPy arrays (inputs, targets[, weights])."""
    found = map_tree(_as_numpy, tuple(batch) if isinstance(batch, list) else batch)
    return found if isinstance(found, tuple) else (found,)


def _as_numpy(leaf: Any) -> Any:
    """Returns a tensor of any framework as an array."""
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().cpu().numpy()
    return leaf.numpy() if hasattr(leaf, "numpy") else np.asarray(leaf)


def as_batch(x: Any, y: Any, weights: Any, class_weight: Mapping[int, float] | None) -> tuple[Any, ...]:
    """Pure: inputs, targets and weights of samples; class weights are multiplied into the weights."""
    if y is None:
        raise UsageError("y (the targets) is missing; give y, or a stream of (inputs, targets)")
    found = (map_tree(_as_numpy, _plain(x)), map_tree(_as_numpy, _plain(y)))
    weights = None if weights is None else _as_numpy(weights)
    if class_weight is not None:
        weights = _weights_by_class(found[1], class_weight) * (1 if weights is None else weights)
    return found if weights is None else (*found, weights.astype(np.float32))


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


def read_all(x: Any, num_steps: int | None, what: str) -> Source:
    """Local, blocking: reads a whole stream into memory, for evaluation."""
    stream = as_stream(x, num_steps, what)
    batches = [_arrays(batch) for _, batch in zip(range(stream.num_steps), stream.epoch(0), strict=False)]
    if not batches:
        raise UsageError(f"the {stream.kind} of {what} is empty; give at least one batch")
    parts = [concatenate([batch[place] for batch in batches]) for place in range(len(batches[0]))]
    return Arrays(*parts)


def first_batch(stream: Stream, class_weight: Mapping[int, float] | None) -> tuple[tuple[Any, ...], Stream]:
    """Local, blocking: reads the first batch; returns it and a stream that still begins with it."""
    batches = stream.epoch(0)
    raw = next(batches, None)
    if raw is None:
        raise UsageError(f"the {stream.kind} is empty; give at least one batch")
    batch = as_training_batch(_arrays(raw), class_weight)
    if stream.restarts_each_epoch:
        return batch, stream
    whole = chain([raw], batches)
    return batch, Stream(lambda _: whole, stream.num_steps, stream.kind, restarts_each_epoch=False)


def as_training_batch(batch: tuple[Any, ...], class_weight: Mapping[int, float] | None) -> tuple[Any, ...]:
    """Pure: checks a batch of a stream and returns its inputs, targets and weights."""
    if len(batch) not in (2, 3):
        raise UsageError(f"a training batch must be (inputs, targets) or (inputs, targets, weights); received {len(batch)} parts")
    return as_batch(batch[0], batch[1], batch[2] if len(batch) == 3 else None, class_weight)


def rows(where: slice, leaf: Any) -> Any:
    """Pure: rows of an array."""
    return leaf[where]


COMPARED_ROWS = 16
"""Of each batch, whose labels are compared whole."""


@dataclass
class StreamLoader:
    """Loads a worker's rows of every batch of a stream. Collective with several workers, which compare what they have read."""

    stream: Stream
    comm: Communicator
    plan: Plan
    class_weight: Mapping[int, float] | None = None
    shard: int = 0
    num_shards: int = 1
    own_shards: None = None
    first_epoch: int = 0
    """First epoch of the fit, for streams that do not restart with each epoch."""
    _num_read: int = field(default=0, init=False)

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[Portion]:
        """Collective, blocking: yields this worker's part of each batch of an epoch, from `first_step` on."""
        steps = self.plan.steps_per_epoch
        batches = self._start_epoch(epoch)
        used = (epoch - self.first_epoch) * steps + first_step
        missing = first_step if self.stream.restarts_each_epoch else used - self._num_read
        for _ in range(missing):
            self._next_batch(batches, 0)
        seen = 0
        for step in range(first_step, steps):
            batch = as_training_batch(_arrays(self._next_batch(batches, step)), self.class_weight)
            if self.comm.size > 1:
                where = f"the {self.stream.kind} in x (epoch {epoch + 1}, step {step + 1})"
                expect_same_fingerprints(self.comm, {where: fingerprint(Arrays(*batch), COMPARED_ROWS)})
            own = cut(num_rows(batch), self.num_shards, self.shard)
            indices = np.arange(seen + own.start, seen + own.stop)
            seen += num_rows(batch)
            part = map_tree(partial(rows, own), batch)
            yield Portion(indices, (part,) if len(indices) else ())

    def _start_epoch(self, epoch: int) -> Iterator[Any]:
        """Returns the batches of an epoch. Torch's random numbers are a function of seed and epoch, so all workers shuffle
        alike."""
        if not self.stream.restarts_each_epoch:
            return self.stream.epoch(epoch)
        with torch.random.fork_rng([]):
            torch.manual_seed(self.plan.seed * 1_000_003 + epoch)
            batches = iter(self.stream.epoch(epoch))
            first = list(islice(batches, 1))  # it may draw only then
        return chain(first, batches)

    def _next_batch(self, batches: Iterator[Any], step: int) -> Any:
        """Returns the next batch of the stream; refuses a stream that ends too early."""
        found = next(batches, None)
        if found is None:
            raise UsageError(
                f"the {self.stream.kind} ended after {step} of {self.plan.steps_per_epoch} steps; make it longer (repeat), or "
                "reduce steps_per_epoch"
            )
        self._num_read += 1
        return found
