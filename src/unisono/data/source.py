"""The interface of sources of data: samples by number. Opened in each process, read in batches, never changed.

A batch is `(inputs, targets)` or `(inputs, targets, weights)`; inputs and targets are any nesting of dicts and tuples of NumPy
arrays whose first axis is the sample. A source without targets gives `(inputs,)`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from unisono.errors import UsageError

Indices = npt.NDArray[np.int64]


class Source(ABC):
    """Random access to samples. Its constructor checks what can be checked cheaply (the file is there, whole, of the right shape)
    and keeps no file open, so that a source can be pickled and opened in another process. `read` may come from one thread other
    than the one that made it, one at a time."""

    in_memory: bool = False
    """Whether `read` is a copy from memory, so that reading ahead in a thread would only cost time."""
    chunk_samples: int | None = None
    """Samples in a unit that is read as a whole (a compressed chunk, a remote object), where the file has such units; a shuffle
    then takes whole chunks."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, indices: Indices) -> Any:
        """Local, blocking: returns these samples, in this order, as a batch. Indices may repeat and come in any order."""

    def targets(self) -> npt.NDArray[Any] | None:
        """Local, blocking: returns all targets as one array where that is one cheap read (labels), else None. For stratified
        splits and for checking labels before work starts."""
        return None

    def groups(self) -> npt.NDArray[Any] | None:
        """Local: returns for each sample the patient, volume or lesion it comes from, where the source knows, else None; samples
        of one group belong in one part of a split."""
        return None

    def describe(self) -> Mapping[str, Any]:
        """Local: returns plain values that say which data these are, for the record of a run: kind, files with sizes, shapes."""
        return {"kind": type(self).__name__.lower(), "num_samples": len(self)}

    def close(self) -> None:  # noqa: B027 - most sources hold nothing open
        """Local: closes what `read` opened; a later `read` opens it again. Idempotent."""

    def subset(self, indices: npt.ArrayLike) -> Source:
        """Local: returns a source of only these samples, in this order."""
        return Subset(self, np.asarray(indices))

    def map(self, change: Callable[[Any], Any]) -> Source:
        """Local: returns a source that applies `change(batch)` to every batch read; it must treat each sample alone."""
        return Mapped(self, change)

    def map_inputs(self, change: Callable[[Any], Any]) -> Source:
        """Local: returns a source that applies `change(inputs)` to the inputs of every batch read, e.g. a scaling; it must treat
        each sample alone."""
        return Mapped(self, change, inputs_only=True)


class Subset(Source):
    """A source with some samples of another source."""

    def __init__(self, source: Source, indices: npt.NDArray[Any]) -> None:
        if indices.ndim != 1 or (indices.size and not np.issubdtype(indices.dtype, np.integer)):
            raise UsageError(f"a subset needs a list of sample numbers; received {indices.dtype} of shape {indices.shape}")
        if indices.size and not (indices.min() >= 0 and indices.max() < len(source)):
            raise UsageError(f"a subset names samples outside 0..{len(source) - 1}: {indices.min()} to {indices.max()}")
        self.source = source
        self.indices: Indices = indices.astype(np.int64)
        self.in_memory = source.in_memory
        self.chunk_samples = _chunk_samples_left(self.indices, source.chunk_samples)

    def __len__(self) -> int:
        return len(self.indices)

    def read(self, indices: Indices) -> Any:
        return self.source.read(self.indices[indices])

    def targets(self) -> npt.NDArray[Any] | None:
        whole = self.source.targets()
        return None if whole is None else whole[self.indices]

    def groups(self) -> npt.NDArray[Any] | None:
        whole = self.source.groups()
        return None if whole is None else whole[self.indices]

    def describe(self) -> Mapping[str, Any]:
        return {**self.source.describe(), "num_samples": len(self)}

    def close(self) -> None:
        self.source.close()


class Mapped(Source):
    """A source that applies a change to each batch of another source, or to its inputs only."""

    def __init__(self, source: Source, change: Callable[[Any], Any], inputs_only: bool = False) -> None:
        self.source = source
        self.change = change
        self.inputs_only = inputs_only
        self.in_memory = source.in_memory
        self.chunk_samples = source.chunk_samples

    def __len__(self) -> int:
        return len(self.source)

    def read(self, indices: Indices) -> Any:
        batch = self.source.read(indices)
        return (self.change(batch[0]), *batch[1:]) if self.inputs_only else self.change(batch)

    def targets(self) -> npt.NDArray[Any] | None:
        # A change of the whole batch may concern them; reading all to see would not be cheap.
        return self.source.targets() if self.inputs_only else None

    def groups(self) -> npt.NDArray[Any] | None:
        return self.source.groups()

    def describe(self) -> Mapping[str, Any]:
        return {**self.source.describe(), "mapped": getattr(self.change, "__name__", type(self.change).__name__)}

    def close(self) -> None:
        self.source.close()


def _chunk_samples_left(indices: Indices, chunk_samples: int | None) -> int | None:
    """Returns the average number of samples of a chunk in a subset; None where the subset is not in the order of the file."""
    if chunk_samples is None or not indices.size or (np.diff(indices) <= 0).any():
        return None
    return max(1, round(chunk_samples * len(indices) / int(indices[-1] - indices[0] + 1)))
