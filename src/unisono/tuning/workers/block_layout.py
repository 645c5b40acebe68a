"""Which ranks of a job train which trial together: blocks of equal size, and one that coordinates."""

from __future__ import annotations

from dataclasses import dataclass

from unisono.errors import UsageError


@dataclass(frozen=True)
class Layout:
    """Which ranks of a job form which block. Pure: a function of its numbers alone, so that every rank knows all of it."""

    num_ranks: int
    workers: int
    """Ranks that train one model together."""
    parallel_folds: int = 1
    """Models that a block trains at the same time, one on each fold."""

    @property
    def block_size(self) -> int:
        """Number of ranks of a block."""
        return self.workers * self.parallel_folds

    @property
    def num_blocks(self) -> int:
        """Number of blocks, each of which runs one trial at a time."""
        return self.num_ranks // self.block_size

    @property
    def first(self) -> int:
        """The first rank that trains. It is 1 where one rank is left over, so that rank 0, which all others can find, only
        coordinates; else 0, beside which a thread coordinates."""
        return 1 if self.num_ranks % self.block_size else 0

    def ranks_of(self, block: int) -> range:
        """Returns the ranks of a block; those of one model stand side by side."""
        return range(self.first + block * self.block_size, self.first + (block + 1) * self.block_size)

    def __str__(self) -> str:
        size, folds = self.block_size, self.parallel_folds
        many = f"{self.num_ranks} rank{_s(self.num_ranks)}: {self.num_blocks} trial{_s(self.num_blocks)} at a time"
        each = f"{size} rank{_s(size)}{' each' if self.num_blocks > 1 else ''}"
        inside = f" ({self.workers} worker{_s(self.workers)} per model, {folds} folds at a time)" if folds > 1 else ""
        return f"{many} on {each}{inside}; rank 0 {'only' if self.first else 'also'} coordinates"


def _s(count: int) -> str:
    """Returns the plural ending for a count: 's', or nothing for 1."""
    return "s" if count > 1 else ""


def layout_of(num_ranks: int, workers: int, parallel_folds: int = 1, num_trials: int | None = None) -> Layout:
    """Returns the layout of a job; refuses numbers that would leave ranks idle. Pure."""
    for name, value in (("-n", num_ranks), ("--workers", workers), ("--parallel-folds", parallel_folds)):
        if value < 1:
            raise UsageError(f"{name} must be at least 1; received {value}")
    found = Layout(num_ranks, workers, parallel_folds)
    size = found.block_size
    if num_ranks < size:
        raise UsageError(
            f"{num_ranks} ranks are too few for one block of {size} ({workers} workers times {parallel_folds} folds at a time); "
            f"use -n {size}, or fewer --workers"
        )
    idle = num_ranks % size - 1
    if idle > 0:
        below, above = found.num_blocks * size, (found.num_blocks + 1) * size
        raise UsageError(
            f"of {num_ranks} ranks, {below} make blocks of {size}, one coordinates, and {idle} would have nothing to do; "
            f"use -n {below}, {below + 1} or {above}"
        )
    if num_trials is not None and found.num_blocks > num_trials > 0:
        raise UsageError(
            f"{num_ranks} ranks make {found.num_blocks} blocks, but {num_trials} trial{_s(num_trials)} can use only {num_trials}; "
            f"use -n {num_trials * size}, or more --workers or --trials"
        )
    return found
