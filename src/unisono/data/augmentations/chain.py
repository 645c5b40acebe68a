"""`un.augment.Chain`: several augmentations after one another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unisono.data.augmentations.augmentation import Augmentation
from unisono.data.declared import Declared, is_declared
from unisono.data.sample_random import SampleRandom
from unisono.errors import UsageError

if TYPE_CHECKING:
    from unisono.data.tensor_random import TensorRandom


class Chain(Declared):
    """Several augmentations of `un.augment` after one another, for `augment` of a task.

    The first changes the batch as the data give it, the next what the first made of it. Each draws random numbers of its
    own. A function of yours cannot be in a chain, as it has no form on a GPU: call the chain inside your function. Local.

    Example:
        import numpy as np
        import unisono as un

        chain = un.augment.Chain(un.augment.Flip(-1), un.augment.Shift(2), un.augment.Rotate(10))
        batch = np.zeros((3, 1, 8, 8), dtype=np.float32), np.arange(3)
        images, labels = chain(batch, un.SampleRandom(seed=0, epoch=0, indices=[4, 5, 6]))
        images.shape  # -> (3, 1, 8, 8)

    Args:
        augmentations: At least one of `un.augment`, in the order in which they are applied.
    """

    def __init__(self, *augmentations: Any) -> None:
        super().__init__()
        if not augmentations:
            raise UsageError("un.augment.Chain needs at least one augmentation; received none")
        for one in augmentations:
            if not isinstance(one, (Augmentation, Chain)) or not is_declared(one):
                name = getattr(one, "__name__", repr(one))
                raise UsageError(
                    f"un.augment.Chain takes augmentations of un.augment; received {name}. Call the chain in a function of yours"
                )
        self.augmentations = augmentations

    def __call__(self, batch: Any, random: SampleRandom) -> Any:
        """Returns the changed batch, new NumPy arrays. Local, blocking.

        Args:
            batch: `(inputs,)`, `(inputs, targets)` or `(inputs, targets, weights)`.
            random: The random numbers of its samples.
        """
        for one in self.augmentations:
            batch = one(batch, random)
        return batch

    def on_tensors(self, batch: Any, random: TensorRandom) -> Any:
        """Returns the changed batch, new tensors on the device of the given ones. Local, not blocking after the first call.

        Args:
            batch: `(inputs,)`, `(inputs, targets)` or `(inputs, targets, weights)`.
            random: The random numbers of its samples, on the same device.
        """
        for one in self.augmentations:
            batch = one.on_tensors(batch, random)
        return batch

    def __repr__(self) -> str:
        return f"un.augment.Chain({', '.join(map(repr, self.augmentations))})"
