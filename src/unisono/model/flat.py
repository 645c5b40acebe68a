"""One vector, many tensors: the layout of named tensors in flat vectors, one vector for each type.

Every tensor starts on a boundary of 256 bytes: an odd offset loses zero-copy in some frameworks, aborts others, gives misaligned
addresses on GPUs and other bits in small products. The gaps are zero and stay zero, so a sum or a norm of the whole vector is
that of its tensors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from unisono.errors import UsageError

ALIGN_BYTES = 256


@dataclass(frozen=True)
class Entry:
    """Position of one tensor in the vector of its type."""

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    offset: int
    """Position of its first element in the vector, in elements."""

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)


@dataclass(frozen=True)
class Bucket:
    """A piece of a vector that travels as one."""

    dtype: torch.dtype
    where: slice
    entry_numbers: tuple[int, ...]
    """Positions of its tensors in `FlatLayout.entries`, the last first."""


@dataclass(frozen=True)
class FlatLayout:
    """Positions of named tensors in flat vectors. Pure: it holds no memory."""

    entries: tuple[Entry, ...]
    lengths: Mapping[torch.dtype, int]
    """Length in elements of each type's vector, gaps included."""

    @classmethod
    def of(cls, named: Iterable[tuple[str, Tensor]]) -> FlatLayout:
        """Pure: makes the layout of these tensors, in the order in which they come."""
        entries, lengths = [], dict[torch.dtype, int]()
        for name, tensor in named:
            if not is_dense(tensor):
                raise UsageError(
                    f"{name} (shape {tuple(tensor.shape)}, strides {tensor.stride()}) has elements that share memory or leave "
                    "gaps; replace it by tensor.contiguous()"
                )
            offset = lengths.get(tensor.dtype, 0)  # a multiple of the alignment, as every length is
            entries.append(Entry(name, tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, offset))
            step = ALIGN_BYTES // tensor.dtype.itemsize
            lengths[tensor.dtype] = offset + -(-tensor.numel() // step) * step
        return cls(tuple(entries), lengths)

    def vectors(self, empty: Callable[[int, torch.dtype], Tensor]) -> dict[torch.dtype, Tensor]:
        """Local: returns a zero vector for each type, in memory from `empty(numel, dtype)`."""
        return {dtype: _aligned_vector(numel, dtype, empty).zero_() for dtype, numel in self.lengths.items()}

    def views(self, vectors: Mapping[torch.dtype, Tensor]) -> dict[str, Tensor]:
        """Local: returns the named tensors as views of these vectors."""
        return {entry.name: view_of(entry, vectors[entry.dtype]) for entry in self.entries}

    def buckets(self, most_bytes: int) -> list[Bucket]:
        """Pure: divides the vectors into pieces of whole tensors, each of at least `most_bytes` where there is so much, from the
        last tensor to the first, as a backward pass fills them. A bucket has tensors of one type."""
        found: list[Bucket] = []
        for dtype, length in self.lengths.items():
            end, members = length, list[int]()
            for number, entry in reversed([(n, e) for n, e in enumerate(self.entries) if e.dtype == dtype]):
                members.append(number)
                if (end - entry.offset) * dtype.itemsize >= most_bytes or entry.offset == 0:
                    found.append(Bucket(dtype, slice(entry.offset, end), tuple(members)))
                    end, members = entry.offset, []
        return found


def _aligned_vector(numel: int, dtype: torch.dtype, empty: Callable[[int, torch.dtype], Tensor]) -> Tensor:
    """Returns a vector of `numel` numbers that begins at a multiple of `ALIGN_BYTES`."""
    vector = empty(numel, dtype)
    if vector.data_ptr() % ALIGN_BYTES == 0:
        return vector
    buffer = empty(numel + ALIGN_BYTES // dtype.itemsize, dtype)
    start = -buffer.data_ptr() % ALIGN_BYTES // dtype.itemsize
    return buffer[start : start + numel]


def view_of(entry: Entry, vector: Tensor) -> Tensor:
    """Local: returns one tensor as a view of the vector of its type, with its strides (channels-last weights keep theirs)."""
    return vector.as_strided(entry.shape, entry.stride, vector.storage_offset() + entry.offset)


def hash_of(tensors: Mapping[str, Tensor]) -> str:
    """Local: returns a hash over names, types, shapes and values of tensors."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def is_dense(tensor: Tensor) -> bool:
    """Pure: whether its elements fill a stretch of memory without gaps or overlaps, in whatever order of axes."""
    expected = 1
    for length, stride in sorted(_long_axes(tensor), key=lambda axis: axis[1]):
        if stride != expected:
            return False
        expected *= length
    return True


def _long_axes(tensor: Tensor) -> Sequence[tuple[int, int]]:
    """Returns (length, stride) of each axis that is longer than 1."""
    return [(length, stride) for length, stride in zip(tensor.shape, tensor.stride(), strict=True) if length != 1]
