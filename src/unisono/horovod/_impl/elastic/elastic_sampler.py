"""Samples for the present workers: those that were processed in this epoch are left out, the rest is divided again."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any

from torch.utils.data import Sampler

from unisono.horovod._impl.job.process_state import PROCESS


def remaining_indices(num_all: int, num_processed: int, shuffle: bool, seed: int) -> list[int]:
    """Returns the indices of an epoch that are still to come, in their order, which depends on the arguments alone: all workers,
    old and new, find the same. Pure."""
    order = list(range(num_all))
    if shuffle:
        random.Random(seed).shuffle(order)
    return order[num_processed:]


def indices_of_rank(left: Sequence[int], rank: int, size: int) -> list[int]:
    """Returns the indices of one rank. All ranks get equally many: where they do not divide, the first ones are given again.
    Pure."""
    num_each = math.ceil(len(left) / size)
    missing = num_each * size - len(left)
    filled = [*left, *(left[index % len(left)] for index in range(missing))]
    return filled[rank::size]


class ElasticSampler(Sampler[int]):
    """A sampler for a DataLoader of an elastic program. Put it into the state, call `record_batch` after each batch, and
    `set_epoch` at the end of an epoch."""

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        """The data must have the same length on all workers, and the seed must be the same. Local."""
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.num_replicas = 0
        self.rank = 0
        self.remaining_indices: list[int] = []
        self.indices: list[int] = []
        """Those of this rank, as they were last iterated over."""
        self.num_samples = 0
        self.total_size = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch, of which nothing is processed yet. Call it at the end of the previous epoch, not at the beginning: a
        resumed epoch must not begin again. Local."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:  # noqa: ARG002 -- programs give it
        """Notes that every worker has processed `batch_size` more samples. Local."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        """Returns the epoch and how much of it is processed. Local."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continues from a state. Local."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divides the remaining samples among the present workers. Local."""
        self.num_replicas = PROCESS.topology.size
        self.rank = PROCESS.topology.rank
        self.remaining_indices = remaining_indices(len(self.dataset), self.processed_num, self.shuffle, self.seed + self.epoch)
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    @property
    def processed_indices(self) -> set[int]:
        """The samples of this epoch that all workers together have processed. Local."""
        order = remaining_indices(len(self.dataset), 0, self.shuffle, self.seed + self.epoch)
        return set(order[: self.processed_num])

    def __iter__(self) -> Iterator[int]:
        self.indices = indices_of_rank(self.remaining_indices, self.rank, self.num_replicas)
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples
