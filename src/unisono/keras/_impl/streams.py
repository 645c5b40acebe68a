"""Streams of batches: tf.data, PyDataset, DataLoader and generators, read one batch after the other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count, islice
from typing import Any

import torch

from unisono.data.source import Source
from unisono.errors import UsageError

GENERATOR, PY_DATASET = "generator", "PyDataset"


class Stream:
    """A stream whose epochs have `num_steps` batches; `length` are those of one pass through its data, None where unknown. Methods
    are local and blocking."""

    def __init__(self, x: Any, kind: str, num_steps: int, length: int | None) -> None:
        self.kind = kind
        self.num_steps = num_steps
        self.length = length
        self.restarts_each_epoch = num_steps == length
        """Else it continues from epoch to epoch, and from pass to pass, as in Keras."""
        self._x = x
        self._begun: Iterator[Any] | None = None
        """The first pass, of which a batch was read already."""

    def refuse_short_epochs(self, num_epochs: int) -> None:
        """Refuses so many epochs if one of them would begin in one pass and end in the next: Keras ends it with the first, though
        it then has fewer steps than the others."""
        if self.length is None or num_epochs * self.num_steps <= self.length or self.length % self.num_steps == 0:
            return
        raise UsageError(
            f"the {self.kind} in x has {self.length} batches, which steps_per_epoch {self.num_steps} does not divide, so Keras "
            "ends an epoch before its last step; leave steps_per_epoch out, or give one that divides them"
        )

    def first_batch(self) -> Any:
        """Reads the first batch, which the stream still begins with; None if there is none."""
        batches = iter(self._x)
        found = next(batches, None)
        if not self.restarts_each_epoch and found is not None:
            self._begun = chain([found], batches)
        return found

    def read_pass(self, number: int) -> Iterator[Any]:
        """Yields the batches of a pass through the data; a generator has only one."""
        if self._begun is not None:
            begun, self._begun = self._begun, None
            return begun
        return iter(()) if self.kind == GENERATOR and number else iter(self._x)

    def read_seeded_pass(self, number: int, seed: int) -> Iterator[Any]:
        """The same, with torch's random numbers a function of seed and pass, so that all workers shuffle alike."""
        with torch.random.fork_rng([]):
            torch.manual_seed(seed * 1_000_003 + number)
            batches = self.read_pass(number)
            first = list(islice(batches, 1))  # it may draw only then
        return chain(first, batches)

    def read_passes(self, seed: int) -> Iterator[Any]:
        """Yields batches from pass to pass, until one has none."""
        for number in count():
            batches = self.read_seeded_pass(number, seed)
            first = list(islice(batches, 1))
            if not first:
                return
            yield from chain(first, batches)

    def begin_epoch(self) -> None:
        """Calls the stream's own hook."""

    def end_epoch(self) -> None:
        """Calls the stream's own hook."""


class PyDatasetStream(Stream):
    """A PyDataset, whose hooks are called for each epoch; batches are read in another order each time where `shuffles`."""

    def __init__(self, x: Any, num_steps: int, length: int | None, shuffles: bool) -> None:
        super().__init__(x, PY_DATASET, num_steps, length)
        self._shuffles = shuffles and length is not None

    def first_batch(self) -> Any:
        """As Keras, which builds the model with it between two calls of hooks. The first in its own order, as the last may be
        shorter."""
        self.begin_epoch()
        found = self._x[0] if self.length != 0 else None
        self.end_epoch()
        return found

    def read_pass(self, number: int) -> Iterator[Any]:  # noqa: ARG002
        positions = (
            count() if self.length is None else iter(torch.randperm(self.length).tolist() if self._shuffles else range(self.length))
        )
        return (self._x[position] for position in positions)

    def begin_epoch(self) -> None:
        self._x.on_epoch_begin()

    def end_epoch(self) -> None:
        self._x.on_epoch_end()


def is_stream(x: Any) -> bool:
    """Local: whether an input is a stream of batches."""
    return not isinstance(x, Source) and (_stream_kind(x) is not None)


def as_stream(x: Any, num_steps: int | None, what: str, shuffles: bool = False) -> Stream:
    """Local: makes a stream of an input; refuses one of unknown length. `shuffles`: whether to shuffle what can be read in any
    order."""
    kind = _stream_kind(x)
    assert kind is not None
    length = _num_batches(x, kind)
    known = length if num_steps is None else num_steps
    if known is None:
        option = "validation_steps" if what == "validation_data" else "steps_per_epoch (steps in evaluate and predict)"
        raise UsageError(f"the {kind} in {what} has no known length; give {option}")
    return PyDatasetStream(x, known, length, shuffles) if kind == PY_DATASET else Stream(x, kind, known, length)


def _stream_kind(x: Any) -> str | None:
    """Returns what kind of stream of batches this is; None if it is none."""
    names = {f"{base.__module__}.{base.__name__}" for base in type(x).__mro__}
    if any(name.startswith("tensorflow.") and name.endswith("DatasetV2") for name in names):
        return "tf.data.Dataset"
    if any(name.startswith("keras.") and name.endswith(".PyDataset") for name in names):
        return PY_DATASET
    if isinstance(x, torch.utils.data.DataLoader):
        return "DataLoader"
    if hasattr(x, "__next__"):
        return GENERATOR
    return None


def _num_batches(x: Any, kind: str) -> int | None:
    """Returns the number of batches in one pass; None if it is not known."""
    if kind == "tf.data.Dataset":
        found = int(x.cardinality())
        return found if found > 0 else None
    if kind == GENERATOR:
        return None
    try:
        return len(x)
    except TypeError:
        return None
