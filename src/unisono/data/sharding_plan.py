"""The plan of samples: those that a step uses are a pure function of (seed, epoch, step), the same for every number of workers.

An epoch is one order of all samples, cut into batches of `global_batch`; the last batch has what is left. A batch is cut into one
part for each worker, as equal as whole samples allow. Nothing is dropped, padded or used twice.

The order comes from random bits whose values NumPy promises to keep (Philox, a function of key and position), sorted; its `shuffle`
and `permutation` may change from version to version.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from unisono.errors import UsageError

Indices = npt.NDArray[np.int64]

_ORDER, _CHUNKS, _WINDOW = 0, 1, 2
"""Uses of a stream of random bits, so that no two uses share a stream."""


def cut(total: int, parts: int, part: int) -> slice:
    """Pure: returns slice number `part` of `total` items cut into `parts` slices whose lengths differ by at most one."""
    return slice(total * part // parts, total * (part + 1) // parts)


@dataclass(frozen=True)
class Windows:
    """A shuffle for files whose chunks are expensive to read: whole chunks in random order, and the samples of a few chunks at a
    time shuffled. A reader that keeps `num_chunks` chunks in memory reads every chunk once in an epoch.
    """

    chunk_samples: int
    num_chunks: int = 16

    def __post_init__(self) -> None:
        if self.chunk_samples < 1 or self.num_chunks < 1:
            raise UsageError(
                "chunk_samples and num_chunks of a shuffle by windows must be at least 1; "
                f"received {self.chunk_samples} and {self.num_chunks}"
            )


@dataclass(frozen=True)
class Plan:
    """The samples of every step of a training. Pure."""

    num_samples: int
    global_batch: int
    seed: int = 0
    shuffle: bool = True
    windows: Windows | None = None
    """Shuffle inside windows of whole chunks instead of over everything."""

    def __post_init__(self) -> None:
        if self.num_samples < 1:
            raise UsageError("the training data are empty; give at least one sample")
        if self.global_batch < 1:
            raise UsageError(f"global_batch must be at least 1 (--global-batch); received {self.global_batch}")

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps of an epoch; the last batch may be short."""
        return -(-self.num_samples // self.global_batch)

    def order(self, epoch: int) -> Indices:
        """Returns all samples in the order of this epoch. Costs a sort of all of them: keep it for the epoch."""
        if not self.shuffle:
            return np.arange(self.num_samples, dtype=np.int64)
        if self.windows is None:
            return self._permutation(self.num_samples, epoch, _ORDER, 0)
        return self._order_in_windows(epoch, self.windows)

    def batch(self, step_in_epoch: int) -> slice:
        """Returns the position of the batch of a step in the order of its epoch."""
        if not 0 <= step_in_epoch < self.steps_per_epoch:
            raise UsageError(f"a step of an epoch must lie in 0..{self.steps_per_epoch - 1}; received {step_in_epoch}")
        start = step_in_epoch * self.global_batch
        return slice(start, min(start + self.global_batch, self.num_samples))

    def part(self, step_in_epoch: int, part: int, parts: int) -> slice:
        """Returns the position of one worker's part of a batch in the order of its epoch; empty where a short batch has too few
        samples."""
        batch = self.batch(step_in_epoch)
        own = cut(batch.stop - batch.start, parts, part)
        return slice(batch.start + own.start, batch.start + own.stop)

    def _order_in_windows(self, epoch: int, windows: Windows) -> Indices:
        """Returns the order of samples: chunks shuffled, then the samples within each window of chunks."""
        num_chunks = -(-self.num_samples // windows.chunk_samples)
        chunks = self._permutation(num_chunks, epoch, _CHUNKS, 0)
        pieces = []
        for number, start in enumerate(range(0, num_chunks, windows.num_chunks)):
            held = np.sort(chunks[start : start + windows.num_chunks])
            samples = (held[:, None] * windows.chunk_samples + np.arange(windows.chunk_samples)).ravel()
            samples = samples[samples < self.num_samples]  # the last chunk of the file may be short
            pieces.append(samples[self._permutation(len(samples), epoch, _WINDOW, number)])
        return np.concatenate(pieces)

    def _permutation(self, count: int, epoch: int, use: int, number: int) -> Indices:
        """Returns the numbers below `count` in random order, the same for the same epoch, use and number."""
        return np.argsort(random_bits(count, self.seed, epoch, use, number), kind="stable")


def random_bits(count: int, seed: int, epoch: int, use: int, number: int) -> npt.NDArray[np.uint64]:
    """Pure: returns `count` random numbers of 64 bits, a function of seed, epoch, use and number, different for others."""
    key = np.array([seed % 2**64, epoch], dtype=np.uint64)
    counter = np.array([0, 0, use, number], dtype=np.uint64)  # the generator counts in the first two
    return np.random.Philox(key=key, counter=counter).random_raw(count)
