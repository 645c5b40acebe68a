"""Many tensors as one vector of each type, on its way into a framework that cannot share their memory. They lie in it as in the
vectors of a replica, so that those are copied as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unisono.model.flat import Entry, FlatLayout

KINDS: Mapping[str, torch.dtype] = {
    str(kind).removeprefix("torch."): kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)
}
NAMES: Mapping[torch.dtype, str] = {kind: name for name, kind in KINDS.items()}
"""Type -> the name that Keras gives it."""


class ExistingVectors(NamedTuple):
    """Vectors of which some tensors are already views, at the positions of a `Packing`."""

    addresses: Sequence[int]
    vectors: Mapping[torch.dtype, Tensor]


class Packing:
    """Positions of some tensors in flat vectors, one vector for each type."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.layout = FlatLayout.of((str(number), tensor.contiguous()) for number, tensor in enumerate(tensors))
        self._of_kind = {kind: [one for one in self.layout.entries if one.dtype is kind] for kind in self.layout.lengths}

    def find_vectors(self, tensors: Sequence[Tensor]) -> ExistingVectors | None:
        """Local: returns the vectors of which these tensors are already views at these positions; None where they are not."""
        addresses, vectors = addresses_of(tensors), dict[torch.dtype, Tensor]()
        for tensor, entry, address in zip(tensors, self.layout.entries, addresses, strict=True):
            if not entry.numel:
                continue
            if entry.dtype not in vectors:
                held = tensor.detach()
                length = self.layout.lengths[entry.dtype]
                if held.untyped_storage().nbytes() < (held.storage_offset() + length) * entry.dtype.itemsize:
                    return None
                vectors[entry.dtype] = held.as_strided((length,), (1,))
            start = vectors[entry.dtype].data_ptr()
            if tensor.dtype is not entry.dtype or tensor.stride() != entry.stride or address != _address_in(start, entry):
                return None
        return ExistingVectors(addresses, vectors)

    def pack(self, tensors: Sequence[Tensor]) -> dict[torch.dtype, Tensor]:
        """Local: copies the tensors into new vectors, which a framework may keep, as nothing else refers to them."""
        found = self.layout.vectors(lambda numel, dtype: torch.empty(numel, dtype=dtype))
        with torch.no_grad():
            torch._foreach_copy_(list(self.layout.views(found).values()), [tensor.detach() for tensor in tensors])
        return found

    def join(self, arrays: Sequence[Any]) -> dict[str, Any]:
        """Pure, in the framework: joins arrays of these shapes into vectors, with zeros between them."""
        from keras import ops

        found = {}
        for kind, entries in self._of_kind.items():
            pieces = list[Any]()
            for entry, (start, end) in zip(entries, pairwise(self._edges(kind)), strict=True):
                pieces.append(ops.reshape(arrays[int(entry.name)], (-1,)))
                if gap := end - start - entry.numel:
                    pieces.append(ops.zeros((gap,), NAMES[kind]))
            found[NAMES[kind]] = ops.concatenate(pieces)
        return found

    def split(self, vectors: Mapping[str, Any]) -> list[Any]:
        """Pure, in the framework: splits such vectors into the arrays."""
        from keras import ops

        found: list[Any] = [None] * len(self.layout.entries)
        for kind, entries in self._of_kind.items():
            edges = {place for one in entries for place in (one.offset, one.offset + one.numel)}
            ends = sorted(edges - {0, self.layout.lengths[kind]})
            pieces = ops.split(vectors[NAMES[kind]], ends) if ends else [vectors[NAMES[kind]]]
            starts = dict(zip([0, *ends], pieces, strict=True))
            for entry in entries:
                piece = starts[entry.offset] if entry.numel else ops.zeros((0,), NAMES[kind])
                found[int(entry.name)] = ops.reshape(piece, entry.shape)
        return found

    def views(self, vectors: Mapping[torch.dtype, Tensor]) -> list[Tensor]:
        """Local: returns the tensors as views of such vectors of torch."""
        return list(self.layout.views(vectors).values())

    def _edges(self, kind: torch.dtype) -> list[int]:
        """Returns where each variable of this dtype begins in the vector, and the vector's length."""
        return [*(entry.offset for entry in self._of_kind[kind]), self.layout.lengths[kind]]


def addresses_of(tensors: Sequence[Tensor]) -> list[int]:
    """Local: returns the memory address of each tensor."""
    return [tensor.data_ptr() for tensor in tensors]


def _address_in(start: int, entry: Entry) -> int:
    """Returns the address of this variable in a vector that begins at `start`."""
    return start + entry.offset * entry.dtype.itemsize
