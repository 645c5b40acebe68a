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

from unisono.data.declared import Declared, DeclaredChange
from unisono.errors import UsageError

Indices = npt.NDArray[np.int64]


class Source(ABC):
    """Samples by number: the base class of everything that a training reads data from.

    A source has a length and reads any samples as one batch: `(inputs,)`, `(inputs, targets)` or `(inputs, targets,
    weights)`. Inputs and targets are arrays, or dicts and tuples of arrays, whose first axis is the sample. Make one with
    `un.as_source`, with the class for a file format, or by a subclass with `__len__` and `read`. Every process opens its
    own; reading never changes it.

    For a subclass: the constructor should check what it can at little cost (the file is there, whole, and of the right
    shape) and keep no file open, so that the source can be pickled and opened in another process. `read` may be called from
    a thread other than the one that made the source, one call at a time.

    Example:
        import numpy as np
        import unisono as un

        class Squares(un.Source):
            def __len__(self):
                return 100

            def read(self, indices):
                numbers = indices.astype(np.float32)
                return numbers[:, None], numbers[:, None] ** 2

        splits = un.split(Squares(), validation=10, test=20)
        len(splits.train)  # -> 70

    Attributes:
        in_memory: True if `read` only copies from memory, so that reading ahead in a thread gains nothing.
        chunk_samples: Number of samples that must be read together (a compressed chunk, a remote object), or None. A
            shuffle then takes whole chunks.
    """

    in_memory: bool = False
    """Whether `read` is a copy from memory, so that reading ahead in a thread would only cost time."""
    chunk_samples: int | None = None
    """Samples in a unit that is read as a whole (a compressed chunk, a remote object), where the file has such units; a shuffle
    then takes whole chunks."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, indices: Indices) -> Any:
        """Returns these samples, in this order, as a batch. Local, blocking.

        Example:
            import unisono as un

            inputs, labels = un.as_source(un.digits()).read([3, 3, 0])
            labels.tolist()  # -> [3, 3, 0]

        Args:
            indices: Numbers of samples as an int64 array, in any order; a number may appear more than once.
        """

    def targets(self) -> npt.NDArray[Any] | None:
        """Returns all targets as one array if that is one cheap read, as for labels, otherwise None.

        Stratified splits and the check of the labels before a training begin here. Local, blocking.
        """
        return None

    def groups(self) -> npt.NDArray[Any] | None:
        """Returns the group of each sample (its patient, volume, or lesion), or None if the source does not know it.

        Samples of one group belong into one part of a split: see `how="group"` of `un.split`. Local.
        """
        return None

    def describe(self) -> Mapping[str, Any]:
        """Returns plain values that say which data these are: kind, number of samples, files with their sizes, shapes.

        They become part of the record of a run. Local.
        """
        return {"kind": type(self).__name__.lower(), "num_samples": len(self)}

    def close(self) -> None:  # noqa: B027 - most sources hold nothing open
        """Closes what `read` has opened; a later `read` opens it again. It may be called twice. Local."""

    def subset(self, indices: npt.ArrayLike) -> Source:
        """Returns a source of some of these samples, in the order given.

        An empty list gives an empty source; a number that there is no sample for is refused. Local.

        Example:
            import numpy as np
            import unisono as un

            whole = un.as_source(un.digits())
            ones = whole.subset(np.flatnonzero(whole.targets() == 1))
            len(ones)  # -> 182

        Args:
            indices: Numbers of samples, each from 0 to the length less 1.
        """
        return Subset(self, np.asarray(indices))

    def map(self, change: Callable[[Any], Any]) -> Source:
        """Returns a source that applies a function to every batch that is read.

        The function must treat each sample by itself, as the samples of a batch differ from run to run. The result has no
        `targets()`, as the function might change them, so a stratified split needs `labels=`; use `map_inputs` where only
        the inputs change. Local.

        Example:
            import unisono as un

            whole = un.as_source(un.digits())
            parity = whole.map(lambda batch: (batch[0], batch[1] % 2))
            parity.read([3])[1].tolist()  # -> [1]

        Args:
            change: A function of the batch, a tuple, that returns the new batch.
        """
        _refuse_random(change)
        if isinstance(change, DeclaredChange):
            raise UsageError(f"{change!r} changes inputs, and map would give it the whole batch; use map_inputs({change!r})")
        return Mapped(self, change)

    def map_inputs(self, change: Callable[[Any], Any]) -> Source:
        """Returns a source that applies a function to the inputs of every batch, such as a scaling.

        The function must treat each sample by itself. Targets and weights stay. A declared change, `un.Scale`, can also be
        computed on a GPU. Local.

        Example:
            import unisono as un

            images = un.as_source(un.digits()).map_inputs(lambda x: x.reshape(-1, 1, 8, 8))
            images.read([0, 1])[0].shape  # -> (2, 1, 8, 8)

        Args:
            change: A function of the inputs that returns the new inputs.
        """
        _refuse_random(change)
        return Mapped(self, change, inputs_only=True)


class Subset(Source):
    """A source with some samples of another source."""

    def __init__(self, source: Source, indices: npt.NDArray[Any]) -> None:
        if indices.ndim != 1 or (indices.size and not np.issubdtype(indices.dtype, np.integer)):
            raise UsageError(f"a subset needs a list of sample numbers; received {indices.dtype} of shape {indices.shape}")
        if indices.size and not (indices.min() >= 0 and indices.max() < len(source)):
            raise UsageError(
                f"the samples of a subset must lie in 0..{len(source) - 1}; received {indices.min()} to {indices.max()}"
            )
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
        if isinstance(self.change, DeclaredChange):
            return {**self.source.describe(), "mapped": self.change.describe()}
        return {**self.source.describe(), "mapped": getattr(self.change, "__name__", type(self.change).__name__)}

    def close(self) -> None:
        self.source.close()


def _refuse_random(change: Any) -> None:
    if isinstance(change, Declared) and not isinstance(change, DeclaredChange):
        raise UsageError(
            f"{change!r} draws random numbers, which reading must not; give it to the task, which augments training batches: "
            f"augment={change!r}"
        )


def _chunk_samples_left(indices: Indices, chunk_samples: int | None) -> int | None:
    """Returns the average number of samples of a chunk in a subset; None where the subset is not in the order of the file."""
    if chunk_samples is None or not indices.size or (np.diff(indices) <= 0).any():
        return None
    return max(1, round(chunk_samples * len(indices) / int(indices[-1] - indices[0] + 1)))
