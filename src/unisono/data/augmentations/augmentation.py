"""The base of declared augmentations: each is written once, in operations that exist on arrays and on tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from unisono.data.declared import Declared
from unisono.data.sample_random import SampleRandom
from unisono.data.tree import leaves, map_tree
from unisono.errors import UsageError

if TYPE_CHECKING:
    from unisono.data.tensor_random import TensorRandom


class Augmentation(Declared, ABC):
    """A random change of every batch of a training, as `augment` of a task takes it.

    A subclass draws once for each sample, and says how one array changes by what was drawn. It gets the operations as a module,
    `array_operations` or `tensor_operations`, so that there is one rule for both.
    """

    def __init__(self, axes: int | Sequence[int], targets: bool) -> None:
        super().__init__()
        self.axes = _checked_axes(axes, self)
        if not isinstance(targets, bool):
            raise UsageError(f"targets of {self._name} must be True or False; received {targets!r}")
        self.targets = targets

    def __call__(self, batch: Any, random: SampleRandom) -> Any:
        """Returns the changed batch, new NumPy arrays. Local, blocking.

        Args:
            batch: `(inputs,)`, `(inputs, targets)` or `(inputs, targets, weights)`.
            random: The random numbers of its samples.
        """
        from unisono.data.augmentations import array_operations

        return self._change_batch(batch, random, array_operations)

    def on_tensors(self, batch: Any, random: TensorRandom) -> Any:
        """Returns the changed batch, new tensors on the device of the given ones. Local, not blocking after the first call.

        Args:
            batch: `(inputs,)`, `(inputs, targets)` or `(inputs, targets, weights)`.
            random: The random numbers of its samples, on the same device.
        """
        from unisono.data.augmentations import tensor_operations

        return self._change_batch(batch, random, tensor_operations)

    def _change_batch(self, batch: Any, random: Any, operations: ModuleType) -> Any:
        """Draws, and changes inputs, and targets if wanted, alike."""
        inputs, *rest = batch
        self._check(batch)
        drawn = self._draw(random)
        changed = map_tree(lambda leaf: self._change_if_spatial(leaf, drawn, operations, of_targets=False), inputs)
        if self.targets:
            rest[0] = map_tree(lambda leaf: self._change_if_spatial(leaf, drawn, operations, of_targets=True), rest[0])
        return (changed, *rest)

    def _change_if_spatial(self, leaf: Any, drawn: Any, operations: ModuleType, of_targets: bool) -> Any:
        return self._change(leaf, drawn, operations, of_targets) if len(leaf.shape) > 1 else leaf

    @abstractmethod
    def _draw(self, random: Any) -> Any:
        """Draws for all samples, the same whatever is in the batch."""

    @abstractmethod
    def _change(self, leaf: Any, drawn: Any, operations: ModuleType, of_targets: bool) -> Any:
        """Pure: one array or tensor with more axes than the sample, changed by what was drawn."""

    def _check_sizes(self, place: str, sizes: tuple[int, ...]) -> None:
        """Pure: refuses lengths of the axes, in the order of `axes`, that it cannot work on."""

    def _check(self, batch: Any) -> None:
        """Pure: refuses a batch that it does not fit. It reads shapes alone, so that this costs nothing beside the work."""
        if self.targets and len(batch) < 2:
            raise UsageError(f"{self!r} is to change targets, and the batch has none; leave targets=True out")
        first: tuple[str, tuple[int, ...]] | None = None
        for part, what in zip(batch, ("inputs", "targets") if self.targets else ("inputs",), strict=False):
            found = list(self._spatial(part, what))
            if not found:
                raise UsageError(f"{self!r} needs {what} with axes behind the sample; these have none. {_REMEDIES[what]}")
            for place, shape in found:
                if len(shape) <= -min(self.axes):
                    raise UsageError(
                        f"{self!r} needs at least {1 - min(self.axes)} axes, the sample and {-min(self.axes)} behind it; {place} "
                        f"have shape {shape}. Name axes that they have, or reshape them in a map of the data"
                    )
                sizes = tuple(shape[axis] for axis in self.axes)
                self._check_sizes(place, sizes)
                first = first or (place, sizes)
                if sizes != first[1]:
                    raise UsageError(
                        f"{self!r} changes all alike, but along axes {self.axes} {first[0]} have the lengths {first[1]} and "
                        f"{place} {sizes}. {_REMEDIES[what]}"
                    )

    def _spatial(self, part: Any, what: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yields place and shape of each array but plain lists of one number for each sample, which lie in no space."""
        for place, leaf in leaves(part):
            if len(leaf.shape) > 1:
                yield f"the {what} at {place}" if place else f"the {what}", tuple(leaf.shape)

    @property
    def _name(self) -> str:
        return f"un.augment.{type(self).__name__}"


_REMEDIES: Mapping[str, str] = {
    "inputs": "Write an augment of your own that calls it on those inputs that are images",
    "targets": "Leave targets=True out, or bring the targets to the shape of the inputs in a map of the data",
}


def _checked_axes(axes: Any, owner: Augmentation) -> tuple[int, ...]:
    """Pure: axes in ascending order, each counted from the last one."""
    name = owner._name
    found = (axes,) if isinstance(axes, int) else tuple(axes) if isinstance(axes, (tuple, list)) else ()
    if not found or any(isinstance(axis, bool) or not isinstance(axis, int) for axis in found):
        raise UsageError(f"the axes of {name} must be whole numbers; received {axes!r}")
    if max(found) >= 0:
        raise UsageError(
            f"the axes of {name} count from the last one, as there may be channels before them: -1 is the width of (sample, "
            f"channel, height, width); received {axes!r}"
        )
    if len(set(found)) < len(found):
        raise UsageError(f"the axes of {name} must differ; received {axes!r}")
    return tuple(sorted(found))
