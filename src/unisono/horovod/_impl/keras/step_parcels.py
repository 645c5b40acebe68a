"""The operations that a step gives to the engine: vectors that are reduced and rows that are gathered, all in flight before one is
awaited."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from unisono.horovod._impl.keras.name_space import NameSpace
from unisono.horovod._impl.numpy_tensors import as_array, as_tensor
from unisono.horovod._impl.torch.operations import allgather_async, allreduce_async, allreduce_async_, synchronize
from unisono.horovod._impl.torch.submission import Average


@dataclass(frozen=True)
class Parcel:
    """One operation of a step. A compiled step holds it, so it contains nothing that may change: the participants and the name are
    asked for when it starts."""

    space: NameSpace
    what: str
    op: int
    before: float = 1.0
    after: float = 1.0
    """Factors, before and after the reduction."""
    gathers: bool = False
    """Rows of all ranks, one rank after another, instead of their reduction."""
    layout: tuple[str, ...] = ()
    """If given, the sum over the ranks tells of each variable, by its name here, how many of them have a gradient of some rows."""

    def start(self, tensor: Tensor, in_place: bool) -> Callable[[], Tensor]:
        """Starts the operation and returns a function that waits for its result. Local, not blocking."""
        name, process_set = self.space.name(self.what), self.space.process_set
        if self.gathers:
            handle = allgather_async(tensor, name, process_set)
        else:
            reduce = allreduce_async_ if in_place else allreduce_async
            handle = reduce(tensor, None, name, self.op, self.before, self.after, process_set)

        def wait() -> Tensor:
            found: Tensor = synchronize(handle)
            if self.gathers and found.is_floating_point():
                found.mul_(self.before * self.after / (process_set.size() if self.op == Average else 1))
            if self.layout:
                self._check_layout(found)
            return found

        return wait

    def _check_layout(self, counts: Tensor) -> None:
        """Raises `ValueError`, the same on all ranks, if layouts differ: the operations that follow would never meet."""
        size = self.space.process_set.size()
        for name, count in zip(self.layout, counts.tolist(), strict=True):
            if count not in (0, size):
                raise ValueError(
                    f"the gradient of {name} is sparse (tf.IndexedSlices) on {count} of {size} ranks, and dense or missing on the "
                    "others (hvd.DistributedOptimizer); give sparse_as_dense=True"
                )


def carry(parcels: Sequence[Parcel], tensors: Sequence[Tensor], in_place: bool = False) -> list[Tensor]:
    """Carries out all operations and returns their results, in new tensors unless the given ones may be used up. Collective over
    their process sets, blocking."""
    for space in {id(parcel.space): parcel.space for parcel in parcels}.values():
        space.agree()
    given = list(zip(parcels, tensors, strict=True))
    # The layout comes first and alone: if the ranks differ in it, what else one of them had started would stay in flight.
    num_first = sum(bool(parcel.layout) for parcel in parcels)
    return [*_wait_for_all(given[:num_first], in_place), *_wait_for_all(given[num_first:], in_place)]


def _wait_for_all(given: Sequence[tuple[Parcel, Tensor]], in_place: bool) -> list[Tensor]:
    """Waits for all operations, then raises the first error if some failed: the next step uses their names again."""
    waits = [parcel.start(tensor, in_place) for parcel, tensor in given]
    results: list[Tensor] = []
    errors: list[Exception] = []
    for wait in waits:
        try:
            results.append(wait())
        except Exception as error:  # noqa: BLE001 -- raised below
            errors.append(error)
    if errors:
        raise errors[0]
    return results


def carry_arrays(parcels: Sequence[Parcel], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Carries out all operations on NumPy arrays and returns new arrays."""
    copies = [as_tensor(np.array(array)) for array in arrays]  # the one copy: the framework owns what it shows us
    found = carry(parcels, copies, in_place=True)
    return [as_array(tensor, array.dtype) for tensor, array in zip(found, arrays, strict=True)]
